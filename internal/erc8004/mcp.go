package erc8004

import (
	"math/big"
	"net/url"
	"slices"
	"strings"
)

// Values of MCPEntry.Transport.
const (
	TransportHTTP  = "http"  // streamable HTTP
	TransportSSE   = "sse"   // HTTP with server-sent events, of the 2024-11-05 revision
	TransportStdio = "stdio" // a command; it runs only if the operator listed exactly this command
	TransportOther = "other" // anything else: ws, an address without a scheme, unknown names
)

// MCPEntry is one endpoint of an agent's MCP server in the agent's registration document. Its content is untrusted.
type MCPEntry struct {
	Transport   string // one of the Transport constants
	URL         string // from `endpoint`, `url` or `value`, trimmed, scheme in lower case; may contain {agentId}
	Command     string
	Args        []string
	Version     string // the MCP revision that the document states, which may be wrong
	TokenHeader string // authentication.tokenHeader: the HTTP header in which the agent expects its token
	From        string // position in the document: "services[2]", "endpoints[0]", "capabilities.mcp"
}

// agentIDPlaceholder is replaced by the agent's id in URLs of documents that several agents share. This is a convention
// outside of ERC-8004.
const agentIDPlaceholder = "{agentId}"

// ListMCPEntries returns the MCP entries of the document, each once, in the order in which Herald prefers them: by
// transport (http, sse, stdio, other), then URLs whose path ends in .json last, since they are probably manifests, then
// by the order of the document. It omits entries with neither an address nor a command.
func (r Registration) ListMCPEntries() []MCPEntry {
	var out []MCPEntry
	for _, s := range r.Services {
		if !strings.EqualFold(s.Name, "MCP") || s.URL == "" && s.Command == "" {
			continue
		}
		e := s.MCPEntry
		e.Transport = findTransport(s)
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

// Substitute returns the entry with the agent's id instead of the placeholder {agentId}.
func (e MCPEntry) Substitute(agentID *big.Int) MCPEntry {
	e.URL = strings.ReplaceAll(e.URL, agentIDPlaceholder, agentID.String())
	return e
}

// rankOf returns the rank by which ListMCPEntries sorts; the lowest is the first.
func (e MCPEntry) rankOf() int {
	rank := 2 * slices.Index([]string{TransportHTTP, TransportSSE, TransportStdio, TransportOther}, e.Transport)
	if u, err := url.Parse(e.URL); err == nil && strings.HasSuffix(strings.ToLower(u.Path), ".json") {
		rank++
	}
	return rank
}

// findTransport returns the transport of a service: that of its field transport or, if the field is empty, the one that
// its URL or command suggests. It returns TransportOther if Herald does not support it.
func findTransport(s Service) string {
	web := strings.HasPrefix(s.URL, "https://") || strings.HasPrefix(s.URL, "http://")
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
		case web && isNamedSSE(s.URL):
			return TransportSSE
		case web:
			return TransportHTTP
		case s.URL == "" && !s.OddArgs:
			return TransportStdio
		}
	}
	return TransportOther
}

// isNamedSSE reports whether the endpoint's path ends in /sse, by which servers of MCP revision 2024-11-05 name their
// event stream. ERC-8004 has no field for the transport.
func isNamedSSE(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && strings.HasSuffix(strings.ToLower(strings.TrimSuffix(u.Path, "/")), "/sse")
}
