// Package maintenance continues deliveries that have no running task:
//
//   - Reconciler dispatches deliveries that are due, and deliveries whose task a dead worker or Redis lost.
//   - Releaser releases held deliveries once their agents can be called again.
//   - Reviewer reads the events of deliveries from the chain again, if a later job contradicts them.
//   - Retention expires old deliveries, deletes the data of old final ones, and creates partitions.
//
// Each is a loop that runs until its context ends. Package service starts and stops them. Only the process that holds
// the leader lock, an advisory lock in Postgres, does the rounds of the retention, and the part of a reconciler's round
// that follows the dispatch of due deliveries. Package store contains the SQL statements, and dispatch.Dispatcher
// enqueues the tasks in Redis. See docs/design/delivery.md.
package maintenance
