// Package ratelimit bounds what one origin gets from all workers together, and stops calling a failing endpoint, so
// that one slow agent costs the others nothing, also those that live at the same origin (DESIGN §5). Calls in flight
// and calls a second are counted for each origin, of which each of its endpoints has a share; each endpoint has a
// circuit breaker of its own.
//
// Limiter.Acquire takes a permit before anything is said to the endpoint; Permit.Release returns it and tells how the
// call went. What counts as a failure is the caller's to say. What does not live here: per-agent budgets, retry waits,
// also after an agent's 429 (package retry), and what an origin is (package netguard).
//
// # The rules
//
// They are written once as a state machine (machine.go, share.go, breaker.go) and once more as the two scripts that run
// in Redis (lua/); one suite holds both to the same answers. Of one origin:
//   - It has Inflight permits. A token holds one until Release, or until PermitTTL has passed: its worker died.
//   - A granted call moves GCRA's theoretical arrival time on by 1/Rate; Burst calls may come at once.
//   - Breaker, permits and rate are checked in this order. Only a granted call costs anything.
//   - A token that holds a permit acquires it again for nothing, and a release counts only while its token holds one.
//     So both may be repeated, and a result is counted once.
//
// Of one endpoint:
//   - The breaker counts OK and Failed in a window of ten buckets. A failure that makes it at least failureRatio of at
//     least MinCalls opens it for OpenFor. Then one call is let through as the probe: its success closes the breaker
//     and clears the window, the mean and the line; its failure opens it again; a Neutral end, or PermitTTL passing,
//     lets another one probe. Calls that were in flight when it opened change nothing.
//   - A call that is refused reserves a time to come back in the endpoint's line: not within a second, not before the
//     breaker's probe, and as long after the reservation before as the endpoint's next turn will take: n/Rate when n
//     endpoints wait, or the mean call time divided by its part of the permits (Inflight/n, at least one). A line
//     longer than five minutes is answered with times spread over its second half.
//
// # How endpoints share their origin
//
// An endpoint waits from when it is refused a permit, or the rate, until it is granted one. It stops waiting when
// nobody asks for it any more: 250 ms after a waiting call of some worker asked last, and 5 s after the reservation of
// a call that was put off. An endpoint whose breaker is open does not wait. An endpoint shares the origin while another
// one waits, or was granted a call in the last minute. Then:
//   - An endpoint all of whose calls in the breaker's window failed holds one permit: four calls that hang must not
//     slow the others down.
//   - Each takes one more permit only if more are free than it holds. So one holds at most half of them, rounded up;
//     two that take all they can leave one for a third; the only permit of an origin is for whoever comes. Alone, an
//     endpoint has all.
//   - Those that wait have turns, longest waiting first: a permit, and a call of the rate, is reserved for each that
//     has waited 100 ms and longer than who asks, may take it by the rule above, and is expected: it asks now, or it
//     was put off and the call of who asks, by the mean of its endpoint, would be under way when it comes back. (So
//     short calls do not stand idle for those who are away, and long ones do not push ahead of them.)
//   - A grant is a turn: an endpoint that waits on, with other calls, is then the last.
//
// So nobody starves: of all that wait the eldest is refused only while no permit is free beyond its share, or until the
// next call of the rate. Nothing is reserved for somebody who does not come, because who does not ask stops waiting. At
// most 64 endpoints of an origin are known to wait; others come after these. TestCrowd plays it.
//
// # With Redis and without
//
// While Redis answers within Timeout, its state counts and its clock is the clock. The first call that fails makes the
// worker apply the same rules by itself, at once and for every origin; nobody pays the timeout again. In the background
// Redis is asked a second later, then every second (less often when it comes and goes), told of the permits that were
// released meanwhile, and used again. Each change is one line in the log. The worker's own state goes along all the
// time, so it starts from what this worker has seen.
//
// A worker that is the only one (Config.Workers) counts in this process too, since nobody else needs to know: two questions
// less a call. It looks every second; once there is another it asks Redis again.
//
// One question is one script: two for each call. An origin is two keys, an endpoint one, all in one slot of a cluster;
// each has a TTL.
//
// Invariants:
//   - One process never has more than Inflight calls in flight at one origin, whatever Redis does. All processes
//     together keep to it while they share a Redis that keeps its data; after a FLUSHALL, or a change between shared
//     and local, calls that are in flight are not known to the others, at most Inflight for each process.
//   - No lock is held during I/O. A question to Redis takes at most Timeout, and the first one that fails ends the
//     asking.
//   - Memory is bounded: an endpoint, and its origin, is kept while it is in use, and of the others the latest
//     MaxEndpoints. In Redis an origin has at most Rate times the TTL of endpoints.
package ratelimit
