package delivery

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// DirectConfig configures a DirectCaller.
type DirectConfig struct {
	Caller  Caller // required
	Origins admission.Origins
	// MayRun reports whether the command argv may be run. It is the function of Config.MayRun, called with zero values
	// for the agent, because direct calls name no agent. nil: no command may be run.
	MayRun      func(chainID uint64, registry common.Address, agentID string, argv []string) bool
	Metrics     *Metrics      // required
	CallTimeout time.Duration // required
	Logger      *slog.Logger  // required
}

// directMeta is the name of a field in the _meta object of a direct call. It says that Herald verified nothing. A
// direct call has no delivery, so its _meta has no field tools.MetaKey.
const directMeta = "io.agentherald/direct"

// DirectCaller calls a tool without a delivery: it claims no row, and neither retries nor records the call. It treats
// the call like that of a job that names its own endpoint. So all direct calls share the small limits of unbound
// agents, and none gets credentials that Herald stores.
type DirectCaller struct{ DirectConfig }

// NewDirectCaller validates cfg and returns a DirectCaller.
func NewDirectCaller(cfg DirectConfig) (*DirectCaller, error) {
	if cfg.Caller == nil || cfg.Metrics == nil || cfg.CallTimeout <= 0 || cfg.Logger == nil {
		return nil, errors.New("delivery: direct calls need a caller, metrics, a call timeout and a logger")
	}
	return &DirectCaller{cfg}, nil
}

// DirectError is the failure of a direct call: a call without a delivery (DirectCaller).
type DirectError struct {
	Reason outcome.Reason
	Text   string        // a sentence for the operator, without secrets
	Wait   time.Duration // time after which the caller may try again; 0: unknown
	Called bool          // the agent may have received the call

	TimedOut bool // the call exceeded its timeout
}

func (e *DirectError) Error() string { return e.Text }

// Call makes the direct call c, and logs it with the name of the caller. The error is a *DirectError. If the tool
// itself answered with an error, Call returns that answer and the error.
func (d *DirectCaller) Call(ctx context.Context, c job.DirectCall, caller string) (mcpcall.Answer, error) {
	at := mcpcall.Endpoint{Transport: c.Endpoint.Transport, URL: c.Endpoint.URL, Headers: c.Endpoint.Headers,
		Command: c.Endpoint.Command, Args: c.Endpoint.Args, Unsigned: true}
	began := time.Now()
	answer, err := d.callLimited(ctx, at, c)
	log := []any{"tool", text.Printable(c.Tool), "endpoint", displayEndpoint(at), "by", caller,
		"duration_ms", time.Since(began).Milliseconds()}
	if err == nil {
		d.Logger.Info("direct call answered", log...)
		return answer.Answer, nil
	}
	failed := explainDirect(answer, err)
	d.Logger.Info("direct call failed", append(log, "reason", failed.Reason, "error", failed.Text)...)
	return answer.Answer, failed
}

// callLimited makes the direct call c with a permit and a timeout, and counts it in the metrics. at is the endpoint of
// c. callLimited returns a *mcpcall.TransportRefusedError for a command that MayRun does not allow. If the tool
// answered with an error, err has the reason tool_error.
func (d *DirectCaller) callLimited(ctx context.Context, at mcpcall.Endpoint,
	c job.DirectCall) (a toolAnswer, err error) {
	if at.Transport == mcpcall.TransportStdio &&
		(d.MayRun == nil || !d.MayRun(0, common.Address{}, "", append([]string{at.Command}, at.Args...))) {
		return a, &mcpcall.TransportRefusedError{Transport: at.Transport,
			Why: "the command is not one that HERALD_STDIO_COMMANDS lists for every agent"}
	}
	permit, err := d.Origins.Acquire(ctx, at, store.Agent{}, admission.CallNames, "direct:"+uuid.NewString())
	if err != nil {
		return a, err
	}
	defer func() { releasePermit(permit, a, err) }()

	timeout := d.CallTimeout
	if c.TimeoutMs > 0 {
		timeout = min(timeout, time.Duration(c.TimeoutMs)*time.Millisecond)
	}
	bounded, cancel := mcpcall.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	a.Answer, err = d.Caller.Call(bounded, at, mcpcall.Request{Tool: c.Tool, Arguments: c.Arguments,
		Meta:        map[string]any{directMeta: map[string]any{"verified": false}},
		Traceparent: tracecontext.FromContext(ctx)})
	a.took = time.Since(began)
	d.Metrics.countCall(c.Tool, err == nil && !a.IsError, a.took)
	a.called = err == nil || classify.Reached(err)
	var failed *mcpcall.CallError
	a.cutShort = timeout < d.CallTimeout && errors.As(err, &failed) && failed.Timeout
	if err == nil && a.IsError {
		err = outcome.Fail(outcome.ToolError, "the agent's tool answered with an error: "+text.Excerpt(a.Text, 300))
	}
	return a, err
}

// explainDirect returns the *DirectError for a call that returned the answer a and the error err, which is not nil.
func explainDirect(a toolAnswer, err error) *DirectError {
	v := classify.Error(err)
	failed := &DirectError{Reason: v.Reason, Text: v.Text, Wait: v.Pause, Called: a.called}
	if call, ok := errors.AsType[*mcpcall.CallError](err); ok {
		failed.Wait, failed.TimedOut = max(failed.Wait, call.RetryAfter), call.Timeout
	}
	return failed
}
