// Package limits bounds what one origin gets from all workers together, so that one slow agent costs the others nothing
// (DESIGN §5): calls in flight, calls a second, and a breaker that leaves a failing endpoint alone.
//
// Limits.Enter takes a place before anything is said to the endpoint; Pass.Leave gives it back and tells how it went. What
// counts as a failure is the caller's to say. What does not live here: per-agent budgets, retry waits, what an origin is.
//
// # The rules
//
// They are written once as a state machine (machine.go) and once more as the two scripts that run in Redis (lua/); one
// suite holds both to the same answers. Of one origin:
//   - It has Inflight places. A place is held by a token until Leave, or until Hold has passed: its worker died.
//   - A granted call moves GCRA's theoretical arrival time on by 1/Rate; Burst calls may come at once.
//   - The breaker counts OK and Failed in a window of ten buckets. A failure that makes it at least FailureRatio of at least
//     MinCalls opens it for OpenFor. Then one call is let through as the probe: its success closes the breaker and forgets
//     the window, the mean and the line; its failure opens it again; a Neutral end, or Hold passing, lets another one probe.
//     Calls that were in flight when it opened change nothing.
//   - Order of the questions: breaker, places, rate. Only a granted call costs anything.
//   - A call that is refused reserves a time to come back in the origin's line: not within a second, not before the breaker's
//     probe, and max(1/Rate, mean call time/Inflight) after the reservation before, which is what the origin can serve. A line
//     longer than five minutes is answered with times spread over its second half.
//   - A token that holds a place enters again for nothing, and a leave counts only while its token holds a place. So both
//     may be repeated, and a result is counted once.
//
// # Redis and without it
//
// While Redis answers within Timeout, its state counts and its clock is the clock. The first call that fails makes the
// worker apply the same rules by itself, at once and for every origin; nobody pays the timeout again. In the background Redis
// is tried a second later, then every second (less often when it comes and goes), told of the places that were given back
// meanwhile, and used again. Each change is one line in the log. The worker's own state goes along all the time, so it starts from
// what this worker has seen.
//
// Invariants:
//   - One process never has more than Inflight calls in flight at one origin, whatever Redis does. All processes together
//     keep to it while they share a Redis that keeps its data; after a FLUSHALL, or a change between shared and local, calls
//     that are in flight are not known to the others, at most Inflight for each process.
//   - No lock is held during I/O. A question to Redis takes at most Timeout, and the first one that fails ends the asking.
//   - Memory is bounded: an origin is kept while it is in use, and of the others the latest MaxOrigins.
package limits
