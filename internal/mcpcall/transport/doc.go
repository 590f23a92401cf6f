// Package transport carries the messages of mcp-go's client to an agent that an untrusted party runs, and records the
// answers.
//
//   - recording.go is the transport that mcp-go's client uses. It keeps each answer as the agent sent it, because
//     mcp-go's types drop schema keywords, error codes and all results that they do not define. exchange.go defines the
//     record of one request;
//   - http.go is the RoundTripper between mcp-go and the network. It bounds the size of answers, records the status,
//     Retry-After and whether the request was written, sends secret headers only to the endpoint's own origin, and
//     follows no redirects. As its last step it lets the Signer sign the request;
//   - sse.go implements HTTP+SSE, the transport of 2024-11-05, in place of mcp-go's; events.go reads event streams for
//     both;
//   - process*.go run the operator's commands with a clean environment, in a process group of their own, with bounded
//     lines, and end all their processes; supervisor_linux.go does that even if this process is killed;
//   - input.go declines the questions of a tool to a person, foreign.go interprets mcp-go's own errors, gzip.go unpacks
//     compressed answers.
//
// Invariants: Response.Written is false only if no byte of the request can have left this process. Nothing is kept or
// decoded beyond the configured number of bytes and package decode's number of tokens. No request goes to an origin
// other than the endpoint's.
package transport
