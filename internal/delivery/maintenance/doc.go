// Package maintenance continues deliveries that have no running task:
//
//   - Reconciler dispatches deliveries that are due, in each process, and those whose task a dead worker or Redis lost.
//   - Releaser releases held deliveries once their agents can be called again.
//   - Retention expires old deliveries, deletes the data of old final ones, and creates partitions.
//
// Each is a loop that runs until its context ends. Package service starts and stops them. In each round of the
// retention, and for the rest of a round of the reconciler, one process leads: it has an advisory lock in Postgres.
// Package store contains the SQL statements, and dispatch.Dispatcher enqueues the tasks in Redis. See
// docs/design/delivery.md.
package maintenance
