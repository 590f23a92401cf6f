// Package ratelimit bounds what one origin gets from all workers together, and leaves a failing endpoint alone, so that one slow agent
// costs the others nothing, also those that live at the same origin (DESIGN §5): calls in flight and calls a second are counted for each
// origin, of which each of its endpoints has a share; each endpoint has a circuit breaker of its own.
//
// Limiter.Acquire takes a place before anything is said to the endpoint; Permit.Release gives it back and tells how it went. What
// counts as a failure is the caller's to say. What does not live here: per-agent budgets, retry waits, what an origin or an endpoint is.
//
// # The rules
//
// They are written once as a state machine (machine.go, share.go, breaker.go) and once more as the two scripts that run in Redis (lua/);
// one suite holds both to the same answers. Of one origin:
//   - It has Inflight places. A place is held by a token until Release, or until PermitTTL has passed: its worker died.
//   - A granted call moves GCRA's theoretical arrival time on by 1/Rate; Burst calls may come at once.
//   - Order of the questions: breaker, places, rate. Only a granted call costs anything.
//   - A token that holds a place enters again for nothing, and a leave counts only while its token holds a place. So both
//     may be repeated, and a result is counted once.
//
// Of one endpoint:
//   - The breaker counts OK and Failed in a window of ten buckets. A failure that makes it at least FailureRatio of at least
//     MinCalls opens it for OpenFor. Then one call is let through as the probe: its success closes the breaker and forgets
//     the window, the mean and the line; its failure opens it again; a Neutral end, or PermitTTL passing, lets another one probe.
//     Calls that were in flight when it opened change nothing.
//   - A call that is refused reserves a time to come back in the endpoint's line: not within a second, not before the breaker's
//     probe, and as long after the reservation before as the endpoint's next turn will take: n/Rate when n endpoints wait, or the mean
//     call time divided by its part of the places (Inflight/n, at least one). A line longer than five minutes is answered with times
//     spread over its second half.
//
// # How endpoints share their origin
//
// An endpoint waits from when it is refused a place, or the rate, until it is granted one. It is forgotten when nobody asks for it any
// more: 250 ms after a call in a worker's room asked last, and 5 s after the reservation of a call that was put off. An endpoint whose
// breaker is open does not wait. An endpoint shares the origin while another one waits, or was granted a call in the last minute. Then:
//   - One all of whose calls in the breaker's window failed holds one place: four calls that hang must not slow the others down.
//   - Each takes one more place only if more are free than it holds. So one holds at most half of them, rounded up; two that take all they
//     can leave one for a third; and a place at an origin with one is for whoever comes. Alone, an endpoint has them all.
//   - Those that wait have turns, longest waiting first: a place, and a call of the rate, is kept for each that has waited 100 ms and longer than
//     who asks, may take it by the rule above, and is expected: it asks now, from a room; or it was put off, and the call of who
//     asks, by the mean of its endpoint, would be under way when it comes back. (A call that is over sooner than anybody leaves a room
//     is in nobody's way. So short calls do not stand idle for those who are away, and long ones do not push ahead of them.)
//   - A grant is a turn: an endpoint that waits on, with other calls, is then the last.
//
// So nobody starves: of all that wait the eldest is refused only while no place is free, or none but those that are more its own
// than its share, or until the next call of the rate, and what is given back while it is there is its own. Nothing waits for somebody who
// does not come, because who waits is forgotten. At most 64 endpoints of an origin are known to wait; others come after these.
// TestCrowd plays it. Where one endpoint is called none of this is asked.
//
// # Redis and without it
//
// While Redis answers within Timeout, its state counts and its clock is the clock. The first call that fails makes the
// worker apply the same rules by itself, at once and for every origin; nobody pays the timeout again. In the background Redis
// is tried a second later, then every second (less often when it comes and goes), told of the places that were given back
// meanwhile, and used again. Each change is one line in the log. The worker's own state goes along all the time, so it starts from
// what this worker has seen.
//
// One question is one script: two for each call. An origin is two keys, an endpoint one, all in one slot of a cluster; each has a TTL. The
// version before kept the breaker with the origin: its fields are left alone, and what it counts of places and rate counts here too, and
// the other way round.
//
// Invariants:
//   - One process never has more than Inflight calls in flight at one origin, whatever Redis does. All processes together
//     keep to it while they share a Redis that keeps its data; after a FLUSHALL, or a change between shared and local, calls
//     that are in flight are not known to the others, at most Inflight for each process.
//   - No lock is held during I/O. A question to Redis takes at most Timeout, and the first one that fails ends the asking.
//   - Memory is bounded: an endpoint, and its origin, is kept while it is in use, and of the others the latest MaxEndpoints. In Redis an
//     origin has at most Rate times the TTL of endpoints.
package ratelimit
