// Package alerts posts news about agents and deliveries to the operator's HERALD_ALERT_URL:
//   - Watcher looks for news every ten seconds, on the one worker that leads, and disables agents whose calls have all
//     failed for too long (HERALD_DISABLE_AFTER). It writes the news to the outbox (table herald.alerts).
//   - Sender runs on every worker and posts the due rows of the outbox, signed as Standard Webhooks requires.
//
// Invariants:
//   - An alert is posted until the receiver accepts it or three days have passed, each time with the same id and bytes.
//   - A payload contains no text of an agent or a client, and no secret.
//
// Package store defines the news and records each only once (sql/note_agents.sql and sql/take_mishaps.sql).
package alerts
