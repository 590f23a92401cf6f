// Package maintenance handles deliveries that no task moves:
//   - Reconciler dispatches due deliveries, and those that a dead worker or an emptied Redis lost.
//   - Releaser releases held deliveries once their agents can be called again.
//   - Retention expires old deliveries, deletes the data of old final ones, and creates partitions.
//
// Each is a loop that runs until its context ends. Package service starts and stops them. In each round of the
// reconciler and of the retention, one process leads by holding an advisory lock in Postgres. Package store contains
// the SQL statements, and delivery.Dispatcher enqueues the tasks in Redis. See docs/design/delivery.md.
package maintenance
