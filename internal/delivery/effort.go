package delivery

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentherald/herald/internal/delivery/effort"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

const (
	// Costly agents (effort.Hold.Costly) have 1/costlyShare of a worker's slots. 1/quickShare of the slots is reserved
	// for quick agents: costly agents and newcomers together share the others. Package effort gives the reason.
	costlyShare = 2
	quickShare  = 4

	costlySlot = "costly agents"
	lentSlot   = "costly agents and newcomers"
)

// attemptEffort is an attempt's use of its agent's effort budget (package effort). The zero value is for an agent
// without a budget.
type attemptEffort struct {
	hold  *effort.Hold
	slots *newcomerSlots // slots that costly agents and newcomers share; nil: the agent is neither
	costs mcpcall.Costs  // costs of connections and tool lists for this attempt
}

// acquireSlots reserves worker time in the agent's effort budget, and acquires the slots that a newcomer or a costly
// agent needs. If the budget is used up or no slot is free, the error is a free wait. The caller must call releaseSlots
// even after an error.
func (e *Executor) acquireSlots(ctx context.Context, a *attempt) (err error) {
	if a.effort.hold, err = e.Efforts.Begin(ctx, a.claim.Agent()); err != nil {
		return pauseOverBudget(err)
	}
	if a.slots, err = e.Newcomers.acquireSlot(ctx, a.claim); err != nil {
		return err
	}
	if a.effort.hold == nil || e.Newcomers == nil || a.slots == nil && !a.effort.hold.Costly() {
		return nil
	}
	a.effort.slots = &newcomerSlots{newcomers: e.Newcomers, token: slotToken(a.claim)}
	return a.effort.slots.acquireCostly(ctx, a.slots != nil)
}

// acquireCostly acquires one of the slots that costly agents and newcomers share (lentSlot). For a costly agent that is
// not a newcomer, it first acquires one of the slots of costly agents (costlySlot).
func (s *newcomerSlots) acquireCostly(ctx context.Context, newcomer bool) error {
	n := s.newcomers
	if !newcomer {
		err := s.acquire(ctx, n.costly, costlySlot, fmt.Sprintf("agents whose latest attempts took more than a second each, "+
			"or that have used half of their effort budget, share %d of this worker's slots", max(1, n.total/costlyShare)))
		if err != nil {
			return err
		}
	}
	return s.acquire(ctx, n.lent, lentSlot, fmt.Sprintf("agents that take long and agents without a success in the last hour "+
		"together share %d of this worker's slots", max(1, n.total-n.total/quickShare)))
}

// pauseOverBudget turns an *effort.OverError into a free wait of the same length. It returns other errors unchanged.
func pauseOverBudget(err error) error {
	var over *effort.OverError
	if errors.As(err, &over) {
		return retry.Pause(reason.OverBudget, over.Wait, over.Text)
	}
	return err
}

// releaseSlots charges the agent for the attempt and releases what acquireSlots acquired. Further calls do nothing.
func (a *attempt) releaseSlots(ctx context.Context) {
	c := &a.effort.costs
	a.effort.hold.Spend(effort.Connections, c.Connections, c.Connecting)
	a.effort.hold.Spend(effort.Listings, c.Listings, c.Listing)
	a.effort.hold.End()
	a.effort.slots.release(ctx)
	a.slots.release(ctx)
}

// observeCosts records that the attempt contacts the agent from now on. Requests with the returned context add the time
// and number of their connections and tool lists to f.costs.
func (f *attemptEffort) observeCosts(ctx context.Context) context.Context {
	if f.hold == nil {
		return ctx
	}
	f.hold.Reach()
	return mcpcall.WithCosts(ctx, &f.costs)
}

// fetchFile is fetchContent within the part of the agent's effort budget that files may use. If that part is used up,
// the error is a free wait. Otherwise the fetch is charged to it.
func (e *Executor) fetchFile(ctx context.Context, a *attempt) (fetchedFile, error) {
	if !wantsFile(a.claim.Job) {
		return e.fetchContent(ctx, a.claim, a.slots)
	}
	if err := a.effort.hold.CheckFiles(); err != nil {
		return fetchedFile{}, pauseOverBudget(err)
	}
	began := e.Now()
	defer func() { a.effort.hold.Spend(effort.Fetches, 1, e.Now().Sub(began)) }()
	return e.fetchContent(ctx, a.claim, a.slots)
}

// wantsFile reports whether the job's event names a file and the job asks for its content.
func wantsFile(j job.Job) bool {
	uri, _ := namedFile(j)
	return uri != "" && j.Action.IncludeFileContent
}

// slotToken returns the attempt's token for the limiters of slots, as in acquireSlot.
func slotToken(c *store.Claim) string { return fmt.Sprintf("%s:%d", c.ID, c.No) }
