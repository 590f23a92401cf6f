package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/store/ledger"
)

// resolvedEndpoint is the endpoint at which the agent is called.
type resolvedEndpoint struct {
	mcpcall.Endpoint
	display    string // for pages and logs: without query, user information and arguments
	source     string // where the endpoint was found, as the end of a phrase, such as " from the job"
	ownHeaders bool   // the headers for the endpoint come from the job
	// unbound: the agent is unbound, or the job names an endpoint that the servers file does not list for the agent.
	// The small limits of unbound agents apply.
	unbound bool
	// registration is set if the endpoint was resolved now, so that it is stored about once per resolution.
	registration *ledger.Registration
}

// resolveEndpoint returns the MCP endpoint at which the agent is called: the job's own endpoint, or else that in the
// servers file (a.server, which may be nil), or else that in the agent's registration. If the source does not state the
// protocol revision, found.ProtocolHint is the revision that the agent used last.
func (e *Executor) resolveEndpoint(ctx context.Context, a *attempt) (found resolvedEndpoint, err error) {
	var listed mcpcall.Endpoint
	c, ok := a.claim, false
	if a.server != nil {
		listed, ok = a.server.Endpoint()
	}
	switch {
	case !c.Job.Action.ResolveEndpoint:
		found, err = e.jobEndpoint(c, listed)
	case ok:
		found = resolvedEndpoint{Endpoint: listed, display: a.server.Display, source: " from the servers file"}
	default:
		found, err = e.registeredEndpoint(ctx, a, false)
	}
	found.ProtocolHint = cmp.Or(found.ProtocolHint, c.Protocol)
	return found, err
}

// checkMove returns failure, the error of a call at an endpoint that may come from the cache. If that error would end
// the delivery, and the agent may have moved, checkMove reads the agent's registration. It returns another error if the
// registration cannot be read, or names no endpoint or another one: then the next attempt calls the new endpoint.
func (e *Executor) checkMove(ctx context.Context, a *attempt, failure error) error {
	if failure == nil || !a.claim.Job.Action.ResolveEndpoint || a.endpoint.Listed || a.endpoint.registration != nil {
		return failure
	}
	if v := classify.Error(failure); !v.Moved || v.Ending != outcome.Rejected {
		return failure
	}
	now, err := e.registeredEndpoint(ctx, a, true)
	switch {
	case err != nil && classify.Error(err).Ending == outcome.Waiting: // as a failure that counts, because of the call
		return outcome.Fail(outcome.ConnectFailed, failure.Error()+". Whether the agent moved is unknown: "+err.Error())
	case err != nil:
		return err
	case now.Transport == a.endpoint.Transport && now.URL == a.endpoint.URL:
		return failure
	}
	return outcome.Fail(outcome.ConnectFailed, "the agent moved to "+now.display+"; at its former endpoint, "+
		failure.Error())
}

// registeredEndpoint returns the endpoint in the agent's registration, which it finds through the identity registry.
// anew means that a cached endpoint may be outdated (resolver.Agent). The error has the reason chain_unconfigured if
// the chain has no RPC URL.
func (e *Executor) registeredEndpoint(ctx context.Context, a *attempt, anew bool) (resolvedEndpoint, error) {
	c := a.claim
	if _, ok := e.Chain(c.Job.ChainID); !ok {
		return resolvedEndpoint{}, outcome.Fail(outcome.ChainUnconfigured,
			fmt.Sprintf("chain %d has no RPC URL: set RPC_URL_%d and restart the worker", c.Job.ChainID, c.Job.ChainID))
	}
	began := e.Now()
	agent := resolver.Agent{ChainID: c.Job.ChainID, Registry: c.Job.IdentityRegistry,
		ID: new(big.Int).Set(c.Job.AgentID), Epoch: c.Epoch, Anew: anew}
	resolving, release := a.pass.AdmitResolution(ctx)
	defer release()
	t, err := e.Resolver.Resolve(resolving, agent)
	if err != nil && !anew && len(t.Steps) == 1 && t.Steps[0].What == "cache" {
		agent.Anew = true // a cached failure may be older than the event, and would end the delivery
		t, err = e.Resolver.Resolve(resolving, agent)
	}
	if err != nil && resolving.Err() != nil && ctx.Err() == nil {
		// There is no slot for a slow resolution. The agent is not charged, because the chain's node may be slow.
		return resolvedEndpoint{}, context.Cause(resolving)
	}
	a.chargeResolution(t.Steps, e.Now().Sub(began), err)
	if err != nil {
		return resolvedEndpoint{}, err
	}
	found := resolvedEndpoint{
		Endpoint: mcpcall.Endpoint{Transport: t.Transport, URL: t.URL, Command: t.Command, Args: t.Args,
			ProtocolHint: t.ProtocolHint},
		source:  fmt.Sprintf(" from %s (%s)%s", t.DocumentSource, t.From, describeBinding(t)),
		unbound: t.Binding != "" && !t.Bound(), // "": HERALD_BINDING is off, and no agent counts as unbound
	}
	if len(t.Steps) > 1 { // a result from the cache has one step
		found.registration = &ledger.Registration{Name: t.Name, Document: t.DocumentURI, Source: t.DocumentSource,
			From: t.From, Binding: t.Binding}
	}
	found.display = displayEndpoint(found.Endpoint)
	return found, nil
}

// chargeResolution charges a resolution to the agent's effort budget, because the agent's owner chooses the servers of
// the registration, which may be slow. took is the duration of the resolution, and err its error. The time of the
// chain's node, in the first step, is not charged. If the attempt ended during the resolution, steps is empty, and all
// of the time is charged. A quick success is not charged: if no call followed, it would lower the mean cost of the
// agent's attempts.
func (a *attempt) chargeResolution(steps []resolver.Step, took time.Duration, err error) {
	if len(steps) == 1 { // only the chain, or the cache, was read
		return
	}
	if len(steps) > 1 {
		took -= steps[0].Took
	}
	if err != nil || took > time.Second {
		a.pass.Spend(effort.Connections, 0, took)
	}
}

// describeBinding returns a warning, as the end of a phrase, if the agent is unbound, or if its endpoint's domain did
// not answer whether it confirms the agent. Otherwise it returns "".
func describeBinding(t resolver.Target) string {
	switch t.Binding {
	case resolver.Unbound:
		return ", which nothing binds to the agent"
	case resolver.BindingUnknown:
		return ", and its domain could not be asked whether it is the agent's"
	}
	return ""
}

// jobEndpoint returns the endpoint that the job names, with the job's decrypted headers. listed is the agent's endpoint
// in the servers file, or zero. Unless the job names the URL of listed, found.unbound is set, because a job may name
// any endpoint.
func (e *Executor) jobEndpoint(c *ledger.Claim, listed mcpcall.Endpoint) (resolvedEndpoint, error) {
	j, named := c.Job, c.Job.Action.Endpoint
	if named == nil {
		return resolvedEndpoint{}, outcome.Fail(outcome.InvalidJob,
			"action.endpoint is missing although resolveEndpoint is false")
	}
	found := resolvedEndpoint{
		Endpoint: mcpcall.Endpoint{Transport: named.Transport, URL: named.URL,
			Command: named.Command, Args: named.Args},
		source:  " from the job",
		unbound: named.URL == "" || named.URL != listed.URL,
	}
	found.display = displayEndpoint(found.Endpoint)
	if named.Transport == mcpcall.TransportStdio && e.MayRun != nil &&
		!e.MayRun(j.ChainID, j.IdentityRegistry, j.AgentID.String(), append([]string{named.Command}, named.Args...)) {
		return found, &mcpcall.TransportRefusedError{Transport: named.Transport,
			Why: "the command is not one that HERALD_STDIO_COMMANDS lists for this agent"}
	}
	if len(c.SealedHeaders) == 0 {
		return found, nil
	}

	plain, err := e.Keys.Open(c.SealedHeaders, j.HeaderBinding(named.URL))
	if err != nil {
		return found, fmt.Errorf("decrypt the job's headers: %w", err)
	}
	var headers map[string]string
	if err := json.Unmarshal(plain, &headers); err != nil {
		return found, outcome.Fail(outcome.InternalError, "the job's decrypted headers cannot be read")
	}
	found.source, found.ownHeaders = " from the job, with its own headers", true
	found.Headers = make(map[string]secret.Secret, len(headers))
	for name, value := range headers {
		found.Headers[name] = secret.New(value)
	}
	return found, nil
}

// subject returns the agent and the properties of the attempt by which package auth selects a credential.
func (a *attempt) subject() auth.Subject {
	return auth.Subject{
		Agent: a.claim.Agent(), Epoch: a.claim.Epoch, NamedByJob: !a.claim.Job.Action.ResolveEndpoint,
		OwnHeaders: a.endpoint.ownHeaders, Insist: a.claim.Replay,
	}
}

// authorizeEndpoint sets a.auth: the endpoint with the agent's stored credential.
func (e *Executor) authorizeEndpoint(ctx context.Context, a *attempt) (err error) {
	var asked time.Duration
	a.auth, err = e.Authorizer.Authorize(auth.WithCosts(ctx, &asked), a.subject(), a.endpoint.Endpoint)
	a.chargeAuthorization(asked)
	return err
}

// withTokenRefresh makes a request with a.auth. If the agent refuses the access token, it repeats the request with
// another one (auth.Authorizer.WithTokenRefresh).
func (e *Executor) withTokenRefresh(ctx context.Context, a *attempt,
	request func(context.Context, mcpcall.Endpoint) error) error {
	var asked time.Duration
	err := e.Authorizer.WithTokenRefresh(auth.WithCosts(ctx, &asked), a.auth, request)
	a.chargeAuthorization(asked)
	return err
}

// chargeAuthorization charges the requests for an access token, which took asked, to the agent's effort budget, because
// the agent's owner chooses the authorization server, which may be slow. Quick requests are not charged
// (chargeResolution).
func (a *attempt) chargeAuthorization(asked time.Duration) {
	if asked > time.Second {
		a.pass.Spend(effort.Connections, 0, asked)
	}
}

// displayEndpoint returns the endpoint for pages and logs: without the query, user information and arguments, which may
// be secret.
func displayEndpoint(e mcpcall.Endpoint) string {
	if e.URL == "" {
		return e.Transport + ":" + e.Command
	}
	u, err := url.Parse(e.URL)
	if err != nil {
		return e.Transport + ":(unreadable URL)"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}
