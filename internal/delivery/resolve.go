package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/secret"
)

// resolve finds the agent's MCP endpoint: the job's own if it names one, else the servers file's, else the registration's. When
// nothing says which revision the agent speaks, it is what it spoke last.
func (p *Executor) resolve(ctx context.Context, a *attempt) (detail string, err error) {
	listed, ok := a.server.Endpoint()
	switch {
	case !a.job.Action.ResolveEndpoint:
		detail, err = p.ownEndpoint(a)
	case ok:
		a.target, a.out.Endpoint = listed, a.server.Display
		detail = a.out.Endpoint + " from the servers file"
	default:
		detail, err = p.registered(ctx, a)
	}
	a.target.ProtocolHint = cmp.Or(a.target.ProtocolHint, a.claim.Protocol)
	if err == nil {
		err = p.Newcomers.acquireDomain(ctx, a, a.target.URL)
	}
	if err != nil {
		return "", err
	}
	note, err := p.authorize(ctx, a)
	return detail + note, err
}

// authorize gives the endpoint the credential that is stored for it.
func (p *Executor) authorize(ctx context.Context, a *attempt) (note string, err error) {
	a.auth, err = p.Authorizer.Authorize(ctx, a.subject(), a.target)
	if err != nil {
		return "", err
	}
	return a.auth.Note(), nil
}

// subject is what authorization needs to know of the delivery.
func (a *attempt) subject() agentauth.Subject {
	return agentauth.Subject{Agent: a.claim.Agent(), Epoch: a.claim.Epoch, NamedByJob: !a.job.Action.ResolveEndpoint,
		OwnHeaders: a.own, Insist: a.claim.Replay}
}

// registered takes the endpoint of the agent's registration.
func (p *Executor) registered(ctx context.Context, a *attempt) (string, error) {
	if _, ok := p.Chain(a.job.ChainID); !ok {
		return "", retry.Fail(retry.ChainUnconfigured,
			fmt.Sprintf("chain %d has no RPC URL: set RPC_URL_%d and restart the worker", a.job.ChainID, a.job.ChainID))
	}
	t, err := p.Resolver.Resolve(ctx, a.agent())
	if err != nil {
		return "", err
	}
	a.unbound = t.Binding != "" && !t.Bound() // "": the policy is that nobody asks
	a.target = mcpcall.Endpoint{Transport: t.Transport, URL: t.URL, Command: t.Command, Args: t.Args, ProtocolHint: t.ProtocolHint}
	a.out.Endpoint = display(a.target)
	return fmt.Sprintf("%s from %s (%s)%s", a.out.Endpoint, t.DocumentSource, t.From, bindingNote(t)), nil
}

// bindingNote warns of an agent that nothing binds to its endpoint.
func bindingNote(t resolver.Target) string {
	switch t.Binding {
	case resolver.Unbound:
		return ", which nothing binds to the agent"
	case resolver.BindingUnknown:
		return ", and its domain could not be asked whether it is the agent's"
	}
	return ""
}

// ownEndpoint takes the endpoint that the enqueuer named, and the secret headers sealed for its origin.
func (p *Executor) ownEndpoint(a *attempt) (string, error) {
	e := a.job.Action.Endpoint
	if e == nil {
		return "", retry.Fail(retry.InvalidJob, "action.endpoint is missing although resolveEndpoint is false")
	}
	a.target = mcpcall.Endpoint{Transport: e.Transport, URL: e.URL, Command: e.Command, Args: e.Args}
	a.out.Endpoint = display(a.target)
	listed, _ := a.server.Endpoint()
	a.unbound = e.URL == "" || e.URL != listed.URL // whoever enqueues may name anybody's endpoint
	agent := a.agent()
	if argv := append([]string{e.Command}, e.Args...); e.Transport == mcpcall.TransportStdio && p.MayRun != nil &&
		!p.MayRun(agent.ChainID, agent.Registry, agent.ID.String(), argv) {
		return "", &mcpcall.TransportRefusedError{Transport: e.Transport, Why: "the command is not one that HERALD_STDIO_COMMANDS lists for this agent"}
	}
	if len(a.claim.SealedHeaders) == 0 {
		return a.out.Endpoint + " from the job", nil
	}
	plain, err := p.Opener.Open(a.claim.SealedHeaders, headerBinding(a.job, e.URL))
	if err != nil {
		return "", fmt.Errorf("decrypt the job's headers: %w", err)
	}
	var headers map[string]string
	if err := json.Unmarshal(plain, &headers); err != nil {
		return "", retry.Fail(retry.InternalError, "the job's decrypted headers cannot be read")
	}
	a.own = true
	a.target.Headers = make(map[string]secret.Secret, len(headers))
	for name, value := range headers {
		a.target.Headers[name] = secret.New(value)
	}
	return a.out.Endpoint + " from the job, with its own headers", nil
}

// display is an endpoint as pages and logs may show it: no query, no user information, no arguments.
func display(e mcpcall.Endpoint) string {
	if e.URL == "" {
		return e.Transport + ":" + e.Command
	}
	u, err := url.Parse(e.URL)
	if err != nil {
		return e.Transport + ":(unreadable URL)"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// origin is scheme://host:port of a URL, what a credential is stored for.
func origin(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}
