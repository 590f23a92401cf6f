package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/text"
)

// metaKey is where the agent finds what this delivery is (DESIGN §5).
const metaKey = "io.agentherald/delivery"

// toolAnswer is what became of the call.
type toolAnswer struct {
	mcpcall.Answer
	called   bool          // some of a call was written: the agent may have it
	took     time.Duration // the last of these calls, from its beginning to the answer or the failure
	cutShort bool          // the call ran out of less time than it would have had without the job's timeoutMs
	detail   string
}

// callTool makes the prepared call, if enough of the lease is left for it.
func (e *Executor) callTool(ctx context.Context, a *attempt) (toolAnswer, error) {
	timeout, limit := e.callTimeout(a)
	answer := toolAnswer{called: a.answer.called, took: a.answer.took}
	err := e.Authorizer.WithTokenRefresh(ctx, a.auth, func(ctx context.Context, endpoint mcpcall.Endpoint) (err error) {
		if err := e.ensureLease(ctx, a.claim, &a.lease, timeout); err != nil {
			return err
		}
		ctx, cancel := mcpcall.WithTimeout(ctx, timeout)
		defer cancel()
		began := e.Now()
		answer.Answer, err = e.Caller.Call(ctx, endpoint,
			mcpcall.Request{Tool: a.call.tool, Arguments: a.call.arguments, Meta: a.callMeta(),
				Traceparent: a.formatTraceparent()})
		took := e.Now().Sub(began)
		e.Metrics.countCall(a.claim.Job.Action.ToolName, err == nil && !answer.IsError, took)
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

// callTimeout is how long the call may take, and how long it might without the job's timeoutMs.
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

// callMeta tells the agent which delivery this is.
func (a *attempt) callMeta() map[string]any {
	about := map[string]any{
		"id": a.claim.ID.String(), "key": a.claim.Key, "attempt": a.claim.Attempt, "replay": a.claim.Replay,
	}
	if a.call.sanitized || len(a.claim.Job.Sanitized) > 0 {
		about["sanitized"] = true
	}
	return map[string]any{metaKey: about}
}
