package delivery

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
)

const (
	// costlyShare and quickShare: costly agents (effort.Hold.Costly) share 1/costlyShare of a worker's slots.
	// 1/quickShare of the slots stays for agents that are neither costly nor newcomers: costly agents and newcomers
	// together share the rest. Package effort gives the reason.
	costlyShare = 2
	quickShare  = 4

	// Names of group permits (groupPermit.group): costlySlot is for costly agents, and lentSlot for costly agents and
	// newcomers together.
	costlySlot = "costly agents"
	lentSlot   = "costly agents and newcomers"
)

// attemptEffort is the worker time that an attempt reserves and charges in its agent's effort budget (package effort),
// and its group permits as a costly agent. It is zero if there are no effort budgets.
type attemptEffort struct {
	hold  *effort.Hold
	slots *groupPermits // permits of the groups costlySlot and lentSlot; nil: neither costly nor a newcomer
	costs mcpcall.Costs // number and duration of the connections and tool lists of this attempt
}

// acquireSlots reserves worker time in the agent's effort budget, and acquires the group permits (Newcomers) that a
// newcomer or a costly agent needs in addition to the worker's slot. If the budget is used up or a group permit is not
// free, the error is a free wait (over_budget, agent_busy). The caller calls releaseSlots even after an error.
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
	a.effort.slots = &groupPermits{newcomers: e.Newcomers, token: slotToken(a.claim)}
	return a.effort.slots.acquireCostly(ctx, a.slots != nil)
}

// acquireCostly acquires a group permit of lentSlot, which costly agents and newcomers share. For a costly agent that
// is not a newcomer, it first acquires a group permit of costlySlot.
func (s *groupPermits) acquireCostly(ctx context.Context, newcomer bool) error {
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

// pauseOverBudget converts an *effort.OverError to a free wait (over_budget) of OverError.Wait. It returns other errors
// unchanged.
func pauseOverBudget(err error) error {
	var over *effort.OverError
	if errors.As(err, &over) {
		return outcome.Pause(outcome.OverBudget, over.Wait, over.Text)
	}
	return err
}

// releaseSlots charges the cost of the attempt to its agent's effort budget, and releases its group permits. A second
// call does nothing.
func (a *attempt) releaseSlots(ctx context.Context) {
	c := &a.effort.costs
	a.effort.hold.Spend(effort.Connections, c.Connections, c.Connecting)
	a.effort.hold.Spend(effort.Listings, c.Listings, c.Listing)
	a.effort.hold.End()
	a.effort.slots.release(ctx)
	a.slots.release(ctx)
}

// observeCosts is called before the first request to the agent. From then on, the attempt reserves in its agent's
// effort budget at least the time that has passed since this call (effort.Hold.Reach). It returns a context for the
// requests: each request with it adds its connections and tool lists to f.costs. If there is no effort budget, it
// returns ctx.
func (f *attemptEffort) observeCosts(ctx context.Context) context.Context {
	if f.hold == nil {
		return ctx
	}
	f.hold.Reach()
	return mcpcall.WithCosts(ctx, &f.costs)
}

// fetchFile calls fetchContent and charges its duration to the agent's effort budget. Files may use only a part of the
// budget. If that part is used up, the error is a free wait (over_budget).
func (e *Executor) fetchFile(ctx context.Context, a *attempt) (fetchedFile, error) {
	if !wantsFile(a.claim.Job) {
		return e.fetchContent(ctx, a.claim, a.slots)
	}
	what := effort.Fetches
	if a.claim.Job.Kind == job.KindResponseAppended {
		what = effort.ResponseFetches
	}
	if err := a.effort.hold.CheckFiles(what); err != nil {
		return fetchedFile{}, pauseOverBudget(err)
	}
	began := e.Now()
	defer func() { a.effort.hold.Spend(what, 1, e.Now().Sub(began)) }()
	return e.fetchContent(ctx, a.claim, a.slots)
}

// wantsFile reports whether the event of job j names a file and j asks for its content.
func wantsFile(j job.Job) bool {
	uri, _ := namedFile(j)
	return uri != "" && j.Action.IncludeFileContent
}

// slotToken returns the text by which the limiters of group permits identify the attempt with claim c: the delivery's
// id and the claim number.
func slotToken(c *store.Claim) string { return fmt.Sprintf("%s:%d", c.ID, c.No) }
