// Package retry decides, from an error alone, how a delivery continues: which reason of the closed list (package
// reason) it gets, whether it ends, waits or is held, whether that costs an attempt, and how long it waits. The package
// does no I/O and reads no clock. The caller passes the random number.
//
// The package classifies every error of the chain, content, the resolver, MCP, OAuth, Postgres and this process. Two
// callers complete the verdict: delivery's decideOutcome (policy onUnknown, length of free waits) and agentauth's
// ObserveFailure (a job's own headers). See docs/design/delivery.md.
package retry
