package delivery

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/outcome"
)

// checkDelivery makes all checks that precede the first request to the agent. It returns the error of the first that
// fails, or nil:
//
//   - the chain has the event, confirmed and not revoked (event.Checker.Check).
//   - no earlier attempt has an unknown outcome, or the agent's policy allows a second call (holdIfUnknown).
//   - the delivery has attempts left (checkAttempts).
//   - no filter of the agent's policy skips the event (applyFilters).
//   - the delivery has the turn of its ordering key (checkTurn).
//   - the feedback to which the event refers reached the agent or still may (event.Checker.CheckFeedback).
//   - the agent is enabled (outcome.Agent), and its policy does not pause its calls (checkPause).
//
// Before the first check, the job is only what its sender says. That check replaces it by the event on the chain, so it
// comes first: the later checks rely on the job. An error of the second check replaces an error of the first, unless a
// reorg removed the event. So if the agent may have been called, the delivery is held even while no node answers.
func (e *Executor) checkDelivery(ctx context.Context, a *attempt) (err error) {
	e.beginStage(a, "check")
	err = e.events.Check(ctx, a.claim, a.pass, &a.event)
	if held := a.holdIfUnknown(); held != nil && a.event.Gone == nil {
		return held
	}
	if err != nil {
		return err
	}
	if err = e.checkAttempts(a); err != nil {
		return err
	}
	if err = e.applyFilters(a); err != nil {
		return err
	}
	if err = checkTurn(a); err != nil {
		return err
	}
	if err = e.events.CheckFeedback(ctx, a.claim); err != nil {
		return err
	}
	err = outcome.Agent{FileDisables: a.server.Disables(), Disabled: a.policy.Disables(),
		RowDisables: !a.claim.Enabled}.Judge()
	if err != nil {
		return err
	}
	return e.checkPause(a)
}

// checkAttempts returns an error that ends the delivery (outcome_unknown) if the worker of its last attempt died. The
// reconciler queues such a delivery once more, because Redis may have the spooled outcome of that attempt. The caller
// calls loadSpooledOutcome first.
func (e *Executor) checkAttempts(a *attempt) error {
	a.spent = a.claim.Unfinished && a.claim.Budget > e.Schedule.Attempts()
	if !a.spent {
		return nil
	}
	return outcome.Bar(outcome.Unknown, "the worker of an attempt ended before it could record what happened, and no "+
		"attempts are left")
}

// checkPause returns a free wait (throttled) while the agent's policy pauses its calls. The wait is at most
// maxTaskWait, because a changed policy may end the pause earlier. The pause ends by Postgres' clock, because this
// machine's may be ahead by minutes.
func (e *Executor) checkPause(a *attempt) error {
	now := a.claim.StartedAt.Add(e.Now().Sub(a.ready)) // not later than by Postgres' clock: StartedAt precedes a.ready
	left := a.policy.PauseUntil.Sub(now)
	if left <= 0 {
		return nil
	}
	return outcome.Pause(outcome.Throttled, min(left, maxTaskWait),
		"the agent's policy pauses its calls until "+a.policy.PauseUntil.Format(time.RFC3339))
}

// applyFilters returns an error that skips the delivery (filtered) if a filter of the agent's policy skips the event.
// It returns nil for a replay, because an operator asked for it, and if the agent was or may have been called.
func (e *Executor) applyFilters(a *attempt) error {
	if a.claim.Replay || a.claim.Called {
		return nil
	}
	d, why := a.levels.SkipJob(a.claim.Job)
	if why != "" {
		e.Metrics.CountFiltered(d)
	}
	return outcome.Agent{Filter: why}.Judge()
}

// turnPause is the free wait of a delivery that does not have the turn of its ordering key.
const turnPause = 500 * time.Millisecond

// checkTurn returns nil if the delivery has the turn of its ordering key, or needs none (ledger.Claim.MayCall).
// Otherwise it returns a free wait (behind_earlier).
func checkTurn(a *attempt) error {
	if a.claim.MayCall {
		return nil
	}
	a.noTurn = true
	return outcome.Pause(outcome.BehindEarlier, turnPause,
		"an earlier delivery of this client has not ended: it goes first")
}
