package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

// Result is the result of Executor.Deliver. describeResult derives the end of the task from it.
type Result struct {
	Refused bool // the claim was refused or lost, or the task is outdated: the task must not run again
	Status  outcome.Status
	Reason  outcome.Reason
	Text    string    // for the operator
	Next    string    // how the operator can proceed; empty: nothing has to be done
	At      time.Time // if Status is Waiting: when this task must run again; zero: it must not run again
	Free    bool      // if Status is Waiting: a free wait, and no call was made
}

// commitFunc commits an outcome in Postgres if the claim is still valid. It is Ledger.Record, or Ledger.Adopt for a
// spooled outcome.
type commitFunc func(context.Context, *ledger.Claim, ledger.Outcome) (ledger.Recorded, error)

// recordOutcome commits the outcome d with the function commit, logs the attempt in one line, and enqueues the tasks of
// the deliveries that the store dispatched in the same transaction. The result is Refused if the task must not run
// again: the claim was lost, or the transaction held the delivery and released it at once, which ends its task.
//
// A spooled success stays in Redis for a day: it may have been recorded after its lease ended, and the attempt that
// claimed the delivery in the meantime may look for it only now. There are few: a worker spools at most one outcome for
// each delivery in its slots.
//
// If d is a spooled outcome and Postgres already has another outcome of that attempt, recordOutcome returns
// ledger.ErrStale and neither logs nor enqueues. After any other error, it is unknown whether the outcome is recorded.
func (e *Executor) recordOutcome(ctx context.Context, a *attempt, d decision, commit commitFunc) (Result, error) {
	began := e.Now()
	rec, err := e.commitOutcome(ctx, a.claim, &d, commit)
	if errors.Is(err, ledger.ErrStale) {
		return Result{}, err
	}
	if err == nil && rec.Rechecked {
		d.Status, d.Delay = outcome.Queued, 0
		if !d.NoTurn {
			d.verdict.Text += "; it is checked again at once"
		}
	}
	e.traceStep(a, "record", string(d.Status), err, began)
	a.spans.End(d.Status, d.verdict.Reason, d.isFailure(), err, e.Now())
	e.logAttempt(a, d, rec, err)

	if err == nil && d.spooled && d.Status != outcome.Delivered {
		e.dropSpooled(ctx, a.claim.ID) // before Dispatch: the next attempt may spool its own outcome
	}
	next := rec.Next // also enqueued if the claim was lost
	var again time.Time
	if err == nil && rec.Task != nil {
		own := *rec.Task
		own.At = e.Now().Add(d.Delay) // asynq compares it with this machine's clock
		if own.N == a.claim.N {
			again = own.At
		} else {
			next = append(next, own)
		}
	}
	e.Dispatcher.Dispatch(ctx, next)
	switch {
	case isFenced(err):
		return Result{Refused: true, Text: err.Error()}, nil
	case err != nil:
		return Result{}, err
	}

	if d.Tools != nil && a.call.listing != nil && !d.EndpointOfJob {
		e.observed.Add(a.claim.Agent(), a.call.listing.Listed)
	}
	e.Metrics.countOutcome(a.claim.Job.Kind, d.Outcome, rec.Age)
	if e.Throughput != nil {
		e.Throughput.Count(d.Status, rec.Age)
	}
	if a.claim.N > 1 && d.Status.Final() {
		e.Dispatcher.DropArchived(ctx, a.claim.ID, a.claim.N)
	}
	e.releaseHeld(ctx, a, d.Outcome)
	if slices.ContainsFunc(rec.Next, func(t ledger.Task) bool { return t.Ended && t.ID == a.claim.ID }) {
		return Result{Refused: true}, nil // the transaction held and released the delivery, which ends this task
	}
	return Result{Status: d.Status, Reason: d.verdict.Reason, Text: d.verdict.Text,
		Next: a.nextStep(d), At: again, Free: d.Free && !d.Called}, nil
}

// releaseHeld releases the agent's deliveries that are held for lack of a credential, and enqueues their tasks, if the
// outcome o shows that the agent accepts the credential of this call: the agent accepted the delivery, or its tool
// answered with an error. Otherwise it does nothing.
func (e *Executor) releaseHeld(ctx context.Context, a *attempt, o ledger.Outcome) {
	if o.Status != outcome.Delivered && o.Reason != outcome.ToolError {
		return
	}
	credential := a.auth
	if credential == nil { // the outcome was spooled, so this attempt did not select a credential
		credential = &auth.Authorization{Subject: a.subject()}
	}
	e.Dispatcher.Dispatch(ctx, e.Authorizer.ObserveSuccess(ctx, credential))
}

// commitOutcome calls commit until Postgres has the outcome d of the claim c, because otherwise an accepted delivery
// could be called again. After each failure it also spools the outcome in Redis, for the next claim, unless d was
// loaded from there. Postgres refuses a late commit if the claim is lost, so repeating it is harmless.
//
// It returns an error if the claim is lost, if Postgres already has another outcome of a spooled attempt
// (ledger.ErrStale), or if ctx ends. If Postgres refuses the content of the outcome, commitOutcome removes all texts of
// agents and clients and tries again. If Postgres refuses that too, it returns the error.
func (e *Executor) commitOutcome(ctx context.Context, c *ledger.Claim, d *decision, commit commitFunc,
) (ledger.Recorded, error) {
	stripped, isOwn := false, !d.spooled
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, e.RecordPause) {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.RecordTimeout)
		rec, err := commit(try, c, d.Outcome)
		cancel()
		if err == nil || isFenced(err) || errors.Is(err, ledger.ErrStale) {
			return rec, err
		}
		if classify.Unstorable(err) {
			if stripped {
				return rec, err // another attempt follows when the lease expires, until none is left
			}
			e.Logger.Error("Postgres refuses the outcome as it is; it is recorded without arguments and answer",
				"delivery", c.ID, "error", err)
			stripForeignText(&d.Outcome)
			stripped = true
			continue
		}
		d.spooled = isOwn && e.spoolOutcome(ctx, c, *d) || d.spooled
		e.Logger.Warn("outcome not recorded yet, trying again", logging.About(logging.Postgres), "delivery", c.ID,
			"status", d.Status, "error", err)
		if loop.Pause(ctx, pause) != nil {
			return rec, errors.Join(err, context.Cause(ctx))
		}
	}
}

// stripForeignText removes all texts of agents and clients from the outcome o, because Postgres refuses one of them.
func stripForeignText(o *ledger.Outcome) {
	o.ToolName, o.Endpoint, o.Protocol, o.AgentError = "", "", "", ""
	o.Arguments, o.Response, o.Result, o.ServerInfo, o.Tools = nil, nil, nil, nil, nil
	o.Registration = nil
	if o.Error != "" {
		o.Error = "details could not be stored; the log has them"
	}
}

// asJSON returns v as JSON, or nil if v cannot be encoded. It is for data that a row does not need.
func asJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}
