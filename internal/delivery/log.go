package delivery

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

// logAttempt writes the single log line of an attempt with outcome d. rec is the result of recording d; it may be zero
// after an error. err is that error, or nil. If d was recorded and is a free wait without a call (putOff), logAttempt
// also counts d in Executor.waits.
func (e *Executor) logAttempt(a *attempt, d decision, rec ledger.Recorded, err error) {
	if err == nil && d.putOff() {
		e.waits.Add(a.claim.Agent(), string(d.Reason))
	}
	attrs := []slog.Attr{
		slog.String("delivery", a.claim.ID.String()), slog.String("kind", string(a.claim.Job.Kind)),
		slog.String("agent", a.claim.Agent().String()),
		slog.Int("attempt", a.claim.Attempt), slog.String("status", string(d.Status)),
		slog.String("stage", d.Stage), slog.Duration("took", e.Now().Sub(a.began).Round(time.Microsecond)),
	}
	for _, kv := range [][2]string{
		{"reason", string(d.verdict.Reason)}, {"tool", d.ToolName}, {"endpoint", d.Endpoint},
		{"file", d.FileVerification}, {"fileSource", d.FileSource},
		{"fileDisagrees", strings.Join(d.FileDisagrees, ",")}, {"ahead_of", a.claim.AheadOf}, {"error", d.verdict.Text},
	} {
		if kv[1] != "" {
			attrs = append(attrs, slog.String(kv[0], kv[1]))
		}
	}
	if a.inBatch() {
		attrs = append(attrs, slog.Int("batch", a.batch.size), slog.String("leader", a.batch.leader.String()))
	}
	if d.Status == outcome.Waiting {
		attrs = append(attrs, slog.Duration("again_in", d.Delay.Round(time.Millisecond)))
	}
	if d.Status.Final() && err == nil {
		attrs = append(attrs, slog.Duration("age", rec.Age.Round(time.Millisecond)))
	}
	if next := a.nextStep(d); next != "" && d.Status != outcome.Waiting { // a waiting delivery continues automatically
		attrs = append(attrs, slog.String("next", next))
	}
	if err != nil {
		attrs = append(attrs, slog.String("not_recorded", err.Error()))
	}
	e.Logger.LogAttrs(context.Background(), d.logLevel(err), "delivery attempted", attrs...)
}

// logLevel returns the level of an attempt's log line. err is the error of recording the outcome, or nil. The level is
// that of the first case that applies:
//
//   - warn if the claim was lost,
//   - error if the outcome was not recorded or Herald itself failed,
//   - warn if the delivery is dead,
//   - debug for a free wait without a call, which package waits counts,
//   - info for all others, including failures of the agent.
func (d decision) logLevel(err error) slog.Level {
	switch {
	case isFenced(err):
		return slog.LevelWarn
	case err != nil, d.verdict.Reason == outcome.InternalError && !d.away:
		return slog.LevelError
	case d.Status == outcome.Dead:
		return slog.LevelWarn
	case d.putOff():
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// putOff reports whether the outcome is a free wait and the agent was not called.
func (d decision) putOff() bool { return d.Status == outcome.Waiting && d.Free && !d.Called }

// nextStep returns a text for the operator: how to proceed with the delivery after the outcome d (outcome.NextStep). It
// returns "" if the delivery was delivered or is queued again.
func (a *attempt) nextStep(d decision) string {
	if d.verdict.Reason == "" || d.Status == outcome.Queued { // Queued: another job of the same event replaced this one
		return ""
	}
	agent := a.claim.Agent()
	return outcome.NextStep(d.verdict.Reason, outcome.Subject{
		Delivery: a.claim.ID.String(), ChainID: agent.ChainID,
		Agent:    agent.Argument(),
		Endpoint: d.Endpoint, Tool: a.claim.Job.Action.ToolName, Listed: a.server != nil, Over: d.Status.Final(),
	})
}

// isFailure reports whether the attempt's span shows an error: true, unless the delivery was delivered, skipped or
// queued again, or the outcome is a free wait without a call (putOff).
func (d decision) isFailure() bool {
	switch d.Status {
	case outcome.Delivered, outcome.Skipped, outcome.Queued:
		return false
	}
	return !d.putOff()
}
