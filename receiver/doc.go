// Package receiver adds to an MCP server (mcp-go) the tools by which Herald delivers ERC-8004 events to the agent that
// they are about: feedback, revocations, responses and validations.
//
//   - receiver.go registers the tools and answers their calls;
//   - arguments.go contains the types of the arguments, which are those of the schemas in schemas/;
//   - batch.go answers calls with several pieces of feedback;
//   - once.go calls a handler once for each delivery.
//
// Package callers refuses callers other than one Herald. Package receivertest is a Herald for an agent's own tests.
//
// Invariants: a handler runs only with arguments that match the published schema, in one process never twice at the
// same time for one deliveryId, and not again after it has succeeded, for as long as the Store knows the id. No text of
// a handler's error or panic leaves the process, except that of Reject.
package receiver
