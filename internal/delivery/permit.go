package delivery

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
)

// Limiter limits the calls of all agents at one origin: the calls in flight, and the calls per second. All endpoints of
// the origin share these limits, but each has its own breaker. See docs/design/limits.md.
type Limiter interface {
	// Acquire acquires a permit for one call. token identifies the attempt: a second Acquire with the same token uses
	// no further permit. If the limiter refuses, the error is a *ratelimit.RefusedError with the reason and the time
	// after which the delivery may try again.
	Acquire(ctx context.Context, origin, endpoint, token string) (*ratelimit.Permit, error)
}

// acquirePermit acquires a permit for a call to the endpoint, at its origin. If there is no limiter, it returns nil and
// no error. If the limiter refuses, the error is a free wait. runAttempt calls acquirePermit before the first request,
// because a hanging handshake costs as much as a call.
//
// Unbound agents, and jobs that name their endpoint, have separate, small limits and breakers at each origin. Anyone
// can create such agents and jobs, so they must not use up the limits of the agents to which the endpoint belongs.
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
		return nil, outcome.Pause(refused.Reason, refused.Wait, why+refused.Text)
	case err != nil:
		return nil, fmt.Errorf("take a permit at the agent's origin: %w", err)
	}
	return permit, nil
}

// unboundPrefix begins the limiter's keys for unbound agents. No origin begins with it, so these keys differ from those
// of other agents in the same Redis.
const unboundPrefix = "unbound:"

// releasePermit releases the permit, and reports the endpoint's health (endpointHealth) to its breaker. permit may be
// nil.
func releasePermit(ctx context.Context, permit *ratelimit.Permit, answer toolAnswer, failure error) {
	if permit != nil {
		permit.Release(ctx, endpointHealth(answer, failure))
	}
}

// endpointHealth returns how the breaker counts a call with this answer and failure. It is Failed if the endpoint did
// not accept the call or did not finish it (outcome.Verdict.Unwell), and OK if the endpoint answered, even if it refused
// the call. It is Neutral if the call does not show whether the endpoint works: the job's own timeout ended the call,
// the failure is not the agent's fault, or the reason is rate_limited: the agent or its authorization server answered
// 429, or the agent asked with input_required to be called later.
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

// DescribeBreaker returns the state of the breaker for calls to this address, a URL, as this process last saw it:
// "closed", "open" or "half_open" (ratelimit.Limiter.Breaker), or "" if this process remembers no call to the URL. The
// parameter unbound is the limiter of unbound agents, and limits is the limiter of all other agents, or of all agents
// if unbound is nil. If both limiters have a breaker for the URL, and that of unbound agents is open or half-open, the
// result is its state. Otherwise the result is the state of the other breaker.
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

// limitedOrigin returns the key by which the limiter counts the calls at the endpoint e: the origin of its URL, or the
// transport and program of a command, or "" for an invalid URL. For a command in the servers file, the key names the
// agent instead, because other agents may run the same program with other arguments.
func limitedOrigin(e mcpcall.Endpoint, agent store.Agent) string {
	switch {
	case e.URL == "" && e.Listed:
		return e.Transport + ":" + agent.FullName()
	case e.URL == "":
		return e.Transport + ":" + e.Command
	}
	u, err := url.Parse(e.URL)
	if err != nil {
		return ""
	}
	return string(netguard.OriginOf(u))
}

// limitedEndpoint returns the key of the breaker of the endpoint e: its origin, path and query, or "" for an invalid
// URL. For a command, the key is the result of limitedOrigin followed by the arguments. The key may contain secrets; the
// limiter stores only its hash.
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
