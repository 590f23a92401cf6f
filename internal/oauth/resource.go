package oauth

import (
	"context"
	"errors"
	"net/url"
	"strings"
)

// Resource is a protected MCP server as it describes itself (RFC 9728).
type Resource struct {
	URL     string   // value of the resource parameter (RFC 8707), as the document spells it
	Issuers []string // authorization servers, never empty; as they are spelled
	Scopes  []string // scopes_supported
	Legacy  bool     // it has no document: the fallback of MCP 2025-03-26, the one issuer is its origin
}

// Resource finds out what protects an agent: from the document that its challenge names, which has to be of the
// agent's own origin, else from the well-known places, with the agent's path and without. What is found must be about
// this agent (RFC 9728 §3.3): the same origin, and its path or one above. An agent without any document is a Legacy
// one. Errors: *MetadataError, *UnavailableError.
func (c *Client) Resource(ctx context.Context, mcpURL string, ch Challenge) (Resource, error) {
	mcpURL, _, _ = strings.Cut(mcpURL, "#")
	if u, err := url.Parse(mcpURL); err == nil {
		mcpURL = u.String() // letters of a path are escaped, as they are when it is called
	}
	agent, err := parseURL(mcpURL)
	if err != nil {
		return Resource{}, &MetadataError{URL: "the agent", Problem: "its URL " + err.Error()}
	}
	const wellKnownName = "oauth-protected-resource"
	root := wellKnownURL(originOf(agent), wellKnownName, "")
	// The agent's path is in no error: it may hold a secret.
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
	var m *MetadataError
	if errors.As(err, &m) && m.Missing && ch.Metadata == "" {
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

// checkOrigin refuses a document that the agent has elsewhere: whoever can write a challenge must not send us anywhere.
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

// readResource reads the document of an agent. Errors are clauses.
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

// isSameOrAbove tells whether a URL of the agent's origin is the agent's or one above, by whole segments.
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

// ScopeFor is the scope to ask for: the challenge's, else all that the resource knows, else none (MCP, scope
// selection strategy).
func (r Resource) ScopeFor(ch Challenge) string {
	if ch.Scope != "" {
		return ch.Scope
	}
	return cleanScope(strings.Join(r.Scopes, " "))
}
