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
)

// Limits bounds what one origin gets at a time, whoever its agents are (DESIGN §5): calls in flight and rate, of which each of its
// endpoints has a share. Each endpoint has a breaker of its own.
type Limits interface {
	// Acquire takes a permit; a *ratelimit.RefusedError says why there is none and when to come back.
	Acquire(ctx context.Context, origin, endpoint, token string) (*ratelimit.Permit, error)
}

// Permit is one of the calls that an origin may have at a time, until Release.
type Permit interface {
	Release(ctx context.Context, r ratelimit.Result)
}

// admit takes a place at the agent's origin, before anything is said to it: a handshake that hangs costs as much as a call. Agents that
// nothing binds to their endpoint have small limits of their own there, calls in flight, rate and breakers: anybody can mint them, so
// nothing that they do or run into costs those whose endpoint it is anything of theirs. So have jobs that name an endpoint themselves.
func (p *Executor) admit(ctx context.Context, a *attempt) error {
	all, origin, why := p.Limits, a.where(), ""
	if a.unbound && p.Unbound != nil {
		all, origin = p.Unbound, unboundPrefix+origin
		why = "nothing binds this agent to its endpoint, so it shares small limits with others like it: "
		if !a.job.Action.ResolveEndpoint {
			why = "the job names its endpoint itself, so it shares small limits with others like it: "
		}
	}
	if all == nil {
		return nil
	}
	pass, err := all.Acquire(ctx, origin, a.endpoint(), fmt.Sprintf("%s:%d", a.claim.ID, a.claim.No))
	if err != nil {
		return notAdmitted(err, why)
	}
	a.place = pass
	return nil
}

// unboundPrefix keeps the keys of the unbound agents' limits apart from origins, in the Redis that both lie in: no origin begins with it.
const unboundPrefix = "unbound:"

// notAdmitted makes a refused place a free wait.
func notAdmitted(err error, why string) error {
	var refused *ratelimit.RefusedError
	if errors.As(err, &refused) {
		return retry.Pause(retry.Reason(refused.Reason), refused.Wait, why+refused.Text) // the same words (DESIGN §4)
	}
	return fmt.Errorf("take a place at the agent's origin: %w", err)
}

// depart gives the place back and tells how the endpoint did.
func (p *Executor) depart(ctx context.Context, a *attempt, err error) {
	if a.place == nil {
		return
	}
	result := ratelimit.OK
	if err != nil {
		switch v := retry.Classify(err); {
		case v.Unwell && !a.hurried:
			result = ratelimit.Failed
		case a.hurried, !v.AgentFault || v.Reason == retry.RateLimited:
			result = ratelimit.Neutral // it says nothing about whether the endpoint works
		}
	}
	a.place.Release(context.WithoutCancel(ctx), result)
}

// where is the origin that limits are kept for. A command that the servers file names is its agent's alone: others run the same program with other
// arguments, and these may hold secrets.
func (a *attempt) where() string {
	if a.target.Listed && a.target.URL == "" {
		agent := a.claim.Agent()
		return fmt.Sprintf("%s:%d:%s:%s", a.target.Transport, agent.ChainID, agent.Registry, agent.ID)
	}
	return where(a.target)
}

// endpoint is what has a breaker of its own at where: the URL, or the command with its arguments. It may hold secrets; limits keep
// only a hash of it.
func (a *attempt) endpoint() string {
	if a.target.URL == "" {
		return strings.Join(append([]string{a.where()}, a.target.Args...), "\x00")
	}
	u, err := url.Parse(a.target.URL)
	if err != nil {
		return ""
	}
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	return netguard.Origin(u) + path + "?" + u.RawQuery
}

// where is the origin of an endpoint, however it is spelt, or its command.
func where(e mcpcall.Endpoint) string {
	if e.URL == "" {
		return e.Transport + ":" + e.Command
	}
	u, err := url.Parse(e.URL)
	if err != nil {
		return ""
	}
	return netguard.Origin(u)
}
