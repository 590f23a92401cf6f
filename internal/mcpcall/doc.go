// Package mcpcall calls tools on MCP servers that strangers run: it opens a connection to an agent's endpoint, lists its tools,
// fits arguments to a tool's input schema, calls the tool once and says exactly how that ended.
//
// mark3labs/mcp-go speaks the protocol; nothing outside this package sees it. What mcp-go does not guard against a hostile or
// broken agent is guarded here, around it:
//
//   - http.go is the RoundTripper between mcp-go and the network: size, status, Retry-After, whether the call was written, secret
//     headers to the endpoint's own origin only, no redirects;
//   - stdio*.go run the operator's commands: clean environment, own process group, bounded lines, nothing left behind; supervisor_linux.go
//     is the process that sees to that also when ours is killed;
//   - sse.go and events.go are HTTP+SSE, the transport of 2024-11-05: a transport of our own under mcp-go's client;
//   - tap.go sits between mcp-go's client and its transport and keeps the answer as the agent sent it, because mcp-go's types drop
//     schema keywords, error codes and every result they do not know;
//   - pool.go, open.go and health.go own the clients: one per (endpoint, credentials), opened once for all who wait, asked for a sign of
//     life when idle, replaced whole; those that nobody uses hold so many bytes of what agents sent, and no more;
//   - package arguments makes arguments fit a schema that a stranger wrote, within bounds of size, depth and time.
//
// What does not live here: whether an outcome is retried (delivery), where an agent's endpoint is (resolver), which addresses may
// be dialled (netguard).
//
// Invariants: every error of Tools and Call is a *CallError or a *TransportRefusedError; CallError.Written is false only when no
// byte of the tools/call request can have left the process, or the agent refused the session it came with; a JSON-RPC result is an
// Answer, however odd it looks, because the tool ran; a client that failed is never initialised again but replaced; every goroutine
// and process belongs to the Pool and is gone when Pool.Close returns.
package mcpcall
