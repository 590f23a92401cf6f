package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// directMeta is the name of a field in the _meta object of a direct call. It says that Herald verified nothing. A
// direct call has no delivery, so its _meta has no field tools.MetaKey.
const directMeta = "io.agentherald/direct"

// DirectError is the failure of a direct call: a call without a delivery (Executor.CallDirect).
type DirectError struct {
	Reason   outcome.Reason
	Text     string        // a sentence for the operator, without secrets
	Wait     time.Duration // time after which the caller may try again; 0: unknown
	TimedOut bool          // the call exceeded its timeout
}

func (e *DirectError) Error() string { return e.Text }

// CallDirect calls a tool without a delivery: it claims no row, and neither retries nor records the call. It treats the
// call like that of a job that names its own endpoint. So all direct calls share the small limits of unbound agents,
// and none gets credentials that Herald stores. It logs the call with the name of the caller. The error is a
// *DirectError. If the tool itself answered with an error, CallDirect returns that answer and the error.
func (e *Executor) CallDirect(ctx context.Context, c job.DirectCall, caller string) (mcpcall.Answer, error) {
	at := mcpcall.Endpoint{Transport: c.Endpoint.Transport, URL: c.Endpoint.URL, Headers: c.Endpoint.Headers,
		Command: c.Endpoint.Command, Args: c.Endpoint.Args, Unsigned: true}
	began := e.Now()
	answer, err := e.callLimited(ctx, at, c)
	log := []any{"tool", text.Printable(c.Tool), "endpoint", displayEndpoint(at), "by", caller,
		"duration_ms", e.Now().Sub(began).Milliseconds()}
	if err == nil {
		e.Logger.Info("direct call answered", log...)
		return answer.Answer, nil
	}
	failed := explainDirect(err)
	e.Logger.Info("direct call failed", append(log, "reason", failed.Reason, "error", failed.Text)...)
	return answer.Answer, failed
}

// callLimited makes the direct call c with a permit and a timeout. at is the endpoint of c. callLimited returns a
// *mcpcall.TransportRefusedError for a command that MayRun does not allow for every agent: it calls MayRun with zero
// values for the agent, because direct calls name no agent. If MayRun is nil, no command may be run.
func (e *Executor) callLimited(ctx context.Context, at mcpcall.Endpoint, c job.DirectCall) (a toolAnswer, err error) {
	if at.Transport == mcpcall.TransportStdio &&
		(e.MayRun == nil || !e.MayRun(0, common.Address{}, "", append([]string{at.Command}, at.Args...))) {
		return a, &mcpcall.TransportRefusedError{Transport: at.Transport,
			Why: "the command is not one that HERALD_STDIO_COMMANDS lists for every agent"}
	}
	permit, err := e.Origins.Acquire(ctx, at, erc8004.Agent{}, admission.CallNames, "direct:"+uuid.NewString())
	if err != nil {
		return a, err
	}
	defer func() { releasePermit(permit, a, err) }()

	timeout := e.CallTimeout
	if c.TimeoutMs > 0 {
		timeout = min(timeout, time.Duration(c.TimeoutMs)*time.Millisecond)
	}
	return e.sendCall(ctx, at, mcpcall.Request{Tool: c.Tool, Arguments: c.Arguments,
		Meta:        map[string]any{directMeta: map[string]any{"verified": false}},
		Traceparent: tracecontext.FromContext(ctx)}, c.Tool, timeout, e.CallTimeout)
}

// explainDirect returns the *DirectError for a call that returned the error err, which is not nil.
func explainDirect(err error) *DirectError {
	v := classify.Error(err)
	failed := &DirectError{Reason: v.Reason, Text: v.Text, Wait: v.Pause}
	if call, ok := errors.AsType[*mcpcall.CallError](err); ok {
		failed.Wait, failed.TimedOut = max(failed.Wait, call.RetryAfter), call.Timeout
	}
	return failed
}
