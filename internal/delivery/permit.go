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

// Limiter bounds what one origin gets at a time, whoever its agents are (DESIGN §5): calls in flight and rate, of which
// each of its endpoints has a share. Each endpoint has a circuit breaker of its own.
type Limiter interface {
	// Acquire takes a permit; a *ratelimit.RefusedError says why there is none and when to come back.
	Acquire(ctx context.Context, origin, endpoint, token string) (*ratelimit.Permit, error)
}

// acquirePermit takes a permit at the agent's origin, before anything is said to it: a handshake that hangs costs as
// much as a call. Agents that nothing binds to their endpoint have small limits of their own there, calls in flight,
// rate and breakers: anybody can mint them, so nothing that they do or run into costs those whose endpoint it is
// anything of theirs. So have jobs that name an endpoint themselves.
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

// unboundPrefix keeps the keys of the unbound agents' limits apart from origins, in the Redis that both lie in: no
// origin begins with it.
const unboundPrefix = "unbound:"

// releasePermit gives the permit back (nil: there is no limiter) and tells the endpoint's circuit breaker how the
// endpoint did.
func releasePermit(ctx context.Context, permit *ratelimit.Permit, answer toolAnswer, failure error) {
	if permit != nil {
		permit.Release(ctx, endpointHealth(answer, failure))
	}
}

func endpointHealth(answer toolAnswer, failure error) ratelimit.Result {
	if failure == nil {
		if !answer.called { // a panic is on its way
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
		return ratelimit.Neutral // it says nothing about whether the endpoint works
	}
	return ratelimit.OK
}

// DescribeBreaker tells how the breaker of an agent's URL stands, as this process saw it last; empty: it has not called
// there lately. Of the two that an endpoint may have, the one of unbound agents counts where it is not closed.
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

// limitedOrigin is what rate limits are kept for: the origin of a URL, however it is spelt, or a command. A command
// that the servers file names is its agent's alone: others run the same program with other arguments, and these may
// hold secrets.
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

// limitedEndpoint is what has a circuit breaker of its own at an origin: the URL, or the command with its arguments. It
// may hold secrets; the limiter keeps only a hash of it.
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
