// Package mcpcall calls tools on MCP servers that untrusted parties operate. It connects to an agent's endpoint, lists
// the agent's tools, fits arguments to a tool's input schema, calls the tool once, and returns the answer or an error
// that states whether the tool can have run. See docs/design/calls.md.
//
// A Pool keeps one client for each endpoint and its credentials. A client is a connection on which the MCP handshake
// has succeeded: over streamable HTTP, over HTTP+SSE with its event stream, or to the process of a command.
//
// mark3labs/mcp-go implements the protocol. Only this package and its subpackages use it. They add protection against
// hostile and broken agents, which mcp-go does not provide:
//
//   - package transport carries the messages and records the answers as the agent sent them;
//   - package arguments fits arguments to a schema that an untrusted party wrote;
//   - pool.go, open.go and health.go open, check and close the clients. All callers that wait for the same client share
//     one attempt to open it. A client that failed is replaced by a new one. The size of the data from agents that idle
//     clients keep in memory is bounded;
//   - conn.go calls a tool with one client, listing.go and tools.go list the tools, answer.go parses the result of a
//     tool, failure.go classifies a request that brought no result, and refusal.go interprets refusals.
//
// Other packages decide whether an outcome is retried (delivery), find an agent's endpoint (resolver), and decide which
// addresses may be dialled (netguard).
//
// Invariants:
//
//   - Every error of Tools and Call is a *CallError or a *TransportRefusedError.
//   - If CallError.Written is false, the tool did not run: no byte of the tools/call request can have left the process,
//     or the agent rejected the session that the request used.
//   - A JSON-RPC result is an Answer even if it is malformed, because the tool ran.
//   - The handshake of a client is never repeated. A client that failed is replaced.
//   - All goroutines and processes of a Pool have ended when Pool.Close returns.
package mcpcall
