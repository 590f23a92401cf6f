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
	// Costly agents (effort.Hold.Costly) share one in costlyShare of a worker's slots, as newcomers do. One in quickShare
	// is for nobody but the quick: costly agents and newcomers together have the others. Package effort says why.
	costlyShare = 2
	quickShare  = 4

	costlySlot = "costly agents"
	lentSlot   = "costly agents and newcomers"
)

// attemptEffort is what an attempt takes of its agent's effort budget. The zero value is of an agent that has none.
type attemptEffort struct {
	hold  *effort.Hold
	slots *newcomerSlots // of costly agents; nil: the agent is neither costly nor a newcomer
	costs mcpcall.Costs  // of connections and listings
}

// acquireSlots lets an attempt begin if its agent has effort left and, as a newcomer or as one that costs much, a slot.
// What it took is given back by releaseSlots also beside an error.
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

// acquireCostly takes one of the slots of all that may take long, and if it is no newcomer, which has one of the
// newcomers', one of those of costly agents.
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

// pauseOverBudget makes the delivery wait as long as its agent's budget says.
func pauseOverBudget(err error) error {
	var over *effort.OverError
	if errors.As(err, &over) {
		return retry.Pause(reason.OverBudget, over.Wait, over.Text)
	}
	return err
}

// releaseSlots gives back what acquireSlots took, and charges the agent for what the attempt spent. Further calls do nothing.
func (a *attempt) releaseSlots(ctx context.Context) {
	c := &a.effort.costs
	a.effort.hold.Spend(effort.Connections, c.Connections, c.Connecting)
	a.effort.hold.Spend(effort.Listings, c.Listings, c.Listing)
	a.effort.hold.End()
	a.effort.slots.release(ctx)
	a.slots.release(ctx)
}

// observeCosts notes that the agent is asked for something from now on, and has what that costs counted.
func (f *attemptEffort) observeCosts(ctx context.Context) context.Context {
	if f.hold == nil {
		return ctx
	}
	f.hold.Reach()
	return mcpcall.WithCosts(ctx, &f.costs)
}

// fetchFile is fetchContent at the expense of what files may have of the agent's effort budget.
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

func wantsFile(j job.Job) bool {
	uri, _ := namedFile(j)
	return uri != "" && j.Action.IncludeFileContent
}

// slotToken names an attempt.
func slotToken(c *store.Claim) string { return fmt.Sprintf("%s:%d", c.ID, c.No) }
