package resolver

import (
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/reason"
)

// chooseEntry picks the first entry that may be called, and says in words what was picked and what was passed over.
// entries are ranked, best first. When there are entries and none may be called, the first says why.
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
		return erc8004.MCPEntry{}, "there is no MCP entry", &SkipError{Reason: reason.NoMCPEndpoint}
	}
	return erc8004.MCPEntry{}, "refused: " + joinFirst(passed), first
}

// describeChoice tells which entry was taken, why not a better ranked one, and how many were not looked at.
func describeChoice(e erc8004.MCPEntry, passed []string, left int) string {
	out := excerpt(withoutQuery(e.URL))
	if e.Transport == erc8004.TransportStdio {
		out = "the command " + excerpt(e.Command)
	}
	if len(passed) > 0 {
		out += "; refused before it: " + joinFirst(passed)
	}
	if left > 0 {
		out += fmt.Sprintf("; %s ranked below it", countNoun(left, "other MCP entry is", "other MCP entries are"))
	}
	return out
}

// joinFirst lists the first three.
func joinFirst(of []string) string {
	const most = 3
	out := strings.Join(of[:min(len(of), most)], "; ")
	if n := len(of) - most; n > 0 {
		out += fmt.Sprintf("; and %d more", n)
	}
	return out
}

// CheckTransport tells whether an entry may be called: nil, or *TransportRefusedError. allowed is as
// Config.StdioCommands.
func CheckTransport(e erc8004.MCPEntry, allowed [][]string) error {
	if why := explainRefusal(e, allowed); why != "" {
		return &TransportRefusedError{From: e.From, Transport: e.Transport, Why: why}
	}
	return nil
}

// explainRefusal says why an entry cannot be called, or nothing. Addresses are not judged here: the guard does that
// where they are dialled.
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

// parseProtocol keeps a version only when it is a protocol revision, which is a date: authors write their own product's
// version there too.
func parseProtocol(version string) string {
	if _, err := time.Parse(time.DateOnly, version); err != nil {
		return ""
	}
	return version
}
