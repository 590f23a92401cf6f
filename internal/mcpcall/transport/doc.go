// Package transport carries the messages of mcp-go's client to an agent that a stranger runs, and records what came
// back.
//
//   - recording.go is the transport that mcp-go's client sees. It keeps each answer as the agent sent it, because
//     mcp-go's types drop schema keywords, error codes and every result they do not know. exchange.go is what is
//     recorded of one request;
//   - http.go is the RoundTripper between mcp-go and the network: size, status, Retry-After, whether the request was
//     written, secret headers to the endpoint's own origin only, no redirects; it has each request signed last;
//   - sse.go is HTTP+SSE, the transport of 2024-11-05, our own in place of mcp-go's; events.go reads event streams for
//     both;
//   - process*.go run the operator's commands: clean environment, own process group, bounded lines, nothing left
//     behind; supervisor_linux.go does that also when this process is killed;
//   - input.go declines what a tool asks of a person, mirror.go picks the tools that mcp-go has to know, foreign.go
//     words mcp-go's own errors.
//
// Invariants: Response.Written is false only when no byte of the request can have left this process; nothing is kept or
// decoded beyond the configured bytes and decode's tokens; no request goes to another origin than the endpoint's.
package transport
