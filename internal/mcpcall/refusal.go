package mcpcall

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

// This file alone interprets the texts with which agents refuse a request or a session.

// sdkRefusal matches the beginning of the texts with which SDKs refuse a call, in a result with isError, because they
// do not know the tool or because the arguments do not fit its schema. The texts are those of the official SDKs for
// TypeScript, Python and Go, of Mastra, mcp-nest and tmcp, and of this repository's packages for agents.
var sdkRefusal = regexp.MustCompile(`^(?:MCP error -32602: |Input validation error: |Unknown tool: |` +
	`Error executing tool \S+: \d+ validation errors? for |` + // Python
	`validating "arguments": |` + // Go
	`Tool (?:input )?validation failed for |` + // Mastra
	`Invalid parameters: |` + // mcp-nest
	`the arguments do not match the schema: |` + // receiver and sdk/typescript
	`Invalid arguments for tool |Tool \S+ not found$)`) // tmcp

// RefusesCall reports whether an SDK refused the call before it ran the tool. A tool can use such a text itself.
func (a Answer) RefusesCall() bool { return a.IsError && sdkRefusal.MatchString(a.Text) }

// sessionGone reports whether the response to a request with a session id may mean that the agent does not know the
// session. It returns true for 404, as MCP requires, and for 400, 401 and 410, which some servers send. It returns
// false for a 400 whose JSON-RPC error is about the request itself, and for a 401 in the handshake. The error of a 403
// must name a session.
func sessionGone(stage string, response transport.Response) bool {
	switch response.Status {
	case http.StatusNotFound, http.StatusGone:
		return true
	case http.StatusUnauthorized:
		return stage != StageOpen
	case http.StatusForbidden:
		return stage != StageOpen && namesSession(response.Error)
	case http.StatusBadRequest:
		if response.Error == nil {
			return true
		}
		switch response.Error.Code {
		case mcp.INVALID_PARAMS, mcp.METHOD_NOT_FOUND, mcp.INTERNAL_ERROR, mcp.PARSE_ERROR, mcp.HEADER_MISMATCH,
			mcp.UNSUPPORTED_PROTOCOL_VERSION:
			return namesSession(response.Error)
		}
		return true
	}
	return false
}

// sessionRefused reports whether a JSON-RPC error, with a status 2xx, in answer to a request with a session id may mean
// that the agent does not know the session. Some servers send it instead of 404. It returns true only for codes by
// which the agent says that it did not process the request: -32600, and -32602 with a text about the session.
func sessionRefused(refusal *mcp.JSONRPCErrorDetails) bool {
	return refusal.Code == mcp.INVALID_REQUEST || refusal.Code == mcp.INVALID_PARAMS && namesSession(refusal)
}

// refusesFurtherSession reports whether a JSON-RPC error in answer to initialize means that the agent has a session
// already and accepts no other. It has a text of the SDKs for TypeScript and Swift, or of fastmcp.
func refusesFurtherSession(refusal *mcp.JSONRPCErrorDetails) bool {
	if refusal == nil || refusal.Code != mcp.INVALID_REQUEST {
		return false
	}
	words := strings.ToLower(refusal.Message)
	return strings.Contains(words, "already initialized") || strings.Contains(words, "session is closing")
}

// namesSession reports whether a JSON-RPC error is about the session or the handshake: "Invalid or expired session" of
// WordPress, "Server not initialized" of Anubis, which has this text in the error's data.
func namesSession(refusal *mcp.JSONRPCErrorDetails) bool {
	if refusal == nil {
		return false
	}
	words := strings.ToLower(fmt.Sprint(refusal.Message, refusal.Data))
	return strings.Contains(words, "session") || strings.Contains(words, "not initialized")
}

// eraGone reports whether an agent that no longer supports revision 2026-07-28 may have refused a request of that
// revision. callError then has the request sent again with a new client, whose handshake negotiates the revision anew.
func eraGone(response transport.Response) bool {
	switch response.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
		return response.Error == nil || response.Error.Code == mcp.INVALID_REQUEST || response.Error.Code == -32000
	}
	return false
}
