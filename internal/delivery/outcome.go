package delivery

import (
	"errors"
	"time"

	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/pgerror"
)

// maxTaskWait is the longest wait during which a delivery keeps its task in Redis, where the web UI shows it. A
// delivery that waits longer has no task, and the reconciler dispatches it when the wait is over.
const maxTaskWait = 5 * time.Minute

// decision is the outcome of an attempt, with the classification of its failure.
type decision struct {
	ledger.Outcome
	verdict outcome.Verdict // zero: delivered
	away    bool            // the attempt failed because Postgres or Redis was unavailable
	spooled bool            // the outcome is in Redis, and has to be deleted there after the record
}

// decideOutcome returns the outcome to record for the attempt a, which ended with failure (nil: delivered). For later
// attempts of this process, it also notes whether the agent succeeded or failed (admission.Gates.NoteOutcome), and
// whether the agent refused the credential of the call (Authorizer.ObserveFailure).
func (e *Executor) decideOutcome(a *attempt, failure error) decision {
	d := decision{Outcome: e.describeAttempt(a)}
	if failure == nil {
		d.Status, d.AgentOK, d.Result = outcome.Delivered, true, a.answer.Raw
		if !d.EndpointOfJob {
			e.Admission.NoteOutcome(a.claim.Agent(), true)
		}
		return d
	}

	var unread *spoolError
	d.away = pgerror.Away(failure) || errors.As(failure, &unread)
	if a.event.Gone != nil {
		d.Status, d.Reason, d.Error, d.Gone = outcome.Cancelled, outcome.Reorg, failure.Error(), a.event.Gone
		d.verdict = outcome.Verdict{Reason: outcome.Reorg, Text: failure.Error()}
		return d
	}
	v := e.Authorizer.ObserveFailure(a.auth, failure, classify.Error(failure))
	if v.Unknown && a.policy.OnUnknown == policy.OnUnknownHold {
		v.Text = "it is unknown whether the agent accepted the call, and its policy is onUnknown=hold: " + v.Text
		v.Reason, v.Ending, v.Free = outcome.HeldUnknown, outcome.Held, false
	}
	v.Free = v.Free || unread != nil // the wait for Redis must not use up the attempts
	d.Reason, d.Error, d.Free = v.Reason, v.Text, v.Free || a.spent
	d.Moved = v.Moved && !d.EndpointOfJob && !a.endpoint.Listed
	d.SkipDispatch = v.Limited()
	if v.AgentFault && a.stage.name != "fetch" { // a failed fetch is not the agent's fault: the client chose the file
		d.AgentError = v.Text
		if a.failedByItself(v) {
			e.Admission.NoteOutcome(a.claim.Agent(), false)
		}
	}

	if d.Status = v.Ending; d.Status == outcome.Waiting {
		if v.Free && v.Pause == 0 {
			v.Pause = outcome.BackOff(a.claim.StartedAt.Sub(a.claim.CreatedAt)) // both by Postgres' clock
		}
		d.Status = outcome.Dead
		if delay, more := e.Schedule.Next(a.claim.Budget, v, e.Random()); more {
			d.Status, d.Delay, d.Task = outcome.Waiting, delay, delay <= maxTaskWait
		}
	}
	d.verdict = v
	return d
}

// failedByItself reports whether a failure with verdict v is the agent's own: the agent could not be found or did not
// answer, and neither the job nor a client can have caused that. A job may choose the endpoint, the timeout and the
// tool. An agent may refuse a call because of a client's text, so refusals do not count.
func (a *attempt) failedByItself(v outcome.Verdict) bool {
	return a.claim.Job.Action.ResolveEndpoint && !a.answer.cutShort && (v.Unwell || a.stage.name == "resolve")
}

// describeAttempt returns an outcome with the data of the steps that the attempt has made. Status, reason and wait are
// empty.
func (e *Executor) describeAttempt(a *attempt) ledger.Outcome {
	o := ledger.Outcome{
		Stage: a.stage.name, StepMicros: a.stage.took[:a.stage.ended], Endpoint: a.endpoint.display,
		Elsewhere: a.policy.Disables(), Undecided: a.event.Undecided,
		Rerouted: a.event.Rerouted, NoTurn: a.noTurn, Refuted: a.event.Refuted,
		FileSource: a.file.Source, FileVerification: a.file.Verification,
		FileDisagrees: a.file.Disagrees, FetchFailed: a.file.Failed,
		ToolName: a.call.tool, Arguments: a.call.recorded,
		Called: a.answer.called, CallTook: a.answer.took,
		EndpointOfJob: !a.claim.Job.Action.ResolveEndpoint, Registration: a.endpoint.registration,
	}
	if listing := a.call.listing; listing != nil {
		o.Protocol = listing.Protocol
		if last, ok := e.observed.Get(a.claim.Agent()); !ok || !last.Equal(listing.Listed) {
			o.Tools, o.ServerInfo = ledger.ToolList(tools.Known(listing.Tools)), asJSON(listing.Server)
		}
	}
	if len(a.answer.Raw) > 0 {
		o.Response, o.Protocol = a.answer.Raw, a.answer.Protocol
	}
	return o
}

// holdIfUnknown returns an error that holds the delivery (held_unknown) if an earlier attempt has no outcome and may
// have called the agent, and the policy is onUnknown=hold. Otherwise it returns nil. For a replay it returns nil,
// because an operator decided to repeat the call. The caller calls event.Checker.Check first, which finds out whether
// the chain still has the event of that call.
func (a *attempt) holdIfUnknown() error {
	if !a.claim.InDoubt || a.policy.OnUnknown != policy.OnUnknownHold {
		return nil
	}
	return outcome.Fail(outcome.HeldUnknown, "an earlier attempt ended with its worker, it is unknown whether the "+
		"agent took the call, and the agent's policy is onUnknown=hold: `worker delivery replay` sends it again, "+
		"`worker delivery cancel` ends it")
}
