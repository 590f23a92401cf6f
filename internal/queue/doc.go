// Package queue is Redis as Herald uses it: asynq runs what is ready, asynqmon shows it. It is the only importer of
// both.
//
// What lives here: lanes, tasks, the asynq server and its logging, the monitor, what Redis must be like. What does not:
// what a delivery is and when it is due (internal/delivery, internal/store). Postgres owns the truth; everything here
// may be lost and costs time, never work.
//
// Invariants:
//   - A task is {deliveryId, n} and nothing else; its id is "<deliveryId>:<n>", so putting it in twice is harmless.
//   - asynq's own retry is how a short wait looks, and a net for handlers that never answered. Attempts and waits belong
//     to Postgres, so asynq never gives a task up.
//   - asynq cancels handlers when Redis freezes; what a handler does must not depend on that context.
package queue
