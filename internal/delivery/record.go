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

// Result is the result of Executor.Deliver, from which describeResult makes the result of the task.
type Result struct {
	Refused bool // the task is outdated, or its claim was refused or lost: the delivery does not need this task
	Status  store.Status
	Reason  reason.Reason
	Text    string    // for the operator
	Next    string    // how the operator can proceed; empty: nothing has to be done
	At      time.Time // if Status is Waiting: when this task must run again; zero: it must not
	Free    bool      // if Status is Waiting: the wait costs no attempt, and no call was made
}

// commitFunc writes an outcome to Postgres if the claim is still valid: Ledger.Record, or Ledger.Adopt for a spooled
// outcome.
type commitFunc func(context.Context, *store.Claim, store.Outcome) (store.Recorded, error)

// recordOutcome commits the outcome with commit, logs the attempt in one line, and enqueues the deliveries that the
// store dispatched in the same transaction. The result is Refused if the claim was lost, or if the delivery was held
// and released at once. With an error, the outcome may be unrecorded, or commit returned store.ErrStale.
func (e *Executor) recordOutcome(ctx context.Context, a *attempt, d decision, commit commitFunc) (Result, error) {
	began := e.Now()
	rec, err := e.commitOutcome(ctx, a.claim, &d, commit)
	if errors.Is(err, store.ErrStale) {
		return Result{}, err
	}
	if err == nil && rec.Rechecked {
		d.Status, d.Delay = store.Queued, 0
		d.verdict.Text += "; it is checked again at once"
	}
	e.traceStep(a, "record", string(d.Status), err, began)
	a.spans.endAttempt(d, err, e.Now)
	e.logAttempt(a, d, rec, err)

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
		return Result{Refused: true}, nil // it was held and released immediately
	}
	return Result{Status: d.Status, Reason: d.verdict.Reason, Text: d.verdict.Text,
		Next: a.nextStep(d), At: again, Free: d.Free && !d.Called}, nil
}

// releaseHeld enqueues the agent's deliveries that were held for lack of a credential, if outcome o shows that the
// agent accepted this call's credential: it delivered, or the tool ran and failed.
func (e *Executor) releaseHeld(ctx context.Context, a *attempt, o store.Outcome) {
	if o.Status != store.Delivered && o.Reason != reason.ToolError {
		return
	}
	auth := a.auth
	if auth == nil { // the outcome was spooled
		auth = &agentauth.Authorization{Subject: a.subject()}
	}
	e.Dispatcher.Dispatch(ctx, e.Authorizer.ObserveSuccess(ctx, auth))
}

// commitOutcome calls commit again and again until Postgres stores the outcome, because otherwise a known outcome could
// be delivered again. It stops with an error if the claim is lost, the spooled outcome is outdated (store.ErrStale), or
// ctx ends. After the first failure it also spools the outcome in Redis for the next claim. The claim's number fences
// the write, so a late try is harmless. If Postgres refuses the content of the outcome, it is committed without the
// texts of agents and clients, and if Postgres refuses that too, the error is returned.
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
				return rec, err // its lease expires, until its attempts are used up
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

// stripForeignText removes from the outcome all texts that come from agents and clients, because Postgres refuses one
// of them.
func stripForeignText(o *store.Outcome) {
	o.ToolName, o.Endpoint, o.Protocol, o.AgentError = "", "", "", ""
	o.Arguments, o.Response, o.Result, o.ServerInfo, o.Tools, o.Preferences = nil, nil, nil, nil, nil, nil
	if o.Error != "" {
		o.Error = "details could not be stored; the log has them"
	}
}

// asJSON returns v as JSON, or nil if v cannot be encoded. Use it only for data that the row can do without.
func asJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}
