package resolver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
)

// Values of Target.Binding: the evidence that an endpoint belongs to its agent. Anyone can register an agent whose
// registration document names another party's server, so only the endpoint's origin can confirm that the endpoint
// belongs to the agent (docs/design/content.md).
const (
	// BoundByOrigin means that the endpoint's origin itself served the agent's registration document over https.
	BoundByOrigin = "origin"
	// BoundByDomain means that the file /.well-known/agent-registration.json of the endpoint's origin lists the agent.
	BoundByDomain = "domain"
	// Unbound means that there is no such evidence, or that the endpoint is a command. HERALD_STDIO_COMMANDS permits a
	// command but does not name the agent to which it belongs.
	Unbound = "none"
	// BindingUnknown means that the origin did not serve the document, and that fetching its list failed temporarily.
	BindingUnknown = "unknown"
)

// Values of Config.Binding. They determine whether the resolver fetches the list of the endpoint's domain, and whether
// it returns an endpoint that is not bound.
const (
	BindingOff     = "off"     // it fetches no lists and returns all endpoints
	BindingWarn    = "warn"    // it fetches lists and returns all endpoints
	BindingRequire = "require" // it fetches lists and returns an error instead of an endpoint that is not bound
)

const (
	// wellKnownPath is the path of a domain's list: the file in which an origin lists the agents of its endpoints
	// (ERC-8004, endpoint domain verification).
	wellKnownPath = "/.well-known/agent-registration.json"
	// bindingLimit is the largest size of the list, in bytes.
	bindingLimit = 64 << 10
	// bindingTimeout bounds fetching the list. If it expires, the binding is BindingUnknown.
	bindingTimeout = 5 * time.Second
	// unknownTTL is the longest time for which a result with BindingUnknown is cached.
	unknownTTL = time.Minute
)

// Bound reports whether there is evidence that the endpoint belongs to the agent: BoundByOrigin or BoundByDomain.
func (t Target) Bound() bool {
	return t.Binding == BoundByOrigin || t.Binding == BoundByDomain
}

// DescribeBinding describes t.Binding in a sentence for display.
func (t Target) DescribeBinding() string {
	switch t.Binding {
	case BoundByOrigin:
		return "bound: the endpoint's own origin serves the registration document"
	case BoundByDomain:
		return "bound: the endpoint's domain names this agent"
	case Unbound:
		return "not bound: nothing on the endpoint's side names this agent; " +
			"all such agents of an origin share small limits of their own"
	case BindingUnknown:
		return "not known to be bound: the endpoint's domain could not be asked just now"
	}
	return "its binding was not checked"
}

// isServedByEndpoint reports whether the endpoint's own origin served the registration document over https, and the
// document is about this agent: it lists the agent in registrations, or lists no agent. Without the second condition,
// anyone could register an agent with the tokenURI of another agent and be bound to that agent's endpoint.
func isServedByEndpoint(a Agent, doc ipfs.Document, reg erc8004.Registration, endpoint string) bool {
	if doc.Source != ipfs.SourceHTTPS || doc.Origin == "" || doc.Origin != originOf(endpoint) {
		return false
	}
	return reg.NamesAgent(a.ChainID, a.Registry, a.ID) ||
		!slices.ContainsFunc(reg.Registrations, func(r erc8004.BackReference) bool { return r.AgentID != nil })
}

// domainVerdict is the result of asking a domain whether an endpoint belongs to an agent.
type domainVerdict struct {
	binding string // BoundByDomain, Unbound, BindingUnknown
	asked   string // the URL of the domain's list
	why     string // the reason for binding, for display
	err     error  // BindingUnknown: the error of fetching the list; otherwise nil
}

// checkBinding determines t.Binding and applies Config.Binding. With BindingRequire it returns an *UnboundError if the
// endpoint is not bound, and a wrapped *ipfs.UnavailableError if the binding is unknown. If ctx was cancelled, it
// returns that error. Otherwise it returns nil.
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

// askDomain determines whether the list of the endpoint's origin contains the agent. The list is at the scheme and port
// of the endpoint, because other ports of the host may belong to other parties.
//
// If netguard blocks the address of the list, the agent is Unbound. That is not an error: netguard checks the endpoint
// itself when it is called.
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
		v.binding = Unbound
		v.why = "it is redirected to another origin or to stored content, which cannot answer for this one"
	case list.names.NamesAgent(a.ChainID, a.Registry, a.ID):
		v.binding, v.why = BoundByDomain, "it names the agent"
	default:
		v.binding = Unbound
		v.why = fmt.Sprintf("it names %s, not this agent",
			text.Count(len(list.names.Registrations), "other agent", "other agents"))
	}
	return v
}

// readDomain returns the domain's list at uri, from the cache if it has not expired there.
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
		var invalid error
		doc, reg, invalid, err = r.parseWhole(ctx, doc, uri, bindingLimit)
		err = cmp.Or(err, invalid)
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

// domainList is the cached result of fetching a domain's list.
type domainList struct {
	names  erc8004.Registration // only Registrations is set
	source string               // ipfs.Document.Source
	origin netguard.Origin      // ipfs.Document.Origin: that of the server that sent the list, after redirects
	err    error                // the error of fetching or parsing the list
	until  time.Time            // when the entry expires
}

const (
	// domainTTL is the time for which a domain's list is cached. All agents use the same cached list. So a thousand
	// agents that name another party's server do not cause a thousand requests to it.
	domainTTL = time.Minute
	// domainRest is the time for which a temporary failure to fetch a list is cached.
	domainRest = 15 * time.Second
	// maxDomains bounds the number of cached lists. Each is at most bindingLimit bytes.
	maxDomains = 256
)

// classifyDomainError returns the binding that follows from an error of readDomain: Unbound if the domain has no valid
// list, and BindingUnknown if the failure may be temporary.
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

// isRefusal reports whether an HTTP status means that the server has no domain's list. It returns true for a status of
// 400 to 499 except temporary ones. MCP servers answer 401 or 405 to a GET of any path.
func isRefusal(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status < 500
}

// newUnavailable returns err as an *ipfs.UnavailableError, the error for content that may be available later. uri is
// the address that could not be fetched.
func newUnavailable(uri string, err error) error {
	var away *ipfs.UnavailableError
	if errors.As(err, &away) {
		return away
	}
	return &ipfs.UnavailableError{URI: uri, Err: err}
}

// originOf returns the origin of an endpoint's URL, or "" if the URL is invalid.
func originOf(endpoint string) netguard.Origin {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return netguard.OriginOf(u)
}

// formatEntry returns the JSON of the entry that a domain's list must contain to bind the agent.
func formatEntry(a Agent) string {
	return fmt.Sprintf(`{"agentId":%s,"agentRegistry":"eip155:%d:%s"}`, a.ID, a.ChainID, a.Registry.Hex())
}
