// Package job is what is enqueued (DESIGN §3): its format, its validation, its key, and what an agent receives of it.
//
// What lives here: parsing with exact refusals, the normalised Job, the delivery's key and id, argument names and
// templates.
//
// What does not: the chain (internal/chain), storage (internal/store), fitting arguments to a tool's schema
// (internal/mcpcall).
//
// Invariants:
//   - A Job that Parse returned is storable as Postgres jsonb: no NUL, valid UTF-8, bounded depth and numbers.
//   - Secret headers are in no encoding of a Job.
//   - Only one JSON reading exists of a job: a name that comes twice, an unknown field, a number that may have lost
//     digits is refused.
//   - The key depends on the event alone, so that the same event always is the same delivery.
//
// Where DESIGN §3 leaves a choice: a FeedbackRevoked without reason is the client's; ResponseAppended and
// ValidationResponse need transactionHash and logIndex, which their keys are made of; an action.endpoint beside
// resolveEndpoint true is refused, since to ignore it would deliver somewhere else than its enqueuer wrote; any kind
// may name all three registries.
package job
