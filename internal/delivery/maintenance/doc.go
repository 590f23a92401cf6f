// Package maintenance looks after deliveries that no task moves any more:
//   - Reconciler dispatches what is due, and what a dead worker or an emptied Redis lost (DESIGN §5).
//   - Releaser lets go of held deliveries once their agents may be called again.
//   - Retention ends deliveries that are too old, drops what old ones carried, and makes partitions.
//
// Each is a loop that runs until its context ends; internal/service starts and stops them. In each round of the
// reconciler and of the retention one process leads, by an advisory lock in Postgres. What does not live here: the
// statements (internal/store), and how a task gets into Redis (delivery.Dispatcher).
package maintenance
