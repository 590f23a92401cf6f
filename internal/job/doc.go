// Package job defines the enqueued job: its format, its validation, its key, and the arguments that an agent
// receives. docs/jobs.md describes the format.
//
// It contains parsing with exact refusals, the normalised Job, the delivery's key and id, argument names and
// templates.
//
// Other packages follow chains (internal/chain), store jobs (internal/store) and fit arguments to a tool's schema
// (internal/mcpcall).
//
// Invariants:
//   - Postgres can store a Job that Parse returned as jsonb: it has no NUL, valid UTF-8, and bounded depth and numbers.
//   - No encoding of a Job contains secret headers.
//   - A job has only one JSON reading: duplicate names, unknown fields and numbers that may have lost digits are
//     refused.
//   - The key depends only on the event, so that one event always yields the same delivery.
//
// Rules that are not obvious: A FeedbackRevoked without a reason has the reason client. ResponseAppended and
// ValidationResponse require transactionHash and logIndex, because their keys contain them. An action.endpoint
// without "resolveEndpoint": false is refused, because ignoring it would deliver to another address than the sender
// wrote. Jobs of any kind may name all three registries.
package job
