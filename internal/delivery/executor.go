package delivery

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/servers"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
)

// Executor makes attempts to deliver. Safe for concurrent use.
type Executor struct {
	Config
	observed  *lru.Cache[store.Agent, time.Time] // when the tools that are recorded of an agent were listed
	waits     *waitSummary
	arguments argumentBudget
	batches   *lru.Cache[store.Agent, batchLimit] // how many deliveries an agent takes in one call

	spoolWarned atomic.Int64 // when ignoreSpooled warned last, in ns
}

// attempt holds what the steps of one attempt have come to so far. Each field belongs to the step that it is named
// after.
type attempt struct {
	claim  *store.Claim
	server *servers.Server // the agent's entry in the servers file when the delivery was claimed; nil: it has none
	began  time.Time       // by this process' monotonic clock, before the claim
	lease  lease
	slots  *newcomerSlots
	effort attemptEffort

	stage    stage
	spans    *attemptSpans // nil: nothing is traced
	event    eventCheck
	endpoint resolvedEndpoint
	auth     *agentauth.Authorization // nil: no step came so far
	file     fetchedFile
	call     preparedCall
	answer   toolAnswer
	batch    *batch // that it leads or goes in; nil: none

	preferences preferences
}

// Deliver runs one hand-out of a delivery: task n of delivery id. A result with Refused means that the claim was not
// given and nothing was done. An error means that nothing is known to be recorded; the task may be tried again.
//
// The slot is held from the claim to the agent's answer; the record comes after it, while another delivery has it.
//
// The context is the process', not the task's: when it ends, the attempt is cut off, and what it led to is still
// recorded once.
func (e *Executor) Deliver(ctx context.Context, id uuid.UUID, n int, slot *slot) (Result, error) {
	a, failure := e.claimDelivery(ctx, id, n)
	var early *store.EarlyError
	switch {
	case errors.As(failure, &early):
		return Result{Status: store.Waiting, Reason: early.Reason, Text: early.Text, Free: true,
			At: e.Now().Add(early.Left)}, nil
	case a == nil:
		return Result{Refused: failure == nil}, failure
	}

	if failure == nil {
		failure = slot.acquire(ctx)
	}
	if failure == nil {
		var spooled *store.SpooledOutcome
		if spooled, failure = e.loadSpooledOutcome(ctx, a.claim); spooled != nil {
			res, err := e.recordSpooledOutcome(ctx, a, *spooled)
			if !errors.Is(err, store.ErrStale) { // that attempt ended otherwise, so this one is made
				return res, err
			}
		}
	}
	if failure == nil {
		failure = e.acquireSlots(ctx, a)
		defer a.releaseSlots(ctx)
		a.event.unplaced = failure != nil && mayNameAnotherAgent(a.claim)
	}
	if failure == nil {
		failure = e.runAttempt(ctx, a)
	}

	outcome := e.decideOutcome(a, failure)
	outcome.Anew = slot.gaveUp // its task ends when the worker has slots again
	slot.awaitRoom()
	a.releaseSlots(ctx)
	slot.release(outcome.Status == store.Delivered)
	defer e.recordFollowers(ctx, a).Wait() // beside this one
	return e.recordOutcome(ctx, a, outcome, e.Ledger.Record)
}

// runAttempt takes a claimed delivery to its agent, step by step, until the agent has answered or a step fails.
func (e *Executor) runAttempt(ctx context.Context, a *attempt) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*e.Lease) // the lease is extended once at most, before the call
	defer cancel()
	defer func() { err = e.endStages(a, err, recover()) }()

	if err = e.checkDelivery(ctx, a); err != nil {
		return err
	}

	e.beginStage(a, "resolve")
	if a.endpoint, err = e.resolveEndpoint(ctx, a.claim, a.server); err != nil {
		return err
	}
	if _, err = a.slots.acquireDomain(ctx, a.endpoint.URL, !a.endpoint.unbound); err != nil {
		return err
	}
	if a.auth, err = e.Authorizer.Authorize(ctx, a.subject(), a.endpoint.Endpoint); err != nil {
		return err
	}

	e.beginStage(a, "fetch")
	if a.file, err = e.fetchFile(ctx, a); err != nil {
		return err
	}
	defer e.releasePayload(a) // recording may take long

	e.beginStage(a, "compose")
	names, err := ToolNames(a.claim.Job, e.ToolAliases, a.server)
	if err != nil {
		return err
	}
	if err = e.awaitTurn(ctx, a); err != nil {
		return err
	}
	permit, err := e.acquirePermit(ctx, a.claim, a.endpoint)
	if err != nil {
		a.preferences.turn.GiveBack(ctx)
		return err
	}
	defer func() { releasePermit(ctx, permit, a.answer, err) }()
	ctx = a.effort.observeCosts(ctx)
	a.call, err = e.prepareCall(ctx, a, names, cachedTools)
	if mayBeStale(err) { // no verdict against an agent by an old list of its tools
		a.call, err = e.prepareCall(ctx, a, names, freshTools)
	}
	if err != nil {
		return err
	}
	e.gatherBatch(ctx, a) // more of the agent's deliveries in the same call, if it takes that

	e.beginStage(a, "call")
	a.answer, err = e.callTool(ctx, a)
	if e.dissolveBatch(ctx, a, err) {
		a.answer, err = e.callTool(ctx, a)
	}
	if retry.NotATool(err) { // the agent's tools may have changed since they were listed
		refused, refusal := a.call.digest, err
		if a.call, err = e.prepareCall(ctx, a, names, freshTools); err != nil {
			return err
		}
		if a.call.digest == refused {
			return refusal
		}
		a.answer, err = e.callTool(ctx, a)
	}
	return e.splitAnswer(ctx, a, err)
}

// releasePayload lets go of what may be large, and of the share of memory that was reserved for it.
func (e *Executor) releasePayload(a *attempt) {
	a.file.Content = nil
	e.releaseArguments(&a.call)
	a.batch.releasePayload(e)
}
