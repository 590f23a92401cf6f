package delivery

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/agentherald/herald/internal/delivery/ratelimit"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

// Limiter limits the calls of all agents at one origin: calls in flight, and calls per second. The origin's endpoints
// share both. Each endpoint has its own circuit breaker. See docs/design/limits.md.
type Limiter interface {
	// Acquire acquires a permit for one call. token identifies the attempt: a second request with the same token uses
	// no further permit. If the call is refused, the error is a *ratelimit.RefusedError with the reason and the time
	// after which the delivery may try again.
	Acquire(ctx context.Context, origin, endpoint, token string) (*ratelimit.Permit, error)
}

// acquirePermit acquires a permit at the agent's origin. It must precede the first request, because a hanging handshake
// costs as much as a call. If the limiter refuses the permit, the error is a free wait. Without a limiter the permit is
// nil. Agents that are not bound to their endpoint, and jobs that name their endpoint themselves, have separate, small
// limits and breakers at each origin. Anyone can create such agents and jobs, so they must not use up the limits of the
// agents to which the endpoint belongs.
func (e *Executor) acquirePermit(ctx context.Context, c *store.Claim, at resolvedEndpoint) (*ratelimit.Permit, error) {
	limiter, origin, why := e.Limiter, limitedOrigin(at.Endpoint, c.Agent()), ""
	if at.unbound && e.UnboundLimiter != nil {
		limiter, origin = e.UnboundLimiter, unboundPrefix+origin
		why = "nothing binds this agent to its endpoint, so it shares small limits with others like it: "
		if !c.Job.Action.ResolveEndpoint {
			why = "the job names its endpoint itself, so it shares small limits with others like it: "
		}
	}
	if limiter == nil {
		return nil, nil
	}

	permit, err := limiter.Acquire(ctx, origin, limitedEndpoint(at.Endpoint, c.Agent()),
		fmt.Sprintf("%s:%d", c.ID, c.No))
	var refused *ratelimit.RefusedError
	switch {
	case errors.As(err, &refused):
		return nil, retry.Pause(refused.Reason, refused.Wait, why+refused.Text)
	case err != nil:
		return nil, fmt.Errorf("take a permit at the agent's origin: %w", err)
	}
	return permit, nil
}

// unboundPrefix separates the keys of unbound agents' limits from origins in the same Redis. No origin begins with it.
const unboundPrefix = "unbound:"

// releasePermit releases the permit (nil: there is no limiter) and reports the endpoint's health to its circuit
// breaker.
func releasePermit(ctx context.Context, permit *ratelimit.Permit, answer toolAnswer, failure error) {
	if permit != nil {
		permit.Release(ctx, endpointHealth(answer, failure))
	}
}

// endpointHealth returns how the circuit breaker counts a call: Failed if the endpoint is unwell, OK if it answered,
// even with a refusal of the call, and Neutral if the call does not show whether the endpoint works, for example
// because Herald ended it, or it failed for a reason that is not the agent's fault.
func endpointHealth(answer toolAnswer, failure error) ratelimit.Result {
	if failure == nil {
		if !answer.called { // a panic is in progress
			return ratelimit.Neutral
		}
		return ratelimit.OK
	}
	switch v := retry.Classify(failure); {
	case answer.cutShort:
		return ratelimit.Neutral
	case v.Unwell:
		return ratelimit.Failed
	case !v.AgentFault, v.Reason == reason.RateLimited:
		return ratelimit.Neutral // it does not show whether the endpoint works
	}
	return ratelimit.OK
}

// DescribeBreaker returns the state ("closed", "open", "half_open"; see ratelimit.Limiter.Breaker) of the circuit
// breaker of an agent's URL, as this process last saw it, or "" if this process has no recent call to the URL. limits
// is the limiter of bound agents, and unbound that of unbound agents (nil: limits serves both). If both have a breaker
// for the URL, the state in unbound is returned only if it is not closed.
func DescribeBreaker(address string, limits, unbound *ratelimit.Limiter) string {
	e := mcpcall.Endpoint{URL: address}
	if u, err := url.Parse(address); err != nil || u.Host == "" {
		return ""
	}
	origin, name := limitedOrigin(e, store.Agent{}), limitedEndpoint(e, store.Agent{})
	state := limits.Breaker(origin, name)
	if unbound == nil {
		return state
	}
	if other := unbound.Breaker(unboundPrefix+origin, name); state == "" || other != "" && other != "closed" {
		state = other
	}
	return state
}

// limitedOrigin returns the key of the rate limits: the normalized origin of a URL, or the transport and program of a
// command, or "" for an invalid URL. A command in the servers file has a key of its agent alone: other agents may run
// the same program with other arguments, which may be secret.
func limitedOrigin(e mcpcall.Endpoint, agent store.Agent) string {
	switch {
	case e.URL == "" && e.Listed:
		return fmt.Sprintf("%s:%d:%s:%s", e.Transport, agent.ChainID, agent.Registry, agent.ID)
	case e.URL == "":
		return e.Transport + ":" + e.Command
	}
	u, err := url.Parse(e.URL)
	if err != nil {
		return ""
	}
	return string(netguard.OriginOf(u))
}

// limitedEndpoint returns the key of the circuit breaker: the URL, or the command with its arguments, or "" for an
// invalid URL. The key may contain secrets; the limiter stores only its hash.
func limitedEndpoint(e mcpcall.Endpoint, agent store.Agent) string {
	if e.URL == "" {
		return strings.Join(append([]string{limitedOrigin(e, agent)}, e.Args...), "\x00")
	}
	u, err := url.Parse(e.URL)
	if err != nil {
		return ""
	}
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	return string(netguard.OriginOf(u)) + path + "?" + u.RawQuery
}
