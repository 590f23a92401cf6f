// Package ratelimit limits the calls of all workers to one origin (scheme, host and port), and stops calls to a failing
// endpoint (a URL at an origin). The limits keep a slow agent from delaying others, even those on the same origin. The
// calls in flight and the calls per second are limited per origin, and its endpoints share both limits. Each endpoint
// has its own circuit breaker. See docs/design/limits.md.
//
// Limiter.Acquire acquires a permit, the right to one call, before any request is sent to the endpoint. Permit.Release
// releases it and reports the result of the call. The caller decides which results count as failures.
// Limiter.AcquireRate limits one agent's calls per second by the same rules, as if the agent were an origin. Package
// effort has the budgets per agent. Package outcome computes only the wait of one delivery before its retry, also after
// an agent's 429. Package netguard defines origins.
//
// # The rules
//
// The rules are a state machine (machine.go, share.go, breaker.go): each question changes the state of one origin and
// of one of its endpoints. A token names the attempt for which a call is made. For one origin:
//   - It has Inflight permits. A token holds a permit until Release, or until PermitTTL has passed since its last
//     Acquire because its worker died.
//   - The rate is limited by GCRA: each granted call moves the origin's theoretical arrival time ahead by 1/Rate. At
//     most Burst calls may start at once.
//   - Breaker, permits and rate are checked in this order. A refused call uses up neither a permit nor the rate.
//   - A token that holds a permit can acquire it again at no cost, which renews it. A release counts only while its
//     token holds a permit. So an acquire and a release can be repeated, and each result is counted once.
//
// For one endpoint:
//   - The breaker counts the results OK and Failed in a window of ten buckets. A failure opens it for OpenFor if the
//     window then has at least MinCalls calls, of which the share failureRatio or more failed.
//   - After OpenFor, one call is granted as the probe. If the probe succeeds, the breaker closes, the window and the
//     line (see the next rule) are cleared, and the probe's duration becomes the mean call time. If the probe fails,
//     the breaker opens again. If the probe ends as Neutral or its PermitTTL passes, another call becomes the probe.
//     While the breaker is not closed, the results of all other calls leave it as it is.
//   - A refused call reserves a return time: the time at which its delivery may try again. The latest reserved time of
//     an endpoint is its line. A reserved time is at least a second ahead, and not before the breaker's next probe.
//   - A reserved time is later than the endpoint's previous one by the expected time until the endpoint's next call.
//     If n endpoints wait, that is the longer of two times: n/Rate, and the mean call time divided by the endpoint's
//     part of the permits (Inflight/n, at least one). The second time is divided by Config.Returns. Until a call
//     has ended, Config.FirstMean replaces the mean. If the line is five minutes ahead, the call gets a random time in
//     the second half of these five minutes.
//
// # How endpoints share their origin
//
// An endpoint starts to wait when one of its calls is refused because of the permits or the rate. It stops when one of
// its calls is granted, or when no call for it is expected any longer: 250 ms after a call that waits in a worker last
// asked, or 5 s after the reserved time of a delayed call. An endpoint whose breaker is open does not wait.
//
// An endpoint shares its origin while another endpoint waits, or was granted a call during the last minute. Then:
//   - An endpoint whose calls in the breaker's window all failed may hold one permit, because four hanging calls must
//     not slow the other endpoints down.
//   - Any other endpoint may acquire another permit only if more permits are free than it holds. So one endpoint holds
//     at most half of the permits, rounded up. Of four or more permits, two endpoints together cannot hold all: one is
//     left for a third endpoint. Any endpoint may use an origin's only permit. An endpoint that does not share its
//     origin may hold all permits.
//   - The endpoint that has waited longest is served first. When endpoint A asks, the limiter keeps a permit and a call
//     of the rate for each endpoint B that has waited for 100 ms and for longer than A, may acquire another permit by
//     the rule above, and is expected during A's call. B is expected if it asks now, or if its reserved time is before
//     the end of A's call, judged by A's mean call time. So no permit stays idle for an absent B while A's calls are
//     short, and A's long calls do not overtake B.
//   - An endpoint that continues to wait with other calls after a granted one becomes the last.
//
// So no endpoint starves. The endpoint that has waited longest is refused only while it already holds its share of the
// permits, or no permit is free, or the rate allows no call. No permit is kept for an endpoint that does not return,
// because an endpoint that does not ask stops waiting. At most 64 endpoints of an origin can be recorded as waiting;
// further ones are served after them. TestEndpointsShareOrigin simulates this.
//
// # With and without Redis
//
// Redis stores the states, and knows no rule. A worker applies the rules to copies of the states. Then one script call
// (package versioned) replaces the states in Redis by the results. If another worker has replaced one of them since,
// the script replaces nothing and returns the present states. Then the worker applies the rules to these, and tries
// again (commit.go). All questions about one origin that arrive during a script call share the next one. The times in
// the states are those of Redis' clock.
//
// Redis can lose a state, and it does not learn of a release during an outage. So a worker counts its own permits as it
// remembers them, and keeps them when it takes over the state of an origin from Redis. If Redis has lost a state, the
// worker stores its copy again.
//
// If a script call fails or takes longer than Timeout, the worker counts alone, at all origins: it applies the same
// rules to its copies, without the permits of other workers, because it cannot see their release. So no other call to
// an agent has to wait for the timeout. The worker tests Redis in the background, a second later and then every second
// (less often if Redis repeatedly fails). When Redis answers, the worker shares its states again, and commits those
// that it has changed alone. If another worker has replaced one of them since, that state counts, and what this
// worker learned alone is lost, except for its own permits. One line of the log says that an outage begins, and one
// that it has ended.
//
// A worker also counts alone while there is no other worker (Config.Workers), because no other process needs the
// counts. That saves two script calls per agent call. The worker checks for others every second, and shares its states
// again when there is one.
//
// Redis has one key for each origin and one for each endpoint. The keys of an origin and of its endpoints are in one
// hash slot of a Redis cluster. Each key has a TTL.
//
// Invariants:
//   - One process never has more than Inflight calls in flight at one origin, even if Redis fails. All processes
//     together obey that limit while they share a Redis that keeps its data. After a FLUSHALL, and after a commit that
//     lost each try (maxTries), others learn of a worker's permits at an origin when it next asks about that origin.
//   - No mutex is locked during I/O. A call to Redis takes at most Timeout, and the first failed one starts an outage.
//   - Memory is bounded: a process remembers at most MaxEndpoints endpoints, unless its calls use more at a time. In
//     Redis, the key of an endpoint that is not called expires.
package ratelimit
