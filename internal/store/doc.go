// Package store keeps deliveries, attempts, agents, tokens and cursors in Postgres (schema herald).
//
// The package contains the SQL and the Go functions that run it. internal/delivery decides when to call them;
// internal/queue contains the access to Redis. See docs/design/ledger.md.
//
// Invariants:
//   - A delivery exists once its Accept has committed. From then on, only a fenced write changes its state.
//   - Claim takes a delivery for one worker. It draws a claim number, and every later write of that worker names it. A
//     transaction that takes a running delivery from its worker draws a new number. A worker that has lost its claim
//     gets ErrFenced and must not act on the delivery again. Record makes one exception, for a late success.
//   - At most MaxDispatchedPerAgent deliveries of an agent are pending or running with a task of their own. Waiting and
//     held deliveries do not count, and neither do followers, which run without a task (handed_at is null). Only a
//     holder of the agent's row lock adds to them. The task of a delivery that returned to the backlog (handed_at is
//     null) cannot claim it.
//   - A transaction that locks agents and deliveries locks the agents first, in the order of their primary key.
//   - Times are compared with leases and waits by Postgres' now(), never by this machine's clock.
//   - Text and jsonb are made storable before they are written: no NUL, valid UTF-8, limited length. So bytes from
//     outside cannot make a write fail, and one job cannot make its batch fail.
//   - The budget used is attempts minus budget_base. A replay, or an event that returns, begins a new budget. Numbers
//     of attempts only increase, except that the number of a free attempt is used again.
//   - An attempt is completed once. An attempt without an outcome is running, or its outcome is unknown to Postgres;
//     Redis may have the spooled outcome (Adopt).
//   - A final delivery changes only by an operator's replay, by retention, which deletes its contents, or by the chain:
//     when a reorg removes its event, when its event returns, or when another event gets its key.
//   - One worker at a time renews an access token: it leases the renewal and saves the token under the renewal's
//     number. A token that was obtained with a replaced credential is not saved.
//   - Every call ends: a context without a deadline gets one.
//
// When no other deliveries are in progress, a delivery costs two round trips and two commits: Claim, and Record, which
// also dispatches the agent's next deliveries. Under load, several deliveries share both (coalescer.go):
//   - Callers claim and record one delivery each. While a statement runs, requests queue. The next statement takes all
//     queued requests, 64 at most, and answers each. No request waits for a group to fill: if no statement is running,
//     a request runs at once. A single record uses the statement for one.
//   - Only plain requests are grouped. If a group's answer omits a row, or if the group fails, its requests are run one
//     by one, so the statements for one decide.
//   - The first caller of a group runs its statement, under a context that does not end with that caller's. A caller
//     that gives up while it is queued leaves. A caller that gives up later still gets the committed answer and uses
//     it.
//   - A statement that stalls delays the next group by 250 ms, and its own group by 5 s. If Postgres commits it after
//     that, no caller is left: the lease of a claim then expires, as when the answer to a single claim is lost.
package store
