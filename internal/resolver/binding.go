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

// What binds an agent to its endpoint: Target.Binding. Anybody can register an agent whose document names that agent
// and somebody else's server, so only the endpoint's side can bind (reference erc8004.md §3.4).
const (
	// BoundByOrigin: the agent's document came over https from the endpoint's own origin.
	BoundByOrigin = "origin"
	// BoundByDomain: the registrations[] of the endpoint's /.well-known/agent-registration.json name the agent.
	BoundByDomain = "domain"
	// Unbound: neither, or the endpoint is a command: that an operator lets it be run does not say whose it is.
	Unbound = "none"
	// BindingUnknown: the document does not bind, and the domain could not be asked just now.
	BindingUnknown = "unknown"
)

// Policies of Config.Binding.
const (
	BindingOff     = "off"     // no domain is asked
	BindingWarn    = "warn"    // asked, and every endpoint is a target
	BindingRequire = "require" // an endpoint that is not bound is no target
)

const (
	// wellKnownPath is where a domain names the agents that its endpoints are of (ERC-8004, endpoint domain
	// verification).
	wellKnownPath = "/.well-known/agent-registration.json"
	// bindingLimit bounds that file, in bytes.
	bindingLimit = 64 << 10
	// bindingTimeout bounds the asking; a domain that is slow is asked again when its agent is resolved again.
	bindingTimeout = 5 * time.Second
	// unknownTTL is the longest that BindingUnknown is believed.
	unknownTTL = time.Minute
)

// Bound tells whether the agent and its endpoint are known to belong together.
func (t Target) Bound() bool {
	return t.Binding == BoundByOrigin || t.Binding == BoundByDomain
}

// DescribeBinding tells what binds the agent to its endpoint.
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
	return "nobody was asked whether it is bound"
}

// isServedByEndpoint tells whether a document is the word of the endpoint's own origin about this agent. One that names
// agents, and not this one, is somebody else's: anybody can mint an agent whose tokenURI is that of another.
func isServedByEndpoint(a Agent, doc ipfs.Document, reg erc8004.Registration, endpoint string) bool {
	if doc.Source != ipfs.SourceHTTPS || doc.Origin == "" || doc.Origin != originOf(endpoint) {
		return false
	}
	return reg.NamesAgent(a.ChainID, a.Registry, a.ID) ||
		!slices.ContainsFunc(reg.Registrations, func(r erc8004.BackReference) bool { return r.AgentID != nil })
}

// domainVerdict is what a domain says of an agent.
type domainVerdict struct {
	binding string // BoundByDomain, Unbound, BindingUnknown
	asked   string // the URL
	why     string // what it answered, for people
	err     error  // for BindingUnknown
}

// checkBinding finds out what binds the agent to t's endpoint, and applies the policy. Only the policy and the end of
// ctx make an error: *UnboundError; for what is not known *ipfs.UnavailableError, wrapped.
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

// askDomain asks the domain of an http endpoint whether it knows the agent. It is asked over the endpoint's own scheme
// and port, since whoever has one port of a host need not have the others.
//
// An address that the guard refuses is no binding, and nothing more: the endpoint itself is judged where it is dialled.
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

// readDomain brings the list of a domain, from memory when it was had less than domainTTL ago.
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
		list.source, list.origin, list.names.Registrations = doc.Source, doc.Origin, reg.Registrations // nothing else of it counts
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

// domainList is what a domain says of its agents.
type domainList struct {
	names  erc8004.Registration
	source string
	origin netguard.Origin
	err    error // why there is none
	until  time.Time
}

const (
	// domainTTL is how long a domain is not asked again, whichever agent it is about: who registers a thousand agents
	// at somebody else's server does not have it asked a thousand times.
	domainTTL = time.Minute
	// domainRest is the same for one that could not be asked.
	domainRest = 15 * time.Second
	// maxDomains bounds the lists remembered, each of bindingLimit at most.
	maxDomains = 256
)

// classifyDomainError tells a domain that says nothing of the agent from one that could not be asked.
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

// isRefusal tells a server that does not serve such a file from one that cannot now: MCP servers answer 401 or 405 to a
// GET of whatever path.
func isRefusal(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// newUnavailable makes an error of the content's kind, which is retried, of whatever kept a domain from being asked.
func newUnavailable(uri string, err error) error {
	var away *ipfs.UnavailableError
	if errors.As(err, &away) {
		return away
	}
	return &ipfs.UnavailableError{URI: uri, Err: err}
}

// originOf is the origin of an endpoint that refusal let through.
func originOf(endpoint string) netguard.Origin {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return netguard.OriginOf(u)
}

// formatEntry is the entry of registrations[] that names an agent, as JSON.
func formatEntry(a Agent) string {
	return fmt.Sprintf(`{"agentId":%s,"agentRegistry":"eip155:%d:%s"}`, a.ID, a.ChainID, a.Registry.Hex())
}
