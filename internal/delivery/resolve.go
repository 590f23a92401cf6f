package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/secret"
)

// resolve finds the agent's MCP endpoint: the job's own if it names one, else the registration's.
func (p *Pipeline) resolve(ctx context.Context, a *attempt) (string, error) {
	if !a.job.Action.ResolveEndpoint {
		return p.ownEndpoint(a)
	}
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
func (p *Pipeline) ownEndpoint(a *attempt) (string, error) {
	e := a.job.Action.Endpoint
	if e == nil {
		return "", retry.Fail(retry.InvalidJob, "action.endpoint is missing although resolveEndpoint is false")
	}
	a.target = mcpcall.Endpoint{Transport: e.Transport, URL: e.URL, Command: e.Command, Args: e.Args}
	a.out.Endpoint = display(a.target)
	if len(a.claim.SealedHeaders) == 0 {
		return a.out.Endpoint + " from the job", nil
	}
	plain, err := p.Opener.Open(a.claim.SealedHeaders, headerBinding(a.job, origin(e.URL)))
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
	if e.Transport == mcpcall.TransportStdio {
		return "stdio:" + e.Command
	}
	u, err := url.Parse(e.URL)
	if err != nil {
		return e.Transport + ":(unreadable URL)"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// origin is scheme://host:port of a URL, what a credential is stored for.
func origin(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}
