package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/agentherald/herald/internal/delivery/effort"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/text"
)

// metaKey is the member of a call's _meta that describes the delivery. See docs/design/calls.md.
const metaKey = "io.agentherald/delivery"

// feedbackTool is the name of the tool that receives one feedback.
const feedbackTool = "agent.receiveFeedback"

// toolAnswer is the agent's answer to the call, with data about the call itself.
type toolAnswer struct {
	mcpcall.Answer
	called   bool          // a call was written, at least in part, so the agent may have received it
	took     time.Duration // duration of the last such call, until the answer or the failure
	cutShort bool          // the call timed out, and the job's timeoutMs shortened its time
	detail   string
}

// callTool makes the prepared call, if enough of the lease is left. The error is the call's failure, or has the reason
// tool_error if the agent's tool answered with an error.
func (e *Executor) callTool(ctx context.Context, a *attempt) (toolAnswer, error) {
	timeout, limit := e.callTimeout(a)
	answer := toolAnswer{called: a.answer.called, took: a.answer.took}
	err := e.Authorizer.WithTokenRefresh(ctx, a.auth, func(ctx context.Context, endpoint mcpcall.Endpoint) (err error) {
		if err := e.ensureLease(ctx, a.claim, &a.lease, timeout); err != nil {
			return err
		}
		if err := e.ensureFollowersLeases(ctx, a, timeout); err != nil {
			return err
		}
		ctx, cancel := mcpcall.WithTimeout(ctx, timeout)
		defer cancel()
		began, connecting := e.Now(), a.effort.costs.Connecting
		answer.Answer, err = e.Caller.Call(ctx, endpoint,
			mcpcall.Request{Tool: a.call.tool, Arguments: a.call.arguments, Meta: a.callMeta(),
				Traceparent: a.formatTraceparent()})
		took := e.Now().Sub(began)
		a.effort.hold.Spend(effort.Calls, 1, took-(a.effort.costs.Connecting-connecting))
		e.Metrics.countCall(a.calledTool(), err == nil && !answer.IsError, took)
		if err == nil || retry.Reached(err) {
			answer.called, answer.took = true, took
		}
		return err
	})
	var failed *mcpcall.CallError
	answer.cutShort = timeout < limit && errors.As(err, &failed) && failed.Timeout
	switch {
	case err != nil:
		return answer, err
	case answer.IsError:
		return answer, retry.Fail(reason.ToolError,
			"the agent's tool answered with an error: "+text.Excerpt(answer.Text, 300))
	case answer.Unreadable:
		answer.detail = "answered, in a form that this version cannot read"
	default:
		answer.detail = "answered: " + text.Excerpt(answer.Text, 120)
	}
	return answer, nil
}

// callTimeout returns how long the call may take, and how long it could take without the job's timeoutMs.
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

// calledTool returns the documented name of the called tool: BatchTool, or the tool that the job names, even if the
// agent calls it by an alias.
func (a *attempt) calledTool() string {
	if a.inBatch() {
		return BatchTool
	}
	return a.claim.Job.Action.ToolName
}

// callMeta returns the call's _meta: under metaKey, a description of the delivery, or a list of those of all deliveries
// in a batch.
func (a *attempt) callMeta() map[string]any {
	if a.inBatch() {
		return map[string]any{metaKey: a.batch.describeMembers(a)}
	}
	return map[string]any{metaKey: a.describeDelivery()}
}

// describeDelivery returns the description of this delivery for the call's _meta: id, key, attempt number, and whether
// it is a replay and was sanitized.
func (a *attempt) describeDelivery() map[string]any {
	about := map[string]any{
		"id": a.claim.ID.String(), "key": a.claim.Key, "attempt": a.claim.Attempt, "replay": a.claim.Replay,
	}
	if a.call.sanitized || len(a.claim.Job.Sanitized) > 0 {
		about["sanitized"] = true
	}
	return about
}
