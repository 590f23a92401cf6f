// Package alerts tells the operator, by posts to HERALD_ALERT_URL, what happened to agents and deliveries:
//   - Watcher looks for news every ten seconds, on the one worker that leads, and disables agents that failed every call
//     for too long (HERALD_DISABLE_AFTER). What it finds becomes rows of the outbox (herald.alerts).
//   - Sender posts what is due in the outbox, on every worker, signed as Standard Webhooks has it.
//
// Invariants: what is in the outbox is posted until the receiver has taken it or three days have passed, each time with
// the same id and the same bytes; a payload holds nothing that a stranger wrote, and no secret. What does not live here:
// what counts as news, and that each is noted once (internal/store, sql/note_agents.sql and sql/take_mishaps.sql).
package alerts
