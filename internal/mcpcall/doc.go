// Package mcpcall calls tools on MCP servers that untrusted parties operate. It connects to an agent's endpoint, lists
// the agent's tools, fits arguments to a tool's input schema, calls the tool once and reports precisely how the call
// ended. See docs/design/calls.md.
//
// mark3labs/mcp-go implements the protocol. Only this package and its subpackages use its client. They add protection
// against hostile and broken agents, which mcp-go does not provide:
//
//   - package transport carries the messages and records the answers as the agent sent them;
//   - package arguments fits arguments to a schema that an untrusted party wrote;
//   - pool.go, open.go and health.go own the clients: one per (endpoint, credentials). All callers that wait for a
//     client share one attempt to open it. Idle clients are checked regularly, and a failed client is replaced as a
//     whole. The bytes from agents that idle clients keep in memory are bounded;
//   - conn.go calls a tool with one client, listing.go and tools.go list the tools, answer.go parses the result of a
//     tool, and failure.go classifies a request that brought no result.
//
// Other packages decide whether an outcome is retried (delivery), find an agent's endpoint (resolver), and decide which
// addresses may be dialled (netguard).
//
// Invariants:
//
//   - Every error of Tools and Call is a *CallError or a *TransportRefusedError.
//   - CallError.Written is false only if no byte of the tools/call request can have left the process, or if the agent
//     rejected the session that the request used.
//   - A JSON-RPC result is an Answer even if it is malformed, because the tool ran.
//   - A client that failed is replaced and never initialised again.
//   - The Pool owns every goroutine and process; all of them have ended when Pool.Close returns.
package mcpcall
