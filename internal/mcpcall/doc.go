// Package mcpcall calls tools on MCP servers that strangers run: it opens a connection to an agent's endpoint, lists
// its tools, fits arguments to a tool's input schema, calls the tool once and says exactly how that ended.
//
// mark3labs/mcp-go speaks the protocol; nothing outside this package and the ones below sees it. What mcp-go does not
// guard against a hostile or broken agent is guarded around it:
//
//   - package transport carries the messages and records the answers as the agent sent them;
//   - package arguments makes arguments fit a schema that a stranger wrote;
//   - pool.go, open.go and health.go own the clients: one per (endpoint, credentials), opened once for all who wait,
//     asked for a sign of life when idle, replaced whole; those that nobody uses hold so many bytes of what agents
//     sent, and no more;
//   - conn.go calls a tool with one client, listing.go and tools.go list the tools, answer.go reads what the tool
//     answered, and failure.go says what became of a request that brought no result.
//
// What does not live here: whether an outcome is retried (delivery), where an agent's endpoint is (resolver), which
// addresses may be dialled (netguard).
//
// Invariants: every error of Tools and Call is a *CallError or a *TransportRefusedError; CallError.Written is false
// only when no byte of the tools/call request can have left the process, or the agent refused the session it came with;
// a JSON-RPC result is an Answer, however odd it looks, because the tool ran; a client that failed is never initialised
// again but replaced; every goroutine and process belongs to the Pool and is gone when Pool.Close returns.
package mcpcall
