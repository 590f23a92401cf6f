package delivery

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
)

// metaKey is where the agent finds what this delivery is (DESIGN §5).
const metaKey = "io.agentherald/delivery"

// call makes the one call of this attempt, if enough of the lease is left for it.
func (p *Executor) call(ctx context.Context, a *attempt) (string, error) {
	timeout := p.CallTimeout
	if most := a.server.Timeout; most > 0 {
		timeout = min(timeout, most)
	}
	full := timeout
	if ms := a.job.Action.TimeoutMs; ms > 0 {
		timeout = min(timeout, time.Duration(ms)*time.Millisecond)
	}
	answer, err := p.send(ctx, a, timeout)
	if retry.NotATool(err) {
		if changed, refit := p.recompose(ctx, a); refit != nil {
			err = refit
		} else if changed {
			answer, err = p.send(ctx, a, timeout)
		}
	}
	var cut *mcpcall.CallError
	a.hurried = timeout < full && errors.As(err, &cut) && cut.Timeout
	if len(answer.Raw) > 0 {
		a.out.Response, a.out.Protocol = answer.Raw, answer.Protocol
	}
	if err != nil {
		return "", err
	}
	if answer.IsError {
		return "", retry.Fail(retry.ToolError, "the agent's tool answered with an error: "+excerpt(answer.Text, 300))
	}
	a.out.Result = answer.Raw
	if answer.Unreadable {
		return "answered, in a form that this version cannot read", nil
	}
	return "answered: " + excerpt(answer.Text, 120), nil
}

// send calls the tool.
func (p *Executor) send(ctx context.Context, a *attempt, timeout time.Duration) (answer mcpcall.Answer, err error) {
	err = p.Authorizer.WithTokenRefresh(ctx, a.auth, func(ctx context.Context, e mcpcall.Endpoint) (err error) {
		answer, err = p.sendOnce(ctx, a, e, timeout)
		return err
	})
	return answer, err
}

// sendOnce makes sure of the lease and calls the tool.
func (p *Executor) sendOnce(ctx context.Context, a *attempt, e mcpcall.Endpoint, timeout time.Duration) (mcpcall.Answer, error) {
	if err := p.secureLease(ctx, a, timeout); err != nil {
		return mcpcall.Answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := p.Now()
	answer, err := p.Caller.Call(ctx, e, mcpcall.Request{Tool: a.tool.Name, Arguments: a.args, Meta: a.meta()})
	p.Metrics.call(a.job.Action.ToolName, err == nil && !answer.IsError, p.Now().Sub(began))
	a.out.Called = a.out.Called || err == nil || retry.Reached(err)
	return answer, err
}

// secureLease makes sure that the claim outlasts the call: extended when less than call and margin is left, and no call with
// less than the call's own time.
func (p *Executor) secureLease(ctx context.Context, a *attempt, timeout time.Duration) error {
	left := a.leaseLeft(p.Now())
	if left >= timeout+p.LeaseMargin {
		return nil
	}
	// While Postgres is away, what is left is still ours: it must not be spent on asking.
	patience := p.RecordTimeout
	if left > timeout {
		patience = min(patience, left-timeout)
	}
	began := p.Now()
	ask, cancel := context.WithTimeout(ctx, patience)
	err := p.Ledger.Extend(ask, a.claim, p.Lease)
	cancel()
	if err == nil {
		a.began, a.lease = began, p.Lease
	}
	switch {
	case isFenced(err):
	case a.leaseLeft(p.Now()) >= timeout:
		return nil
	case err == nil:
		err = errors.New("extending it took too long")
	}
	return fmt.Errorf("make sure of the lease before the call: %w", err)
}

// meta tells the agent which delivery this is, and carries a trace id of its own.
func (a *attempt) meta() map[string]any {
	about := map[string]any{"id": a.claim.ID.String(), "key": a.claim.Key, "attempt": a.claim.Attempt, "replay": a.claim.Replay}
	if a.cleaned || len(a.job.Sanitized) > 0 {
		about["sanitized"] = true
	}
	return map[string]any{metaKey: about, "traceparent": traceparent()}
}

// traceparent is a fresh W3C trace context: version 00, sampled.
func traceparent() string {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return "00-" + hex.EncodeToString(b[:16]) + "-" + hex.EncodeToString(b[16:]) + "-01"
}
