// Package job defines the job that programs enqueue: its format (docs/reference/jobs.md), its validation, its key, and
// the arguments that the agent's tool receives.
//
// Parse reads a job in Herald's form or in that of the old backend, the system that Herald replaces
// (docs/operator/old-backend.md). It returns a Job in normal form, or a Refusal that names the invalid field. Make
// returns the Job of an event that was read from a chain.
//
// Other packages read chains (internal/chain), store jobs (internal/store) and fit arguments to a tool's schema
// (internal/mcpcall).
//
// Invariants:
//   - Each Job that Parse returns can be stored as jsonb: its strings are valid UTF-8 without NUL, and its depth and
//     numbers are bounded.
//   - MarshalJSON never writes the secret headers of a Job.
//   - All JSON readers read the same values from an accepted job in Herald's form. Parse refuses duplicate names,
//     unknown fields, and numbers that some readers round.
//   - The key depends only on the event, so that one event always yields the same delivery.
//
// Rules that are not obvious:
//   - A FeedbackRevoked without a reason gets the reason "client".
//   - ResponseAppended and ValidationResponse require transactionHash and logIndex, because their keys contain them.
//   - Parse refuses an action.endpoint unless action.resolveEndpoint is in the same job (false: deliver to this
//     endpoint). Without that field the endpoint would be ignored, and the delivery would go to another address than
//     the sender wrote.
//   - Jobs of any kind may contain all three registries.
package job
