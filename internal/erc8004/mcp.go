package erc8004

import (
	"math/big"
	"net/url"
	"slices"
	"strings"
)

// Transports of an MCP entry.
const (
	TransportHTTP  = "http"  // streamable HTTP
	TransportSSE   = "sse"   // HTTP with server-sent events, of the 2024-11-05 revision
	TransportStdio = "stdio" // a command; it runs only if the operator listed exactly this command
	TransportOther = "other" // anything else: ws, an address without a scheme, unknown names
)

// MCPEntry is one address of an agent's MCP server, from the agent's document. Its content is untrusted.
type MCPEntry struct {
	Transport   string // one of the Transport constants
	URL         string // as written, trimmed, scheme in lower case; may contain {agentId}, see Substitute
	Command     string
	Args        []string
	Version     string // the protocol revision that the author named; only a hint
	TokenHeader string
	From        string // position in the document, for example "services[2]"
}

// agentIDPlaceholder occurs in documents that serve many agents. Replacing it with the agent's id is a convention
// that is not part of ERC-8004.
const agentIDPlaceholder = "{agentId}"

// ListMCPEntries returns the document's MCP entries, the most promising first. It sorts by transport (http, sse,
// stdio, other), then endpoints before manifests (paths that end in .json), then by the document's order, in which
// services precede endpoints and endpoints precede capabilities.mcp. It omits duplicates and entries without an
// address or a command.
func (r Registration) ListMCPEntries() []MCPEntry {
	var out []MCPEntry
	for _, s := range r.Services {
		if !strings.EqualFold(s.Name, "MCP") || s.Endpoint == "" && s.Command == "" {
			continue
		}
		e := MCPEntry{Transport: findTransport(s), URL: s.Endpoint, Command: s.Command, Args: s.Args,
			Version: s.Version, TokenHeader: s.TokenHeader, From: s.From}
		same := func(o MCPEntry) bool {
			return o.Transport == e.Transport && o.URL == e.URL && o.Command == e.Command &&
				slices.Equal(o.Args, e.Args)
		}
		if !slices.ContainsFunc(out, same) {
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b MCPEntry) int { return a.rankOf() - b.rankOf() })
	return out
}

// Templated reports whether the URL contains the placeholder {agentId}.
func (e MCPEntry) Templated() bool { return strings.Contains(e.URL, agentIDPlaceholder) }

// Substitute returns the entry with {agentId} replaced by the agent's id.
func (e MCPEntry) Substitute(agentID *big.Int) MCPEntry {
	e.URL = strings.ReplaceAll(e.URL, agentIDPlaceholder, agentID.String())
	return e
}

// rankOf returns the entry's rank; lower ranks are better.
func (e MCPEntry) rankOf() int {
	rank := 2 * slices.Index([]string{TransportHTTP, TransportSSE, TransportStdio, TransportOther}, e.Transport)
	if u, err := url.Parse(e.URL); err == nil && strings.HasSuffix(strings.ToLower(u.Path), ".json") {
		rank++
	}
	return rank
}

// findTransport derives the transport of a service from its transport field, or if that is empty, from its address.
func findTransport(s Service) string {
	web := strings.HasPrefix(s.Endpoint, "https://") || strings.HasPrefix(s.Endpoint, "http://")
	switch strings.ToLower(strings.TrimSpace(s.Transport)) {
	case "http", "https", "streamable-http", "streamable_http", "streamablehttp", "http-stream":
		if web {
			return TransportHTTP
		}
	case "sse", "http+sse", "http-sse":
		if web {
			return TransportSSE
		}
	case "stdio":
		if s.Command != "" && !s.OddArgs {
			return TransportStdio
		}
	case "":
		switch {
		case web && isNamedSSE(s.Endpoint):
			return TransportSSE
		case web:
			return TransportHTTP
		case s.Endpoint == "" && !s.OddArgs:
			return TransportStdio
		}
	}
	return TransportOther
}

// isNamedSSE reports whether the endpoint's path ends in /sse. ERC-8004 has no field for a transport, and servers of
// the 2024-11-05 revision have their stream at this path, including servers that also offer streamable HTTP at /mcp.
func isNamedSSE(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && strings.HasSuffix(strings.ToLower(strings.TrimSuffix(u.Path, "/")), "/sse")
}
