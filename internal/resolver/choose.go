package resolver

import (
	"math/big"
	"net/url"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
)

// choose picks the first entry that may be called. entries are ranked, best
// first. When there are entries and none may be called, the first says why.
func choose(entries []erc8004.MCPEntry, agentID *big.Int, allowed [][]string) (erc8004.MCPEntry, error) {
	var first error
	for _, e := range entries {
		e = e.Substitute(agentID)
		why := refusal(e, allowed)
		if why == "" {
			return e, nil
		}
		if first == nil {
			first = &TransportRefusedError{From: e.From, Transport: e.Transport, Why: why}
		}
	}
	if first == nil {
		first = &SkipError{Reason: NoMCPEndpoint}
	}
	return erc8004.MCPEntry{}, first
}

// refusal says why an entry cannot be called, or nothing. Addresses are not
// judged here: the guard does that where they are dialled.
func refusal(e erc8004.MCPEntry, allowed [][]string) string {
	switch e.Transport {
	case erc8004.TransportHTTP:
		u, err := url.Parse(e.URL)
		switch {
		case err != nil || u.Hostname() == "":
			return "its address is no URL that can be read"
		case u.User != nil:
			return "its address carries user information"
		}
		return ""
	case erc8004.TransportSSE:
		return "HTTP+SSE endpoints are not called by this version; let the agent register a streamable HTTP endpoint"
	case erc8004.TransportStdio:
		argv := append([]string{e.Command}, e.Args...)
		if slices.ContainsFunc(allowed, func(a []string) bool { return slices.Equal(a, argv) }) {
			return ""
		}
		return "it names a command that the operator did not list; to run it, add exactly it and its arguments to HERALD_STDIO_COMMANDS"
	}
	return "only http, https and listed commands are called"
}

// protocolHint keeps a version only when it is a protocol revision, which is a
// date: authors write their own product's version there too.
func protocolHint(version string) string {
	if _, err := time.Parse(time.DateOnly, version); err != nil {
		return ""
	}
	return version
}
