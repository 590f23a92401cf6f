package oauth

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
)

// Resource is the self-description of a protected MCP server (RFC 9728).
type Resource struct {
	URL     string   // value of the resource parameter (RFC 8707), exactly as in the document
	Issuers []string // authorization servers, exactly as in the document; never empty
	Scopes  []string // scopes_supported
	Legacy  bool     // there is no document: MCP 2025-03-26 applies, and the only issuer is the agent's origin
}

// Resource finds the resource metadata of an agent. It reads the document that the challenge names, which must have the
// agent's origin, or else the well-known locations with and without the agent's path. The document must describe this
// agent (RFC 9728 §3.3): it must have the same origin, and the agent's path or a parent path. An agent without a
// document is Legacy. Errors are *MetadataError and *UnavailableError.
func (c *Client) Resource(ctx context.Context, mcpURL string, ch Challenge) (Resource, error) {
	mcpURL, _, _ = strings.Cut(mcpURL, "#")
	if u, err := url.Parse(mcpURL); err == nil {
		mcpURL = u.String() // escapes the path in the same way as a call does
	}
	agent, err := parseURL(mcpURL)
	if err != nil {
		return Resource{}, &MetadataError{URL: "the agent", Problem: "its URL " + err.Error()}
	}
	const wellKnownName = "oauth-protected-resource"
	root := wellKnownURL(originOf(agent), wellKnownName, "")
	// Errors do not contain the agent's path, which may contain a secret.
	name, addresses := root, []string{wellKnownURL(originOf(agent), wellKnownName, agent.EscapedPath())}
	switch {
	case ch.Metadata != "":
		if err := checkOrigin(ch.Metadata, agent); err != nil {
			return Resource{}, err
		}
		name, addresses = originOf(agent)+", where its challenge says", []string{ch.Metadata}
	case addresses[0] != root:
		addresses = append(addresses, root)
	}
	o, err := c.fetchDocument(ctx, name, addresses)
	if m, ok := errors.AsType[*MetadataError](err); ok && m.Missing && ch.Metadata == "" {
		return Resource{URL: originOf(agent) + agent.EscapedPath(), Issuers: []string{originOf(agent)}, Legacy: true},
			nil
	}
	if err != nil {
		return Resource{}, err
	}
	r, err := readResource(o, agent)
	if err != nil {
		return Resource{}, &MetadataError{URL: name, Problem: err.Error()}
	}
	return r, nil
}

// checkOrigin rejects a metadata address with another origin, so that a challenge cannot direct requests to other
// hosts.
func checkOrigin(address string, agent *url.URL) error {
	u, err := parseURL(address)
	if err != nil {
		return &MetadataError{URL: originOf(agent), Problem: "the address in its challenge " + err.Error()}
	}
	if originOf(u) != originOf(agent) {
		return &MetadataError{URL: originOf(u),
			Problem: "the challenge of " + originOf(agent) + " leads to another origin"}
	}
	return nil
}

// readResource parses an agent's document. Its errors are clauses.
func readResource(o object, agent *url.URL) (Resource, error) {
	raw, err := o.getText("resource", maxURL)
	if err != nil {
		return Resource{}, err
	}
	about, err := parseURL(raw)
	switch {
	case err != nil:
		return Resource{}, errors.New("its resource " + err.Error())
	case originOf(about) != originOf(agent):
		return Resource{}, errors.New("it is about " + excerpt(originOf(about), maxText) + " and not about " +
			originOf(agent))
	case !isSameOrAbove(about, agent):
		return Resource{}, errors.New("it is about another path of " + originOf(agent))
	}
	r := Resource{URL: raw}
	if r.Issuers, err = o.getTexts("authorization_servers", maxIssuers, maxURL); err != nil {
		return Resource{}, err
	}
	if len(r.Issuers) == 0 {
		return Resource{}, errors.New("it names no authorization server")
	}
	list, err := o.getTexts("scopes_supported", maxNames, maxName)
	if err != nil {
		return Resource{}, err
	}
	r.Scopes = splitScopes(list)
	return r, nil
}

// isSameOrAbove reports whether about, a URL with the agent's origin, is the agent's URL or a parent of it, by whole
// path segments.
func isSameOrAbove(about, agent *url.URL) bool {
	if about.RawQuery != "" && about.RawQuery != agent.RawQuery {
		return false
	}
	above, path := strings.TrimSuffix(about.EscapedPath(), "/"), agent.EscapedPath()
	for _, segment := range strings.Split(strings.ToLower(above), "/") {
		if s := strings.ReplaceAll(segment, "%2e", "."); s == "." || s == ".." {
			return false
		}
	}
	return path == above || strings.HasPrefix(path, above+"/") || above == ""
}

// FindIssuer returns the issuer in the document that is the same as the given one (SameIssuer), or false.
func (r Resource) FindIssuer(issuer string) (named string, ok bool) {
	i := slices.IndexFunc(r.Issuers, func(named string) bool { return SameIssuer(named, issuer) })
	if i < 0 {
		return "", false
	}
	return r.Issuers[i], true
}

// ScopeFor returns the scope to request: the challenge's, else all scopes of the resource, else "" (MCP, scope
// selection strategy).
func (r Resource) ScopeFor(ch Challenge) string {
	if ch.Scope != "" {
		return ch.Scope
	}
	return cleanScope(strings.Join(r.Scopes, " "))
}
