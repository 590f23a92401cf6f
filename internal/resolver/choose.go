package resolver

import (
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
)

// chooseEntry returns the first of entries that Herald may call, with {agentId} replaced. entries are sorted, the best
// first. The returned text describes the choice and the entries before it. If no entry may be called, the error is the
// *TransportRefusedError of the first one, or a *SkipError if entries is empty. allowed is as in CheckTransport.
func chooseEntry(entries []erc8004.MCPEntry, agentID *big.Int, allowed [][]string) (erc8004.MCPEntry, string, error) {
	var first error
	var passed []string
	for i, e := range entries {
		e = e.Substitute(agentID)
		why := explainRefusal(e, allowed)
		if why == "" {
			return e, describeChoice(e, passed, len(entries)-i-1), nil
		}
		if first == nil {
			first = CheckTransport(e, allowed)
		}
		passed = append(passed, e.From+": "+why)
	}
	if first == nil {
		return erc8004.MCPEntry{}, "there is no MCP entry", &SkipError{Reason: outcome.NoMCPEndpoint}
	}
	return erc8004.MCPEntry{}, "refused: " + text.JoinFirst(passed, 3, "; "), first
}

// describeChoice describes the chosen entry e, the reasons passed why better entries were refused, and left, the number
// of entries after e.
func describeChoice(e erc8004.MCPEntry, passed []string, left int) string {
	out := excerpt(withoutQuery(e.URL))
	if e.Transport == erc8004.TransportStdio {
		out = "the command " + excerpt(e.Command)
	}
	if len(passed) > 0 {
		out += "; refused before it: " + text.JoinFirst(passed, 3, "; ")
	}
	if left > 0 {
		out += fmt.Sprintf("; %s ranked below it", text.Count(left, "other MCP entry is", "other MCP entries are"))
	}
	return out
}

// CheckTransport returns nil if Herald may call the entry, and a *TransportRefusedError otherwise. allowed contains the
// permitted commands, each with all its arguments, as in Config.StdioCommands.
func CheckTransport(e erc8004.MCPEntry, allowed [][]string) error {
	if why := explainRefusal(e, allowed); why != "" {
		return &TransportRefusedError{From: e.From, Transport: e.Transport, Why: why}
	}
	return nil
}

// explainRefusal returns the reason why Herald may not call an entry, or "" if it may. It does not check the IP address
// of a URL, which netguard checks when Herald connects.
func explainRefusal(e erc8004.MCPEntry, allowed [][]string) string {
	switch e.Transport {
	case erc8004.TransportHTTP, erc8004.TransportSSE:
		u, err := url.Parse(e.URL)
		switch {
		case err != nil || u.Hostname() == "":
			return "its address is no URL that can be read"
		case u.User != nil:
			return "its address carries user information"
		}
		return ""
	case erc8004.TransportStdio:
		argv := append([]string{e.Command}, e.Args...)
		if slices.ContainsFunc(allowed, func(a []string) bool { return slices.Equal(a, argv) }) {
			return ""
		}
		return "it names a command that the operator did not list for it; to run it, add exactly it and its " +
			"arguments to HERALD_STDIO_COMMANDS"
	}
	return "only http, https and listed commands are called"
}

// parseProtocol returns version if it is an MCP revision, which is a date, and "" otherwise. In many documents the
// field contains the version of the author's own product.
func parseProtocol(version string) string {
	if _, err := time.Parse(time.DateOnly, version); err != nil {
		return ""
	}
	return version
}
