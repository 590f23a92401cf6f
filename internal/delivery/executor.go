package delivery

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/delivery/content"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/delivery/memory"
	"github.com/agentherald/herald/internal/delivery/slots"
	"github.com/agentherald/herald/internal/delivery/spans"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/delivery/waits"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver/servers"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
)

// Executor makes delivery attempts. It is safe for concurrent use.
type Executor struct {
	Config
	observed  *lru.Cache[erc8004.Agent, time.Time] // when the tool list in the agent's row was fetched
	waits     waits.Summary
	events    *event.Checker
	files     *content.Reader
	arguments *memory.Budget
	batches   *lru.Cache[erc8004.Agent, batchLimit]

	memberFetches chan struct{} // one element per file that a member of a batch fetches

	spoolWarned  atomic.Int64              // Unix time of ignoreSpooled's last warning, in ns
	unknownAsked atomic.Int64              // Unix time at which warnUnknown last asked Postgres, in ns
	stopped      atomic.Pointer[time.Time] // when the worker began to stop (StopClaiming); nil: it runs
}

// attempt is one attempt in progress: its claim, and the results of its steps so far.
type attempt struct {
	claim  *ledger.Claim
	server *servers.Server // the agent's entry in the servers file at the time of the claim; nil: none
	levels policy.Levels   // the policies of the agent at the time of the claim
	policy policy.Policy   // the settings in force (policy.Levels.Settings)
	began  time.Time       // monotonic time before the claim
	ready  time.Time       // monotonic time after the claim
	lease  lease
	pass   *admission.Pass // what the attempt got at the gates; nil: a member of a batch, which uses its leader's
	// agentKnown says that the claim names the right agent: the delivery was bound when it was claimed, or events are
	// not verified. Then AdmitAgent runs before checkDelivery. Otherwise the job may name a wrong agent. Then
	// checkDelivery runs first, so that the limits of a wrong agent do not delay the event.
	agentKnown bool

	stage    stage
	spans    *spans.Attempt // nil: no tracing
	event    event.Result
	noTurn   bool // the event is confirmed, but the delivery does not have the turn (checkTurn)
	spent    bool // no attempts are left: this one only looks for the outcome of the last one (checkAttempts)
	endpoint resolvedEndpoint
	permit   *ratelimit.Permit   // nil: the origin has no limits
	admitted time.Time           // monotonic time before the permit was acquired
	auth     *auth.Authorization // nil: Authorize was not called yet
	file     content.File
	call     preparedCall
	answer   toolAnswer
	batch    *batch // the batch that contains the attempt; nil: none
}

// Deliver makes one attempt for task n of the delivery with this id, and records the outcome. It first claims the
// delivery. Then it acquires one of the worker's slots with t, and uses it until the agent has answered. It releases
// the slot before it records the outcome.
//
// If the store refuses the claim, or the claim is lost, the result is Refused, and the task must not run again. If the
// delivery is not due yet, the result is Waiting, and no attempt was made. An error means that the claim failed, or
// that the outcome may be unrecorded; then the task may run again.
//
// ctx belongs to the process, not to the task. When it ends, the attempt is cancelled, and its outcome is recorded with
// a single try.
func (e *Executor) Deliver(ctx context.Context, id uuid.UUID, n int, t *slots.Ticket) (Result, error) {
	a, failure := e.claimDelivery(ctx, id, n)
	var early *ledger.EarlyError
	switch {
	case errors.As(failure, &early):
		return Result{Status: outcome.Waiting, Reason: early.Reason, Text: early.Text, Free: true,
			At: e.Now().Add(early.Left)}, nil
	case a == nil:
		return Result{Refused: failure == nil}, failure
	}

	if failure == nil {
		failure = t.Acquire(ctx)
	}
	if failure == nil {
		var spooled *ledger.SpooledOutcome
		if spooled, failure = e.loadSpooledOutcome(ctx, a.claim); spooled != nil {
			res, err := e.recordSpooledOutcome(ctx, a, *spooled)
			if !errors.Is(err, ledger.ErrStale) { // ErrStale: the earlier attempt is recorded; continue
				return res, err
			}
		}
	}
	a.pass = e.Admission.Begin(fmt.Sprintf("%s:%d", a.claim.ID, a.claim.No))
	defer a.pass.Leave()
	if failure == nil && a.agentKnown {
		failure = a.pass.AdmitAgent(ctx, a.claim.Agent(), a.claim.Succeeded)
	}
	if failure == nil {
		failure = e.runAttempt(ctx, a)
	}

	// The other deliveries of the batch are recorded at the same time as this one, even if decideOutcome panics.
	defer e.recordMembers(ctx, a).Wait()
	o := e.decideOutcome(a, failure)
	o.Anew = t.GaveUp // WithholdClaim delays the end of this task, so the delivery waits with a new one
	t.AwaitRoom()
	a.pass.Leave()
	t.Release(o.Status == outcome.Delivered)
	return e.recordOutcome(ctx, a, o, e.Ledger.Record)
}

// runAttempt runs the steps of the claimed delivery a until the agent has answered. It returns the error of the step
// that failed, or nil if the agent accepted the delivery. Each step belongs to a stage, and checkDelivery begins the
// first one.
func (e *Executor) runAttempt(ctx context.Context, a *attempt) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*e.Lease) // enough for a lease that is extended once, at its end
	defer cancel()
	defer func() { err = e.endStages(a, err, recover()) }()

	if err = e.checkDelivery(ctx, a); err != nil {
		return err
	}
	if !a.agentKnown {
		if err = a.pass.AdmitAgent(ctx, a.claim.Agent(), a.claim.Succeeded); err != nil {
			return err
		}
	}

	e.beginStage(a, "resolve")
	if a.endpoint, err = e.resolveEndpoint(ctx, a); err != nil {
		return err
	}
	if _, err = a.pass.AdmitDomain(ctx, a.endpoint.URL, !a.endpoint.unbound); err != nil {
		return err
	}
	if err = e.authorizeEndpoint(ctx, a); err != nil {
		return err
	}

	e.beginStage(a, "fetch")
	if a.file, err = e.fetchFile(ctx, a); err != nil {
		return err
	}
	defer e.releasePayload(a) // recording may take long and does not need the file and arguments

	e.beginStage(a, "connect")
	names, err := tools.Names(a.claim.Job, e.ToolAliases, a.server)
	if err != nil {
		return err
	}
	if err = a.pass.AdmitRate(ctx, a.policy.MaxPerSecond); err != nil {
		return err
	}
	if err = e.admitOrigin(ctx, a); err != nil {
		return err
	}
	defer func() { releasePermit(a.permit, a.answer, err) }()
	ctx = a.pass.ObserveCosts(ctx)
	err = e.prepareAuthorized(ctx, a, names, cachedTools)
	if mayBeStale(err) { // do not blame the agent because of an outdated list of its tools
		err = e.prepareAuthorized(ctx, a, names, freshTools)
	}
	if err != nil {
		return e.checkMove(ctx, a, err)
	}
	e.gatherBatch(ctx, a) // may add other deliveries of the agent to the call

	e.beginStage(a, "call")
	err = e.callAuthorized(ctx, a)
	if e.dissolveBatch(ctx, a, err) {
		err = e.callAuthorized(ctx, a)
	}
	isToolError := a.answer.RefusesCall() && !a.inBatch()
	if isToolError || classify.NotATool(err) { // the agent's tools may have changed since they were listed
		refused, refusal := a.call.digest, err
		err = e.prepareAuthorized(ctx, a, names, freshTools)
		switch {
		case isToolError && err != nil && classify.Error(err).Ending.Final():
			return refusal
		case err != nil:
			return err
		case a.call.digest == refused:
			return refusal
		}
		err = e.callAuthorized(ctx, a)
	}
	return e.splitAnswer(ctx, a, e.checkMove(ctx, a, err))
}

// prepareAuthorized prepares the call of a at the endpoint with its credential. If the agent refuses the access token,
// it prepares the call again with another one.
func (e *Executor) prepareAuthorized(ctx context.Context, a *attempt, names []string, fresh bool) error {
	return e.withTokenRefresh(ctx, a, func(ctx context.Context, at mcpcall.Endpoint) (err error) {
		a.call, err = e.prepareCall(ctx, a, at, names, fresh)
		return err
	})
}

// callAuthorized makes the prepared call of a at the endpoint with its credential. If the agent refuses the access
// token, it makes the call again with another one.
func (e *Executor) callAuthorized(ctx context.Context, a *attempt) error {
	return e.withTokenRefresh(ctx, a, func(ctx context.Context, at mcpcall.Endpoint) (err error) {
		a.answer, err = e.callTool(ctx, a, at)
		return err
	})
}

// releasePayload sets the file and the arguments of the attempt's call and batch to nil, and releases the memory
// reserved for the arguments, because recording may take long and does not need them.
func (e *Executor) releasePayload(a *attempt) {
	a.file.Content = nil
	e.releaseArguments(&a.call)
	a.batch.releasePayload(e)
}
