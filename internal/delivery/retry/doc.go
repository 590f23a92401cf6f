// Package retry decides, from an error alone, how a delivery continues: its reason (package reason), whether it ends,
// waits or is held, whether the wait is free, and how long it lasts. The package does no I/O and reads no clock. The
// caller passes the random number.
//
// The package classifies every error of the chain, content, the resolver, MCP, OAuth, Postgres and this process. Two
// callers change the verdict afterwards: delivery's decideOutcome (policy onUnknown, length of free waits) and
// agentauth's ObserveFailure (a job's own headers). See docs/design/delivery.md.
package retry
