// Package retry decides, from an error alone, what becomes of a delivery: which reason of the closed list (package reason),
// whether it ends, waits or is held, whether that costs an attempt, and how long a wait is. It is pure: no I/O, no
// clock, the random number is handed in.
//
// Every error of chain, content, resolver, MCP, Postgres and this process is classified here. Two callers
// complete the verdict: delivery's decideOutcome (policy onUnknown, free waits) and agentauth's ObserveFailure (a job's
// own headers).
package retry
