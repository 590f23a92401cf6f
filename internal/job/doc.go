// Package job is what is enqueued (DESIGN §3): its format, its validation, its key, and what an agent receives of it.
//
// What lives here: parsing with exact refusals, the normalised Job, the delivery's key and id, argument names and templates.
// What does not: the chain (internal/chain), storage (internal/store), fitting arguments to a tool's schema (internal/mcpcall).
//
// Invariants:
//   - A Job that Parse returned is storable as Postgres jsonb: no NUL, valid UTF-8, bounded depth and numbers.
//   - Secret headers are in no encoding of a Job.
//   - The key depends on the event alone, so that the same event always is the same delivery.
package job
