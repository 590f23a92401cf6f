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
	TransportStdio = "stdio" // a command; never run unless the operator listed exactly it
	TransportOther = "other" // anything else: ws, an address without a scheme, unknown words
)

// MCPEntry is one way to an agent's MCP server, as its document gives it. Nothing in it is trusted.
type MCPEntry struct {
	Transport   string // one of the Transport constants
	URL         string // as written, trimmed, scheme in lower case; may hold {agentId}, see Substitute
	Command     string
	Args        []string
	Version     string // the protocol revision the author named: a hint
	TokenHeader string
	From        string // "services[2]": where it stood
}

// agentIDPlaceholder is written by some authors who have one document for many agents. Putting the id in its place is a
// convention, not part of the ERC.
const agentIDPlaceholder = "{agentId}"

// ListMCPEntries returns the document's MCP entries, the most promising first: by transport (http, sse, stdio, other),
// then those that look like an endpoint before those that look like a manifest (a path that ends in .json), then in the
// document's order, which puts services before endpoints before capabilities.mcp. Entries without an address or a
// command are left out, and so are repetitions.
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

// Templated says whether the URL holds the placeholder {agentId}.
func (e MCPEntry) Templated() bool { return strings.Contains(e.URL, agentIDPlaceholder) }

// Substitute returns the entry with the agent's id in place of {agentId}.
func (e MCPEntry) Substitute(agentID *big.Int) MCPEntry {
	e.URL = strings.ReplaceAll(e.URL, agentIDPlaceholder, agentID.String())
	return e
}

func (e MCPEntry) rankOf() int {
	rank := 2 * slices.Index([]string{TransportHTTP, TransportSSE, TransportStdio, TransportOther}, e.Transport)
	if u, err := url.Parse(e.URL); err == nil && strings.HasSuffix(strings.ToLower(u.Path), ".json") {
		rank++
	}
	return rank
}

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

// isNamedSSE tells a path that ends in /sse. The ERC has no field for a transport, and this is where servers of the
// 2024-11-05 revision have their stream, also those that have streamable HTTP at /mcp beside it.
func isNamedSSE(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && strings.HasSuffix(strings.ToLower(strings.TrimSuffix(u.Path, "/")), "/sse")
}
