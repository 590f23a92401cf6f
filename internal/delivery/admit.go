package delivery

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentherald/herald/internal/delivery/limits"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
)

// Limits bounds what one origin gets at a time, whoever its agents are (DESIGN §5): calls in flight, rate, breaker.
type Limits interface {
	// Enter takes a place; a *limits.RefusedError says why there is none and when to come back.
	Enter(ctx context.Context, origin, token string) (*limits.Pass, error)
}

// Place is a place at an origin, until Leave.
type Place interface {
	Leave(ctx context.Context, r limits.Result)
}

// admit takes a place at the agent's origin, before anything is said to it: a handshake that hangs costs as much as a call.
func (p *Pipeline) admit(ctx context.Context, a *attempt) error {
	if p.Limits == nil {
		return nil
	}
	pass, err := p.Limits.Enter(ctx, where(a.target), fmt.Sprintf("%s:%d", a.claim.ID, a.claim.No))
	var refused *limits.RefusedError
	if errors.As(err, &refused) {
		return retry.Pause(retry.Reason(refused.Reason), refused.Wait, refused.Text) // the same words (DESIGN §4)
	}
	if err != nil {
		return fmt.Errorf("take a place at the agent's origin: %w", err)
	}
	a.place = pass
	return nil
}

// depart gives the place back and tells how the endpoint did.
func (p *Pipeline) depart(ctx context.Context, a *attempt, err error) {
	if a.place == nil {
		return
	}
	result := limits.OK
	if err != nil {
		switch v := retry.Classify(err); {
		case v.Unwell:
			result = limits.Failed
		case !v.AgentFault || v.Reason == retry.RateLimited:
			result = limits.Neutral // it says nothing about whether the endpoint works
		}
	}
	a.place.Leave(context.WithoutCancel(ctx), result)
}

// where is what limits are kept for: the origin of an endpoint, or the command.
func where(e mcpcall.Endpoint) string {
	if e.Transport == mcpcall.TransportStdio {
		return "stdio:" + e.Command
	}
	return origin(e.URL)
}
