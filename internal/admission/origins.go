package admission

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
)

// Limiter limits the calls at one origin: the calls in flight, and the calls per second. All endpoints of the origin
// share these limits, but each has its own breaker. See docs/design/limits.md.
type Limiter interface {
	// Acquire acquires a permit for one call. token identifies the attempt: a second Acquire with the same token uses
	// no further permit. If the limiter refuses, the error is a *ratelimit.RefusedError with the reason and the time
	// after which the delivery may try again.
	Acquire(ctx context.Context, origin, endpoint, token string) (*ratelimit.Permit, error)
	// AcquireRate acquires one call of the rate perSecond of the caller with this name. If the call is too early, the
	// error is a *ratelimit.RefusedError.
	AcquireRate(ctx context.Context, name, token string, perSecond float64) error
	// Breaker returns the state of an endpoint's breaker (ratelimit.Limiter.Breaker).
	Breaker(origin, endpoint string) string
}

// Origins are the limits of the calls at each origin.
//
// Anyone can create an unbound agent, or send a job that names its endpoint. Such calls have separate, small limits and
// breakers at each origin, so that they do not use up the limits of the agents to which the endpoint belongs.
type Origins struct {
	Limiter Limiter // nil: no limits
	Unbound Limiter // limits of the callers that are not Bound; nil: Limiter is for all
}

// Caller is by what right a call uses an endpoint.
type Caller int

const (
	Bound     Caller = iota // the domain confirms the agent, or bindings are not checked
	Unbound                 // nothing binds the agent to its endpoint
	JobNames                // the job names its endpoint itself
	CallNames               // a direct call names its endpoint; there is no delivery
)

// sharedLimits ends the text of a refusal, for callers that share small limits.
var sharedLimits = map[Caller]string{
	Unbound:   ". The agent is not known to be bound to its endpoint, so it shares small limits with others like it",
	JobNames:  ". The job names its endpoint itself, so it shares small limits with others like it",
	CallNames: ". Calls that name their endpoint share small limits",
}

// Acquire acquires a permit for a call to the endpoint. token identifies the attempt. If there is no limit, the permit
// is nil. If the origin accepts no call now, the error is a free wait (agent_busy, throttled, breaker_open).
func (o Origins) Acquire(ctx context.Context, e mcpcall.Endpoint, agent erc8004.Agent, by Caller, token string,
) (*ratelimit.Permit, error) {
	limiter, separate := o.Limiter, by != Bound && o.Unbound != nil
	if separate {
		limiter = o.Unbound
	}
	if limiter == nil {
		return nil, nil
	}
	permit, err := limiter.Acquire(ctx, OriginKey(e, agent, separate), endpointKey(e, agent), token)
	var refused *ratelimit.RefusedError
	switch {
	case errors.As(err, &refused):
		why := ""
		if separate || by == CallNames {
			why = sharedLimits[by]
		}
		return nil, outcome.Pause(refused.Reason, refused.Wait, refused.Text+why)
	case err != nil:
		return nil, fmt.Errorf("acquire a permit at the agent's origin: %w", err)
	}
	return permit, nil
}

// acquireRate acquires one call of an agent's own rate. If the call is too early, the error is a free wait (throttled).
func (o Origins) acquireRate(ctx context.Context, agent erc8004.Agent, token string, perSecond float64) error {
	if o.Limiter == nil {
		return nil
	}
	err := o.Limiter.AcquireRate(ctx, ratePrefix+agent.FullName(), token, perSecond)
	var refused *ratelimit.RefusedError
	switch {
	case errors.As(err, &refused):
		return outcome.Pause(outcome.Throttled, refused.Wait, fmt.Sprintf("the agent's policy limits its "+
			"calls to %g a second; this one comes back in %s", perSecond, refused.Wait.Round(100*time.Millisecond)))
	case err != nil:
		return fmt.Errorf("acquire a call of the agent's rate: %w", err)
	}
	return nil
}

// ratePrefix begins the limiter's keys for the rates of agents. No origin begins with it.
const ratePrefix = "rate:"

// DescribeBreaker returns the state of the breaker for calls to this address, a URL, as this process last saw it:
// "closed", "open" or "half_open" (ratelimit.Limiter.Breaker), or "" if this process remembers no call to the URL. If
// both limiters have a breaker for the URL, and that of unbound agents is open or half-open, the result is its state.
// Otherwise the result is the state of the other breaker.
func (o Origins) DescribeBreaker(address string) string {
	e := mcpcall.Endpoint{URL: address}
	if u, err := url.Parse(address); err != nil || u.Host == "" || o.Limiter == nil {
		return ""
	}
	state := o.Limiter.Breaker(OriginKey(e, erc8004.Agent{}, false), endpointKey(e, erc8004.Agent{}))
	if o.Unbound == nil {
		return state
	}
	if other := o.Unbound.Breaker(OriginKey(e, erc8004.Agent{}, true), endpointKey(e, erc8004.Agent{})); state == "" ||
		other != "" && other != "closed" {
		state = other
	}
	return state
}

// unboundPrefix begins the keys of callers with separate limits. No origin begins with it, so these keys differ from
// those of other callers in the same Redis.
const unboundPrefix = "unbound:"

// OriginKey returns the key by which calls at the endpoint e are counted: the origin of its URL, or the transport and
// program of a command, or "" for an invalid URL. For a command in the servers file, the key names the agent instead,
// because other agents may run the same program with other arguments. separate returns the key of callers with separate
// limits (Origins).
func OriginKey(e mcpcall.Endpoint, agent erc8004.Agent, separate bool) string {
	if separate {
		return unboundPrefix + originKey(e, agent)
	}
	return originKey(e, agent)
}

func originKey(e mcpcall.Endpoint, agent erc8004.Agent) string {
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

// endpointKey returns the key of the breaker of the endpoint e: its origin, path and query, or "" for an invalid
// URL. For a command, the key is the result of originKey followed by the arguments. The key may contain secrets; the
// limiter stores only its hash.
func endpointKey(e mcpcall.Endpoint, agent erc8004.Agent) string {
	if e.URL == "" {
		return strings.Join(append([]string{originKey(e, agent)}, e.Args...), "\x00")
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
