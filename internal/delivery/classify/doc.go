// Package classify maps each error of the chain, content, the resolver, MCP, OAuth, Postgres and this process to a
// verdict of package outcome. It does no I/O and reads no clock. Two callers change the verdict afterwards: delivery's
// decideOutcome (policy onUnknown, length of free waits) and auth's ObserveFailure (a job's own headers). See
// docs/design/delivery.md.
package classify
