package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/delivery/ratelimit"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
	"github.com/agentherald/herald/internal/tracecontext"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// DirectConfig makes a DirectCaller.
type DirectConfig struct {
	Caller  Caller  // needed
	Limiter Limiter // of the unbound agents, or of all where these have none; nil: nothing is limited
	// Unbound: Limiter is that of the unbound agents.
	Unbound bool
	// MayRun as in Config. nil: no command may be run.
	MayRun      func(chainID uint64, registry common.Address, agentID string, argv []string) bool
	Metrics     *Metrics      // needed
	CallTimeout time.Duration // needed
	Logger      *slog.Logger  // needed
}

// directMeta is the member of a direct call's _meta, in the place of a delivery's "io.agentherald/delivery".
const directMeta = "io.agentherald/direct"

// DirectCaller calls a tool that somebody asks for, without a delivery: nothing is claimed, tried again or recorded. The
// call gets what one of a job with its own endpoint gets, so small shared limits, and of Herald's credentials none.
type DirectCaller struct{ DirectConfig }

// NewDirectCaller checks the configuration.
func NewDirectCaller(cfg DirectConfig) (*DirectCaller, error) {
	if cfg.Caller == nil || cfg.Metrics == nil || cfg.CallTimeout <= 0 || cfg.Logger == nil {
		return nil, errors.New("delivery: direct calls need a caller, metrics, a call timeout and a logger")
	}
	return &DirectCaller{cfg}, nil
}

// DirectError says why a direct call brought no result.
type DirectError struct {
	Reason reason.Reason
	Text   string        // a sentence for people, without secrets
	Wait   time.Duration // when to come back; 0: nobody said
	Called bool          // the agent may have executed it

	TimedOut bool // it took longer than it may
}

func (e *DirectError) Error() string { return e.Text }

// Call makes the call. Its error is a *DirectError, with the answer if the tool itself said that it failed.
func (d *DirectCaller) Call(ctx context.Context, c job.DirectCall, by string) (mcpcall.Answer, error) {
	at := mcpcall.Endpoint{Transport: c.Endpoint.Transport, URL: c.Endpoint.URL, Headers: c.Endpoint.Headers,
		Command: c.Endpoint.Command, Args: c.Endpoint.Args, Unsigned: true}
	began := time.Now()
	answer, err := d.callLimited(ctx, at, c)
	log := []any{"tool", text.Printable(c.Tool), "endpoint", displayEndpoint(at), "by", by,
		"duration_ms", time.Since(began).Milliseconds()}
	if err == nil {
		d.Logger.Info("direct call answered", log...)
		return answer.Answer, nil
	}
	failed := explainDirect(answer, err)
	d.Logger.Info("direct call failed", append(log, "reason", failed.Reason, "error", failed.Text)...)
	return answer.Answer, failed
}

func (d *DirectCaller) callLimited(ctx context.Context, at mcpcall.Endpoint, c job.DirectCall) (a toolAnswer, err error) {
	if at.Transport == mcpcall.TransportStdio &&
		(d.MayRun == nil || !d.MayRun(0, common.Address{}, "", append([]string{at.Command}, at.Args...))) {
		return a, &mcpcall.TransportRefusedError{Transport: at.Transport,
			Why: "the command is not one that HERALD_STDIO_COMMANDS lists for every agent"}
	}
	permit, err := d.acquirePermit(ctx, at)
	if err != nil {
		return a, err
	}
	defer func() { releasePermit(ctx, permit, a, err) }()

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
	a.called = err == nil || retry.Reached(err)
	var failed *mcpcall.CallError
	a.cutShort = timeout < d.CallTimeout && errors.As(err, &failed) && failed.Timeout
	if err == nil && a.IsError {
		err = retry.Fail(reason.ToolError, "the agent's tool answered with an error: "+text.Excerpt(a.Text, 300))
	}
	return a, err
}

// acquirePermit takes a permit as a job does that names its endpoint itself: whoever may call may name anybody's.
func (d *DirectCaller) acquirePermit(ctx context.Context, at mcpcall.Endpoint) (*ratelimit.Permit, error) {
	if d.Limiter == nil {
		return nil, nil
	}
	origin := limitedOrigin(at, store.Agent{})
	if d.Unbound {
		origin = unboundPrefix + origin
	}
	permit, err := d.Limiter.Acquire(ctx, origin, limitedEndpoint(at, store.Agent{}), "direct:"+uuid.NewString())
	var refused *ratelimit.RefusedError
	switch {
	case errors.As(err, &refused):
		return nil, retry.Pause(refused.Reason, refused.Wait,
			"calls that name their endpoint share small limits: "+refused.Text)
	case err != nil:
		return nil, fmt.Errorf("take a permit at the agent's origin: %w", err)
	}
	return permit, nil
}

func explainDirect(a toolAnswer, err error) *DirectError {
	v := retry.Classify(err)
	failed := &DirectError{Reason: v.Reason, Text: v.Text, Wait: v.Pause, Called: a.called}
	var call *mcpcall.CallError
	if errors.As(err, &call) {
		failed.Wait, failed.TimedOut = max(failed.Wait, call.RetryAfter), call.Timeout
	}
	return failed
}
