package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

// callerAt returns by what right the delivery c calls its endpoint.
func callerAt(c *ledger.Claim, at resolvedEndpoint) admission.Caller {
	switch {
	case !at.unbound:
		return admission.Bound
	case !c.Job.Action.ResolveEndpoint:
		return admission.JobNames
	}
	return admission.Unbound
}

// admitOrigin acquires a permit for the call of a at its origin (admission.Pass.AdmitOrigin), or renews it.
func (e *Executor) admitOrigin(ctx context.Context, a *attempt) error {
	began := e.Now()
	permit, err := a.pass.AdmitOrigin(ctx, a.endpoint.Endpoint, callerAt(a.claim, a.endpoint))
	if err == nil {
		a.permit, a.admitted = permit, began
	}
	return err
}

// ensurePermit makes sure that the permit of a, which counts for one lease (ratelimit.Config.PermitTTL), does not
// expire during a call with this timeout.
func (e *Executor) ensurePermit(ctx context.Context, a *attempt, timeout time.Duration) error {
	if e.Lease-e.Now().Sub(a.admitted) >= timeout {
		return nil
	}
	return e.admitOrigin(ctx, a)
}

// releasePermit releases the permit, and reports the endpoint's health (endpointHealth) to its breaker. permit may be
// nil.
func releasePermit(permit *ratelimit.Permit, answer toolAnswer, failure error) {
	if permit != nil {
		if failure != nil {
			permit.Fault = describeFault(failure)
		}
		permit.Release(endpointHealth(answer, failure))
	}
}

// describeFault describes a failed call for all callers of its endpoint. Unless the server was not reached, that is the
// reason alone: the text may quote the answer to a caller's own headers or arguments.
func describeFault(failure error) string {
	v := classify.Error(failure)
	var call *mcpcall.CallError // other errors, such as that of checkMove, may quote an answer too
	var bad *mcpcall.BadAnswerError
	isUnanswered := errors.As(failure, &call) && call.Status == 0 && call.Code == 0 && !errors.As(call.Err, &bad)
	if v.Reason == outcome.ConnectFailed && isUnanswered && !errors.Is(call.Err, mcpcall.ErrSessionGone) {
		return text.Excerpt(v.Text, 200)
	}
	return string(v.Reason)
}

// endpointHealth returns how the breaker counts a call with this answer and failure. It is Failed if the endpoint did
// not accept the call or did not finish it (outcome.Verdict.Unwell), and OK if the endpoint answered, even if it
// refused the call. It is Neutral if the call does not show whether the endpoint works: the job's own timeout ended the
// call, the failure is not the agent's fault, or the reason is rate_limited: the agent or its authorization server
// answered 429, or the agent asked with input_required to be called later.
func endpointHealth(answer toolAnswer, failure error) ratelimit.Result {
	if failure == nil {
		if !answer.called { // a panic is in progress
			return ratelimit.Neutral
		}
		return ratelimit.OK
	}
	switch v := classify.Error(failure); {
	case answer.cutShort:
		return ratelimit.Neutral
	case v.Unwell:
		return ratelimit.Failed
	case !v.AgentFault, v.Reason == outcome.RateLimited:
		return ratelimit.Neutral // it does not show whether the endpoint works
	}
	return ratelimit.OK
}
