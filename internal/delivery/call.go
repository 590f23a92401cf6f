package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
)

// toolAnswer is the agent's answer to the call of an attempt, with data about the call.
type toolAnswer struct {
	mcpcall.Answer
	called   bool          // at least a part of a call was written, so the agent may have received it
	took     time.Duration // duration of the last such call, until the answer or the failure
	cutShort bool          // the call timed out, and the job's timeoutMs had shortened its timeout
	detail   string        // for display: the answer in short
}

// callTool makes the prepared call of a at the endpoint at. Before it, leases and a permit that are too short for the
// call are extended. It returns the error of the call. If the agent's tool answered with an error, callTool returns
// that answer and an error with the reason tool_error.
func (e *Executor) callTool(ctx context.Context, a *attempt, at mcpcall.Endpoint) (toolAnswer, error) {
	timeout, limit := e.callTimeout(a)
	earlier := toolAnswer{called: a.answer.called, took: a.answer.took}
	if err := e.checkStop(); err != nil {
		return earlier, err
	}
	if err := e.ensureLease(ctx, a.claim, &a.lease, timeout); err != nil {
		return earlier, err
	}
	if err := e.ensureMemberLeases(ctx, a, timeout); err != nil {
		return earlier, err
	}
	if err := e.ensurePermit(ctx, a, timeout); err != nil {
		return earlier, err
	}

	began, connecting := e.Now(), a.pass.Connecting()
	answer, err := e.sendCall(ctx, at, mcpcall.Request{Tool: a.call.tool, Arguments: a.call.arguments,
		Encoded: a.call.encoded, Meta: a.callMeta(), Traceparent: a.spans.Traceparent(a.claim)},
		a.calledTool(), timeout, limit)
	a.pass.Spend(effort.Calls, 1, e.Now().Sub(began)-(a.pass.Connecting()-connecting))
	if !answer.called {
		answer.called, answer.took = earlier.called, earlier.took
	}
	return answer, err
}

// sendCall sends the call r to the endpoint at, and counts it in the metrics under the tool's name label. The call ends
// after timeout. limit is the timeout that it would have if its job named none. If the tool answered with an error,
// sendCall returns that answer and an error with the reason tool_error.
func (e *Executor) sendCall(ctx context.Context, at mcpcall.Endpoint, r mcpcall.Request, label string,
	timeout, limit time.Duration) (a toolAnswer, err error) {
	ctx, cancel := mcpcall.WithTimeout(ctx, timeout)
	defer cancel()
	began := e.Now()
	a.Answer, err = e.Caller.Call(ctx, at, r)
	took := e.Now().Sub(began)
	e.Metrics.countCall(label, err == nil && !a.IsError, took)
	if err == nil || classify.Reached(err) {
		a.called, a.took = true, min(took, timeout) // the timeout ends a little late
	}
	var failed *mcpcall.CallError
	a.cutShort = timeout < limit && errors.As(err, &failed) && failed.Timeout
	switch {
	case err != nil:
	case a.IsError:
		err = outcome.Fail(outcome.ToolError, "the agent's tool answered with an error: "+text.Excerpt(a.Text, 300))
	case a.Unreadable:
		a.detail = "answered, in a form that this version cannot read"
	default:
		a.detail = "answered: " + text.Excerpt(a.Text, 120)
	}
	return a, err
}

// callsAfterStop is how long after StopClaiming a call may begin. The worker waits for that time and the longest call,
// and then cancels what still runs. The agent would be called again for a call that is cut off.
const callsAfterStop = 15 * time.Second

// checkStop returns a free wait if the worker stops and might not wait for the end of another call.
func (e *Executor) checkStop() error {
	if stopped := e.stopped.Load(); stopped == nil || e.Now().Sub(*stopped) <= callsAfterStop {
		return nil
	}
	return outcome.Pause(outcome.AgentBusy, time.Second,
		"the worker stops, and would not wait for the end of the call; any worker may take this one")
}

// callTimeout returns the timeout of the call, and limit, the timeout without the job's timeoutMs: the lower of
// CallTimeout and the timeout in the servers file. The job's timeoutMs can only make the timeout shorter.
func (e *Executor) callTimeout(a *attempt) (timeout, limit time.Duration) {
	limit = e.CallTimeout
	if a.server != nil && a.server.Timeout > 0 {
		limit = min(limit, a.server.Timeout)
	}
	if ms := a.claim.Job.Action.TimeoutMs; ms > 0 {
		return min(limit, time.Duration(ms)*time.Millisecond), limit
	}
	return limit, limit
}

// calledTool returns the tool's name for metrics: tools.Batch for a batch, otherwise the name in the job, even if the
// agent offers the tool under an alias.
func (a *attempt) calledTool() string {
	if a.inBatch() {
		return tools.Batch
	}
	return a.claim.Job.Action.ToolName
}

// callMeta returns the _meta of the call. Its member tools.MetaKey is the description of the delivery or, for a batch,
// the list of the descriptions of all its deliveries, in the order of the tool's list.
func (a *attempt) callMeta() map[string]any {
	if !a.inBatch() {
		return map[string]any{tools.MetaKey: a.describeDelivery()}
	}
	list := []any{a.describeDelivery()}
	for _, f := range a.batch.members {
		list = append(list, f.describeDelivery())
	}
	return map[string]any{tools.MetaKey: list}
}

// describeDelivery returns the description of the delivery for _meta: its id and key, the attempt's number, whether it
// is a replay, and whether Herald removed characters from its texts (sanitized).
func (a *attempt) describeDelivery() map[string]any {
	about := map[string]any{
		"id": a.claim.ID.String(), "key": a.claim.Key, "attempt": a.claim.Attempt, "replay": a.claim.Replay,
	}
	if a.call.sanitized || len(a.claim.Job.Sanitized) > 0 {
		about["sanitized"] = true
	}
	return about
}
