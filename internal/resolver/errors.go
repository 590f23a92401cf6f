package resolver

import (
	"fmt"

	"github.com/agentherald/herald/internal/reason"
)

// SkipError means that there is no endpoint to deliver to. A retry returns the same error until the agent changes its
// registration.
type SkipError struct {
	Reason reason.Reason // NoURI, NoDocument, NoMCPEndpoint, AgentInactive or AgentNotFound
	Err    error         // the details; nil if the reason is sufficient
}

func (e *SkipError) Error() string {
	text := map[reason.Reason]string{
		reason.NoURI:         "the agent has no tokenURI",
		reason.NoDocument:    "the agent has no registration document",
		reason.NoMCPEndpoint: "the agent's registration lists no MCP endpoint",
		reason.AgentInactive: "the agent's registration says that it is inactive",
		reason.AgentNotFound: "the registry knows no such agent",
	}[e.Reason]
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", text, e.Err)
	}
	return text
}

func (e *SkipError) Unwrap() error { return e.Err }

// TransportRefusedError means that the agent lists MCP entries but none of them may be called.
type TransportRefusedError struct {
	From      string // position of the best entry, for example "services[2]"
	Transport string // transport of the best entry
	Why       string // a sentence
}

func (e *TransportRefusedError) Error() string {
	return fmt.Sprintf("the agent's MCP entry %s is refused: %s", e.From, e.Why)
}

// UnboundError means that the policy is BindingRequire and that there is no evidence that the endpoint belongs to the
// agent.
type UnboundError struct {
	Endpoint string // the endpoint's origin, or the command
	Asked    string // the URL of the domain's list; empty for a command, which has no domain
	Why      string // the domain's answer
	Entry    string // the missing entry of registrations[], as JSON
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
