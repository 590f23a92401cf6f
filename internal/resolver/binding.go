package resolver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/netguard"
)

// Values of Target.Binding: the evidence that an endpoint belongs to its agent. Anyone can register an agent whose
// document names that agent and another party's server, so only the endpoint's side can provide the evidence
// (docs/design/content.md).
const (
	// BoundByOrigin means that the agent's document came over https from the endpoint's own origin.
	BoundByOrigin = "origin"
	// BoundByDomain means that the registrations[] of the endpoint's /.well-known/agent-registration.json contain the
	// agent.
	BoundByDomain = "domain"
	// Unbound means that there is no such evidence, or that the endpoint is a command. The operator's permission to
	// run a command does not show which agent it belongs to.
	Unbound = "none"
	// BindingUnknown means that the document provides no evidence and the domain could not be asked.
	BindingUnknown = "unknown"
)

// Policies of Config.Binding.
const (
	BindingOff     = "off"     // no domain is asked
	BindingWarn    = "warn"    // domains are asked, but unbound endpoints are called as well
	BindingRequire = "require" // unbound endpoints are not called
)

const (
	// wellKnownPath is the file in which a domain lists the agents of its endpoints (ERC-8004, endpoint domain
	// verification).
	wellKnownPath = "/.well-known/agent-registration.json"
	// bindingLimit bounds that file, in bytes.
	bindingLimit = 64 << 10
	// bindingTimeout bounds the request. A slow domain is asked again when its agent is resolved again.
	bindingTimeout = 5 * time.Second
	// unknownTTL is the longest time for which BindingUnknown is cached.
	unknownTTL = time.Minute
)

// Bound reports whether there is evidence that the endpoint belongs to the agent.
func (t Target) Bound() bool {
	return t.Binding == BoundByOrigin || t.Binding == BoundByDomain
}

// DescribeBinding describes the evidence for display.
func (t Target) DescribeBinding() string {
	switch t.Binding {
	case BoundByOrigin:
		return "bound: the endpoint's own origin serves the registration document"
	case BoundByDomain:
		return "bound: the endpoint's domain names this agent"
	case Unbound:
		return "not bound: nothing on the endpoint's side names this agent; all such agents of an origin share small limits of their own"
	case BindingUnknown:
		return "not known to be bound: the endpoint's domain could not be asked just now"
	}
	return "its binding was not checked"
}

// isServedByEndpoint reports whether the endpoint's own origin serves the document, and the document is about this
// agent. A document that lists other agents but not this one does not count: anyone can register an agent with
// another agent's tokenURI.
func isServedByEndpoint(a Agent, doc ipfs.Document, reg erc8004.Registration, endpoint string) bool {
	if doc.Source != ipfs.SourceHTTPS || doc.Origin == "" || doc.Origin != originOf(endpoint) {
		return false
	}
	return reg.NamesAgent(a.ChainID, a.Registry, a.ID) ||
		!slices.ContainsFunc(reg.Registrations, func(r erc8004.BackReference) bool { return r.AgentID != nil })
}

// domainVerdict is a domain's answer about an agent.
type domainVerdict struct {
	binding string // BoundByDomain, Unbound, BindingUnknown
	asked   string // the URL
	why     string // the answer, for display
	err     error  // set for BindingUnknown
}

// checkBinding determines t.Binding and applies the policy. It returns an error only because of the policy or the end
// of ctx: *UnboundError, or a wrapped *ipfs.UnavailableError if the binding is unknown.
func (r *Resolver) checkBinding(ctx context.Context, a Agent, t *Target, w *trace) error {
	switch {
	case t.Binding == BoundByOrigin:
		w.addStep("binding", "the document's origin", "the endpoint's own origin serves the document")
		return nil
	case r.cfg.Binding == BindingOff:
		w.addStep("binding", "not asked", "HERALD_BINDING is off, and the endpoint's origin does not serve the "+
			"document")
		return nil
	case t.Transport == erc8004.TransportStdio:
		t.Binding = Unbound
		w.addStep("binding", "HERALD_STDIO_COMMANDS", "it lets the command be run, and does not say whose it is")
		if r.cfg.Binding == BindingRequire {
			return &UnboundError{Endpoint: excerpt(t.Transport + ":" + t.Command)}
		}
		return nil
	}
	v := r.askDomain(ctx, a, t.URL)
	if errors.Is(ctx.Err(), context.Canceled) { // the resolver was closed: this says nothing about the domain
		return fmt.Errorf("binding of agent %s: %w", a.cacheKey(), context.Cause(ctx))
	}
	t.Binding = v.binding
	w.addStep("binding", v.asked, v.why)
	switch {
	case r.cfg.Binding != BindingRequire || t.Bound():
		return nil
	case v.binding == BindingUnknown:
		return fmt.Errorf("it is not known whether the endpoint is the agent's, which HERALD_BINDING=require asks "+
			"for: %w", v.err)
	}
	return &UnboundError{Endpoint: excerpt(string(originOf(t.URL))), Asked: v.asked, Why: v.why, Entry: formatEntry(a)}
}

// askDomain asks the domain of an http endpoint whether it lists the agent. It uses the endpoint's own scheme and
// port, since the ports of a host may belong to different parties.
//
// If the guard refuses the address, the agent is unbound, but that is no error: the guard decides again when the
// endpoint is dialled.
func (r *Resolver) askDomain(ctx context.Context, a Agent, endpoint string) domainVerdict {
	uri := string(originOf(endpoint)) + wellKnownPath
	v := domainVerdict{asked: excerpt(uri)}
	list := r.readDomain(ctx, uri)
	switch {
	case list.err != nil:
		v.binding, v.why = classifyDomainError(list.err), excerpt(list.err.Error())
		if v.binding == BindingUnknown {
			v.err = newUnavailable(v.asked, list.err)
		}
	case list.source != ipfs.SourceHTTPS && list.source != ipfs.SourceHTTP:
		v.binding, v.why = Unbound, "its address is one of content, which has no domain that could answer for it"
	case list.origin != originOf(endpoint):
		v.binding, v.why = Unbound, "it is redirected to another origin, which cannot answer for this one"
	case list.names.NamesAgent(a.ChainID, a.Registry, a.ID):
		v.binding, v.why = BoundByDomain, "it names the agent"
	default:
		v.binding = Unbound
		v.why = fmt.Sprintf("it names %s, not this agent",
			countNoun(len(list.names.Registrations), "other agent", "other agents"))
	}
	return v
}

// readDomain returns the list of a domain. It uses the cache if the list was fetched less than domainTTL ago.
func (r *Resolver) readDomain(ctx context.Context, uri string) domainList {
	if list, ok := r.domains.Get(uri); ok && r.cfg.Now().Before(list.until) {
		return list
	}
	ctx, cancel := context.WithTimeout(ctx, bindingTimeout)
	defer cancel()
	var list domainList
	doc, err := r.cfg.Fetcher.Fetch(ctx, uri, bindingLimit)
	if err == nil {
		var reg erc8004.Registration
		reg, err = r.parseDocument(ctx, doc)
		// The other parts of the document are ignored.
		list.source, list.origin, list.names.Registrations = doc.Source, doc.Origin, reg.Registrations
	}
	list.err = err
	list.until = r.cfg.Now().Add(domainTTL)
	if err != nil && classifyDomainError(err) == BindingUnknown {
		list.until = r.cfg.Now().Add(domainRest)
	}
	if r.ctx.Err() == nil {
		r.domains.Add(uri, list)
	}
	return list
}

// domainList is a domain's list of its agents.
type domainList struct {
	names  erc8004.Registration
	source string
	origin netguard.Origin
	err    error // why the list could not be read
	until  time.Time
}

const (
	// domainTTL is how long a domain's list is cached, for all agents. So registering a thousand agents at another
	// party's server does not cause a thousand requests to it.
	domainTTL = time.Minute
	// domainRest is how long a failure to ask a domain is cached.
	domainRest = 15 * time.Second
	// maxDomains bounds the number of cached lists. Each is at most bindingLimit bytes.
	maxDomains = 256
)

// classifyDomainError returns Unbound if the domain does not list the agent, and BindingUnknown if it could not be
// asked.
func classifyDomainError(err error) string {
	var (
		none    *ipfs.NoDocumentError
		invalid *ipfs.InvalidError
		large   *ipfs.TooLargeError
		absent  *ipfs.NotFoundError
		blocked *netguard.BlockedError
		badURL  *netguard.RefusedURLError
		problem *erc8004.DocumentError
		away    *ipfs.UnavailableError
	)
	if errors.As(err, &problem) || errors.As(err, &away) && isRefusal(away.Status) || errors.As(err, &none) ||
		errors.As(err, &invalid) || errors.As(err, &large) || errors.As(err, &absent) ||
		errors.As(err, &blocked) || errors.As(err, &badURL) {
		return Unbound
	}
	return BindingUnknown
}

// isRefusal reports whether a status means that the server does not serve such a file, as opposed to a temporary
// failure. MCP servers answer 401 or 405 to a GET of any path.
func isRefusal(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// newUnavailable converts an error of asking a domain to an *ipfs.UnavailableError, which is retried.
func newUnavailable(uri string, err error) error {
	var away *ipfs.UnavailableError
	if errors.As(err, &away) {
		return away
	}
	return &ipfs.UnavailableError{URI: uri, Err: err}
}

// originOf returns the origin of an endpoint that explainRefusal accepted.
func originOf(endpoint string) netguard.Origin {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return netguard.OriginOf(u)
}

// formatEntry returns the entry of registrations[] that names an agent, as JSON.
func formatEntry(a Agent) string {
	return fmt.Sprintf(`{"agentId":%s,"agentRegistry":"eip155:%d:%s"}`, a.ID, a.ChainID, a.Registry.Hex())
}
