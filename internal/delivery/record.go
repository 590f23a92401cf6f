package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

// Result is what Deliver did.
type Result struct {
	Refused bool // the delivery goes on without this task: it is old, or another worker has it
	Status  store.Status
	Reason  reason.Reason
	Text    string    // for people
	Next    string    // what a person does about it; empty when it was delivered
	At      time.Time // Waiting: when the task is to run again; zero: the wait goes on without it
	Free    bool      // Waiting: it costs no attempt
}

// commitFunc writes an outcome under the claim's fence, as Ledger.Record does.
type commitFunc func(context.Context, *store.Claim, store.Outcome) (store.Recorded, error)

// recordOutcome commits the outcome, logs it in one line, and hands out what the store released.
func (e *Executor) recordOutcome(ctx context.Context, a *attempt, d decision, commit commitFunc) (Result, error) {
	began := e.Now()
	rec, err := e.commitOutcome(ctx, a.claim, &d, commit)
	if errors.Is(err, store.ErrStale) {
		return Result{}, err
	}
	if err == nil && rec.Succeeded {
		d.Status, d.Delay = store.Queued, 0
		d.verdict.Text += "; another job of the event was enqueued too, and is looked at next"
	}
	e.traceStep(a, "record", string(d.Status), err, began)
	a.spans.endAttempt(d, err, e.Now)
	e.logAttempt(a, d, rec, err)

	next := rec.Next // handed out also when the claim was lost
	var again time.Time
	if err == nil && rec.Task != nil {
		own := *rec.Task
		own.At = e.Now().Add(d.Delay) // by this machine's clock, which is the one asynq compares it with
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

	if d.spooled {
		e.dropSpooled(ctx, a.claim.ID)
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
	if slices.ContainsFunc(rec.Next, func(t store.Task) bool { return t.Ended && t.ID == a.claim.ID }) {
		return Result{Refused: true}, nil // held and released at once
	}
	return Result{Status: d.Status, Reason: d.verdict.Reason, Text: d.verdict.Text,
		Next: a.nextStep(d), At: again, Free: d.Free && !d.Called}, nil
}

// releaseHeld hands out what was held for want of a credential, when the agent has taken a call.
func (e *Executor) releaseHeld(ctx context.Context, a *attempt, o store.Outcome) {
	if o.Status != store.Delivered && o.Reason != reason.ToolError {
		return
	}
	auth := a.auth
	if auth == nil { // a spooled outcome was recorded
		auth = &agentauth.Authorization{Subject: a.subject()}
	}
	e.Dispatcher.Dispatch(ctx, e.Authorizer.ObserveSuccess(ctx, auth))
}

// commitOutcome tries until Postgres takes the outcome, or says that the claim is lost, or this process gives up: what
// is known must not be asked for again. Meanwhile Redis is given it, for whoever claims the delivery next. A claim
// number fences the write, so that a late try is harmless. What Postgres will never take is recorded without the
// strangers' part.
func (e *Executor) commitOutcome(ctx context.Context, c *store.Claim, d *decision, commit commitFunc,
) (store.Recorded, error) {
	stripped := false
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, e.RecordPause) {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.RecordTimeout)
		rec, err := commit(try, c, d.Outcome)
		cancel()
		if err == nil || isFenced(err) || errors.Is(err, store.ErrStale) {
			return rec, err
		}
		if retry.Unstorable(err) {
			if stripped {
				return rec, err // the lease brings it back, and its attempts end it
			}
			e.Logger.Error("Postgres refuses the outcome as it is; it is recorded without arguments and answer",
				"delivery", c.ID, "error", err)
			stripForeignText(&d.Outcome)
			stripped = true
			continue
		}
		d.spooled = d.spooled || e.spoolOutcome(ctx, c, d.Outcome)
		e.Logger.Warn("outcome not recorded yet, trying again", logging.About(logging.Postgres), "delivery", c.ID,
			"status", d.Status, "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return rec, errors.Join(err, context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// stripForeignText takes out of the outcome what strangers said.
func stripForeignText(o *store.Outcome) {
	o.ToolName, o.Endpoint, o.Protocol, o.AgentError = "", "", "", ""
	o.Arguments, o.Response, o.Result, o.ServerInfo, o.Tools, o.Preferences = nil, nil, nil, nil, nil, nil
	if o.Error != "" {
		o.Error = "details could not be stored; the log has them"
	}
}

// asJSON is v as JSON, or nil when v has none: it is only shown.
func asJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}
