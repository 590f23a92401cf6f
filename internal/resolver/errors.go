package resolver

import (
	"fmt"

	"github.com/agentherald/herald/internal/outcome"
)

// SkipError is the error of Resolve for an agent without an endpoint. The error is the same until the agent's
// registration changes.
type SkipError struct {
	Reason outcome.Reason // NoURI, NoDocument, NoMCPEndpoint or AgentNotFound
	Err    error          // the cause; nil if the reason explains the error completely
}

func (e *SkipError) Error() string {
	text := map[outcome.Reason]string{
		outcome.NoURI:         "the agent has no tokenURI",
		outcome.NoDocument:    "the agent has no registration document",
		outcome.NoMCPEndpoint: "the agent's registration lists no MCP endpoint",
		outcome.AgentNotFound: "the registry knows no such agent",
	}[e.Reason]
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", text, e.Err)
	}
	return text
}

func (e *SkipError) Unwrap() error { return e.Err }

// TransportRefusedError is the error of Resolve for an agent whose document has MCP entries, none of which Herald may
// call. It describes the first of them.
type TransportRefusedError struct {
	From      string // position of the entry in the document, such as "services[2]"
	Transport string // of the entry
	Why       string // the reason why it may not be called, a sentence
}

func (e *TransportRefusedError) Error() string {
	return fmt.Sprintf("the agent's MCP entry %s is refused: %s", e.From, e.Why)
}

// UnboundError is the error of Resolve with BindingRequire for an endpoint without evidence that it belongs to the
// agent.
type UnboundError struct {
	Endpoint string // the endpoint's origin, or the command
	Asked    string // the URL of the domain's list; empty for a command, which has no domain
	Why      string // the reason why the list is no evidence, for display
	Entry    string // the entry that the list must contain to bind the agent, as JSON
}

func (e *UnboundError) Error() string {
	if e.Asked == "" {
		return fmt.Sprintf("nothing shows that the command %s is this agent's: HERALD_STDIO_COMMANDS lets it be run "+
			"and does not say whose it is. "+
			"Name the agent and its command in HERALD_SERVERS_FILE", e.Endpoint)
	}
	return fmt.Sprintf("nothing shows that the endpoint %s is this agent's (%s: %s). The endpoint's operator "+
		"serves, at %s, a list with %s in "+
		"registrations[]; or the agent's registration document itself, over https from the endpoint's own origin",
		e.Endpoint, e.Asked, e.Why, e.Asked, e.Entry)
}
