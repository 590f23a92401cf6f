package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/store"
)

// redisWait is the longest wait that becomes a scheduled task, seen in the web UI; longer ones live in Postgres.
const redisWait = 5 * time.Minute

// Result is what Deliver did.
type Result struct {
	Refused bool // the claim was not given: an old task, another worker, or not due
	Status  store.Status
	Reason  retry.Reason
	Text    string        // for people
	Next    string        // what a person does about it; empty when it was delivered
	Delay   time.Duration // Waiting
}

// record writes the outcome under the claim's fence, tells it in one line, and hands out what the store released.
func (p *Executor) record(ctx context.Context, a *attempt, failure error) (Result, error) {
	v := p.settle(a, failure)
	return p.write(ctx, a, v, func(ctx context.Context) (store.Recorded, error) { return p.Ledger.Record(ctx, a.claim, a.out) })
}

// write commits a.out by commit, and does what follows from it.
func (p *Executor) write(ctx context.Context, a *attempt, v retry.Verdict, commit func(context.Context) (store.Recorded, error)) (Result, error) {
	began := p.Now()
	rec, err := p.commitAtLast(ctx, a, commit)
	if errors.Is(err, store.ErrStale) {
		return Result{}, err
	}
	if err == nil && rec.Succeeded {
		a.out.Status, a.out.Delay = store.Queued, 0
		v.Text += "; another job of the event was enqueued too, and is looked at next"
	}
	p.trace(a, "record", string(a.out.Status), err, began)
	p.tell(a, v, rec, err)
	next := rec.Next // handed out also when the claim was lost
	if err == nil && rec.Task != nil {
		own := *rec.Task
		own.At = p.Now().Add(a.out.Delay) // by this machine's clock, which is the one asynq compares it with
		next = append(next, own)
	}
	p.Dispatcher.Dispatch(ctx, next)
	switch {
	case isFenced(err):
		return Result{Refused: true, Text: err.Error()}, nil
	case err != nil:
		return Result{}, err
	}
	if a.kept {
		p.forget(ctx, a)
	}
	if a.out.Tools != nil {
		p.told.Add(a.claim.Agent(), a.offered)
	}
	p.Metrics.recorded(a, rec.Age)
	if a.claim.Replay && a.out.Status == store.Delivered {
		p.Dispatcher.DropArchived(ctx, a.claim.ID, a.claim.N)
	}
	p.observeSuccess(ctx, a)
	return Result{Status: a.out.Status, Reason: v.Reason, Text: v.Text, Next: a.nextStep(v), Delay: a.out.Delay}, nil
}

// observeSuccess hands out what was held for want of a credential, when the agent has taken a call.
func (p *Executor) observeSuccess(ctx context.Context, a *attempt) {
	if a.out.Status != store.Delivered && a.out.Reason != string(retry.ToolError) {
		return
	}
	auth := a.auth
	if auth == nil { // a spooled outcome was recorded
		auth = &agentauth.Authorization{Subject: a.subject()}
	}
	p.Dispatcher.Dispatch(ctx, p.Authorizer.ObserveSuccess(ctx, auth))
}

// nextStep is what a person does about an attempt that did not deliver.
func (a *attempt) nextStep(v retry.Verdict) string {
	if a.out.Status == store.Queued { // another job of the event took over
		return ""
	}
	agent := a.claim.Agent()
	return v.Reason.NextStep(retry.Subject{Delivery: a.claim.ID.String(), ChainID: agent.ChainID, AgentID: agent.ID,
		Registry: agent.Registry, Endpoint: a.out.Endpoint, Tool: a.job.Action.ToolName, Listed: a.listed, Over: a.out.Status.Final()})
}

// settle turns the failure (nil: delivered) into the outcome to record.
func (p *Executor) settle(a *attempt, failure error) retry.Verdict {
	if failure == nil {
		a.out.Status, a.out.AgentOK = store.Delivered, true
		p.Newcomers.noteOutcome(a.claim.Agent(), true)
		return retry.Verdict{}
	}
	v := retry.Classify(failure)
	a.away = a.away || store.Away(failure)
	v = p.Authorizer.ObserveFailure(a.auth, failure, v)
	if v.Unknown && a.onUnknown() == store.OnUnknownHold {
		v.Text = "nobody knows whether the agent took the call, and its policy is onUnknown=hold: " + v.Text
		v.Reason, v.Ending, v.Free = retry.HeldUnknown, retry.Hold, false
	}
	a.out.Reason, a.out.Error, a.out.Free = string(v.Reason), v.Text, v.Free
	a.out.Moved = v.Moved && a.job.Action.ResolveEndpoint && !a.target.Listed
	a.out.KeepLine = v.Limited()
	if v.AgentFault {
		p.Newcomers.noteOutcome(a.claim.Agent(), false)
	}
	if v.AgentFault && a.out.Stage != "fetch" { // the feedback's file is its client's affair
		a.out.AgentError = v.Text
	}
	switch v.Ending {
	case retry.Skip:
		a.out.Status = store.Skipped
	case retry.Reject:
		a.out.Status = store.Rejected
	case retry.Hold:
		a.out.Status = store.Held
	case retry.Wait:
		if v.Free && v.Pause == 0 {
			v.Pause = retry.BackOff(p.Now().Sub(a.claim.CreatedAt))
		}
		delay, more := p.Schedule.Next(a.claim.Budget, v, p.Random())
		a.out.Status, a.out.Delay, a.out.Task = store.Waiting, delay, delay <= redisWait
		if !more {
			a.out.Status, a.out.Delay, a.out.Task = store.Dead, 0, false
		}
	}
	return v
}

// commitAtLast tries until Postgres takes the outcome, or says that the claim is lost, or this process gives up: what is known
// must not be asked for again. Meanwhile Redis is given it, for whoever claims the delivery next. A claim number fences the
// write, so that a late try is harmless. What Postgres will never take is recorded without the strangers' part.
func (p *Executor) commitAtLast(ctx context.Context, a *attempt, commit func(context.Context) (store.Recorded, error)) (store.Recorded, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, p.RecordPause) {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.RecordTimeout)
		rec, err := commit(try)
		cancel()
		if err == nil || isFenced(err) || errors.Is(err, store.ErrStale) {
			return rec, err
		}
		if retry.Unstorable(err) {
			if a.bare {
				return rec, err // the lease brings it back, and its attempts end it
			}
			p.Logger.Error("Postgres refuses the outcome as it is; it is recorded without arguments and answer", "delivery", a.claim.ID, "error", err)
			a.strip()
			continue
		}
		a.kept = a.kept || p.keep(ctx, a)
		p.Logger.Warn("outcome not recorded yet, trying again", logging.About(logging.Postgres), "delivery", a.claim.ID,
			"status", a.out.Status, "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return rec, errors.Join(err, context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// strip takes out of the outcome what strangers said.
func (a *attempt) strip() {
	a.bare = true
	o := &a.out
	o.ToolName, o.Endpoint, o.Protocol, o.AgentError = "", "", "", ""
	o.Arguments, o.Response, o.Result, o.ServerInfo, o.Tools = nil, nil, nil, nil, nil
	if o.Error != "" {
		o.Error = "details could not be stored; the log has them"
	}
}

// levelOf is the level of an attempt's line. An agent that fails is information, not an error, but when it cost the
// delivery its life; what nothing was attempted at is counted (see waitSummary).
func (a *attempt) levelOf(v retry.Verdict, err error) slog.Level {
	switch {
	case isFenced(err):
		return slog.LevelWarn
	case err != nil, v.Reason == retry.InternalError && !a.away:
		return slog.LevelError
	case a.out.Status == store.Dead:
		return slog.LevelWarn
	case a.putOff():
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// putOff tells whether the delivery waits without anything having been attempted.
func (a *attempt) putOff() bool { return a.out.Status == store.Waiting && a.out.Free && !a.out.Called }

// tell writes the one canonical line of an attempt.
func (p *Executor) tell(a *attempt, v retry.Verdict, rec store.Recorded, err error) {
	level := a.levelOf(v, err)
	if err == nil && a.putOff() {
		p.waits.add(a.claim.Agent(), a.out.Reason)
	}
	attrs := []slog.Attr{
		slog.String("delivery", a.claim.ID.String()), slog.String("kind", string(a.job.Kind)),
		slog.String("agent", fmt.Sprintf("%d:%s", a.job.ChainID, a.claim.Agent().ID)),
		slog.Int("attempt", a.claim.Attempt), slog.String("status", string(a.out.Status)),
		slog.String("stage", a.out.Stage), slog.Duration("took", p.Now().Sub(a.began).Round(time.Microsecond)),
	}
	for _, kv := range [][2]string{{"reason", string(v.Reason)}, {"tool", a.out.ToolName}, {"endpoint", a.out.Endpoint},
		{"file", a.out.FileVerification}, {"fileSource", a.out.FileSource}, {"fileDisagrees", strings.Join(a.out.FileDisagrees, ",")}, {"error", v.Text}} {
		if kv[1] != "" {
			attrs = append(attrs, slog.String(kv[0], kv[1]))
		}
	}
	if a.out.Status == store.Waiting {
		attrs = append(attrs, slog.Duration("again_in", a.out.Delay.Round(time.Millisecond)))
	}
	if a.out.Status.Final() && err == nil {
		attrs = append(attrs, slog.Duration("age", rec.Age.Round(time.Millisecond)))
	}
	if next := a.nextStep(v); next != "" && a.out.Status != store.Waiting { // what waits goes on by itself
		attrs = append(attrs, slog.String("next", next))
	}
	if err != nil {
		attrs = append(attrs, slog.String("not_recorded", err.Error()))
	}
	p.Logger.LogAttrs(context.Background(), level, "delivery attempted", attrs...)
}

func isFenced(err error) bool { return errors.Is(err, store.ErrFenced) }

// excerpt is the beginning of an agent's words on one line.
func excerpt(s string, limit int) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "\uFFFD")), " ")
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "…"
	}
	return s
}
