// Package queue is Herald's interface to Redis. asynq runs the tasks that are ready, and asynqmon shows them. No other
// package imports either of them.
//
// This package contains the lanes, the tasks, the asynq server and its logging, the monitor, and the checks of the
// Redis server. The meaning of a delivery and the time at which it is due belong to internal/delivery and
// internal/store. Postgres holds the truth. Losing all data in Redis costs time, but no delivery.
//
// Invariants:
//   - A task contains {deliveryId, n} and nothing else; n is the delivery's dispatch counter. The id of the task is
//     "<deliveryId>:<n>", so enqueueing it twice is harmless.
//   - A task whose delivery waits for a short time is in asynq's state retry, where the web UI shows the wait. asynq
//     also retries a task whose handler never returned. Postgres counts the attempts and the waits, so asynq must
//     never archive a task for its number of retries.
//   - asynq cancels the handlers' contexts when Redis freezes. The work of a handler must not depend on that context.
package queue
