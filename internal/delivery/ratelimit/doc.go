// Package ratelimit limits the calls of all workers to one origin, and stops calls to a failing endpoint. So a slow
// agent does not slow the others down, even those on the same origin. The calls in flight and the calls per second are
// limited per origin, and its endpoints share both limits. Each endpoint has its own circuit breaker. See
// docs/design/limits.md.
//
// Limiter.Acquire acquires a permit before any request is sent to the endpoint. Permit.Release releases it and reports
// the result of the call. The caller decides which results count as failures. Budgets per agent belong to package
// effort, waits before a retry (also after an agent's 429) to package outcome, and the meaning of an origin to package
// netguard.
//
// # The rules
//
// The rules exist twice: as a state machine in Go (machine.go, share.go, breaker.go) and as the two scripts in lua/,
// which run in Redis. One test suite checks that both give the same answers. For one origin:
//   - It has Inflight permits. A token holds a permit until Release, or until PermitTTL has passed because its worker
//     died.
//   - A granted call advances GCRA's theoretical arrival time by 1/Rate. Burst calls may start at once.
//   - Breaker, permits and rate are checked in this order. Only a granted call uses anything up.
//   - A token that holds a permit can acquire it again at no cost, and a release counts only while its token holds a
//     permit. So both can be repeated, and each result is counted once.
//
// For one endpoint:
//   - The breaker counts OK and Failed in a window of ten buckets. It opens for OpenFor when a failure raises the
//     failed share to failureRatio or more, of at least MinCalls calls. After OpenFor, one call is granted as the
//     probe. If the probe succeeds, the breaker closes, clears the window and the line, and takes the probe's duration
//     as the mean call time. If the probe fails, the breaker opens again. If the probe ends as Neutral or its PermitTTL
//     passes, another call becomes the probe. While the breaker is not closed, the results of all other calls leave it
//     as it is.
//   - A refused call reserves a return time: the time at which its delivery may try again. The latest reserved time of
//     an endpoint is its line. A reserved time is at least a second ahead, and not before the breaker's probe. Its
//     distance from the previous reservation is the expected time until the endpoint's next call: n/Rate if n endpoints
//     wait, or the mean call time divided by the endpoint's part of the permits (Inflight/n, at least one), whichever
//     is longer. If the line is five minutes ahead, the call gets a random time in the second half of these five
//     minutes.
//
// # How endpoints share their origin
//
// An endpoint starts to wait when it is refused because of the permits or the rate, and stops when a call is granted.
// It also stops when no call for it is expected: when 250 ms have passed since a call that waits in a worker last
// asked, and 5 s since the reserved time of a delayed call. An endpoint whose breaker is open does not wait. An
// endpoint shares its origin while another endpoint waits, or was granted a call during the last minute. Then:
//   - An endpoint whose calls in the breaker's window all failed may hold one permit, because four hanging calls must
//     not slow the other endpoints down.
//   - Any other endpoint may acquire another permit only if more permits are free than it holds. So one endpoint holds
//     at most half of them, rounded up, and two endpoints with as many as they can get leave one for a third. Any
//     endpoint may use an origin's only permit. An endpoint that does not share its origin may hold all permits.
//   - The endpoint that has waited longest is served first. A permit and a call of the rate are kept for each endpoint
//     that has waited for 100 ms and longer than the asking one, that may acquire another permit by the rule above,
//     and that is expected. It is expected if it asks now, or if it has a reservation and the asking call,
//     judged by its endpoint's mean call time, would still be running then. So permits do not stay idle for an absent
//     endpoint while short calls could use them, and long calls do not overtake it.
//   - After a granted call, an endpoint that continues to wait with other calls is the last.
//
// So no endpoint starves: the longest waiting one is refused only while no permit is free beyond its share, or until
// the next call that the rate allows. No permit is kept for an endpoint that does not return, because an endpoint that
// does not ask stops waiting. At most 64 endpoints of an origin can wait; further ones are served after them.
// TestEndpointsShareOrigin simulates this.
//
// # With and without Redis
//
// While Redis answers within Timeout, its state and its clock decide. After the first failed call, the worker applies
// the same rules to its own state, immediately and for all origins, so that no other call has to wait for the timeout.
// A second later, and then every second (less often if Redis repeatedly comes and goes), it tests Redis in the
// background. When Redis answers, the worker sends the releases that Redis missed, and uses Redis again. Each change is
// logged in one line. The worker always maintains its own state as well, so it does not start from nothing.
//
// A worker that is the only one (Config.Workers) also uses its own state, because no other process needs the counts.
// That saves two calls to Redis per agent call. It checks every second, and returns to Redis when there is another
// worker.
//
// Acquire and release are one script call each. An origin has two keys and an endpoint one, all in one hash slot of a
// Redis cluster, and each key has a TTL.
//
// Invariants:
//   - One process never has more than Inflight calls in flight at one origin, even if Redis fails. All processes
//     together obey that limit while they share a Redis that keeps its data. After a FLUSHALL, or after a change
//     between shared and local state, the others do not know the calls in flight, of which each process has at most
//     Inflight.
//   - No mutex is locked during I/O. A call to Redis takes at most Timeout, and the first failed one starts an outage.
//   - Memory is bounded. An endpoint and its origin are kept while they are in use, and beyond these the most recent
//     MaxEndpoints endpoints. In Redis an origin has at most Rate times the TTL endpoints.
package ratelimit
