// Package store is the ledger: it keeps deliveries and attempts in Postgres (schema herald). It accepts, claims,
// records, dispatches, releases and reconciles deliveries. The types of what its functions get and return, such as
// Intake, Claim and Outcome, are in internal/store/ledger. The operator's records, such as tokens, keys, the audit and
// alerts, are in internal/store/records. Package internal/store/cursor stores how far chains were read, and package
// internal/store/retention deletes old data. All use the connections of internal/store/postgres.
//
// The package contains the SQL statements and the Go functions that run them. internal/delivery decides when to call
// them; internal/queue contains the access to Redis. See docs/design/ledger.md, and docs/design/delivery.md for the
// states of a delivery.
//
// Terms:
//   - A delivery is open (queued, running, waiting or held) until it ends; then it is final.
//   - An agent's backlog consists of its queued deliveries that have no task. They are in Postgres only.
//   - To dispatch a delivery is to take it from the backlog and increase its dispatch counter, which Task.N names. The
//     dispatching function returns the Task, and its caller puts the Task into Redis.
//   - A claim gives a dispatched delivery to one worker until the lease ends. It draws a claim number, and every later
//     write of that worker names this number. Such a write is fenced: if another number was drawn since, the write
//     changes nothing.
//   - The budget of a delivery is the number of attempts that it may use. A replay, or an event that returns to the
//     chain, begins a new budget.
//   - The epoch of an agent is a counter. Workers ignore data about the agent that they cached under a lower epoch.
//   - An ordering key is a client (or validator) and an agent. Its deliveries are called one at a time, by index
//     (job.OrderSeq): the one that has the turn may be called. The others wait with the reason behind_earlier.
//   - A delivery is bound if its job was read from the chain, by the chain follower or by a worker's check (Bind). It
//     is verified if workers check its event before the call. A verified delivery that is not yet bound is unchecked.
//   - A hint is a job for a delivery's key that may name another position of the event, or another action.
//   - The chain follower (follower.Follower, internal/door/watch) reads a chain's blocks and calls AdvanceCursors.
//   - A member is a delivery that is sent in the batch call of another delivery, its leader.
//   - An event is orphaned if a reorg removed its block and the event has not been read again. It is gone if it is
//     still orphaned when the chain has been read up to its newest block. A retraction is a delivery that informs an
//     agent that a feedback is gone.
//   - A backfill reads a range of past blocks once. Its deliveries (Bulk) are dispatched after the agent's others.
//   - A refused job (Intake.Refused) is invalid. It is stored as a rejected delivery, without its content.
//   - A spooled outcome is one that Redis keeps, because Postgres was unavailable when it became known.
//   - Sealed means encrypted with the worker's keyset.
//
// Invariants:
//   - A delivery exists once its Accept has committed. From then on, only a fenced write, an operator, the reconciler,
//     retention, the chain or another job with its key changes it.
//   - A transaction that takes a running delivery from its worker draws a new claim number. A worker that has lost its
//     claim gets ErrFenced and must not act on the delivery again. Record makes one exception, for a late success.
//   - At most MaxDispatchedPerAgent deliveries of an agent have a task and are queued or running. Waiting and held
//     deliveries do not count, and neither do members, which run without a task. Only a transaction that has locked
//     the agent's row increases their number. The old task of a delivery that returned to the backlog cannot claim it.
//   - A transaction that locks agents and deliveries locks the agents first, in the order of their primary key.
//   - Times are compared with leases and waits by Postgres' now(), never by this machine's clock.
//   - Text and jsonb are made storable before they are written: no NUL, valid UTF-8, limited length. So bytes from
//     outside cannot make a write fail, and one job cannot make its batch fail.
//   - Numbers of attempts only increase. One exception: an attempt that does not count (Outcome.Free) is deleted, and
//     the next attempt gets its number.
//   - An attempt is completed once. An attempt without an outcome is running, or its outcome is unknown to Postgres;
//     Redis may have the spooled outcome (Adopt).
//   - A final status changes only by an operator's replay, when a reorg removes the event, when the event returns, or
//     by another job of an event that was missing. A revocation that was skipped (never_delivered) is queued again
//     together with its feedback. Retention deletes the contents of final deliveries. A new delivery may get the key of
//     a final one.
//   - Every call ends: a context without a deadline gets one.
//
// When no other deliveries are in progress, a delivery costs two round trips and two commits: Claim, and Record, which
// also dispatches the agent's next deliveries. Under load, several deliveries share both (package coalescer):
//   - Callers claim and record one delivery each. While a statement runs, requests queue. The next statement takes all
//     queued requests, 64 at most, and answers each. No request waits for a group to fill: if no statement is running,
//     a request runs at once. A single outcome is recorded by the statement for one request.
//   - Only plain requests are grouped: first claims, and outcomes without a rare effect. If a group's answer omits a
//     request, or if the group fails, the request is run alone, by the statement for one.
//   - A group's first caller runs the statement for all callers of the group. So the statement continues if that
//     caller's context ends. A caller that gives up while its request is queued withdraws the request. A caller that
//     gives up later still gets the committed answer and uses it.
//   - A group's statement fails after 5 s. The next group waits for it 250 ms at most. If Postgres commits a group
//     after those 5 s, no caller gets the answer. The lease of a claim then expires, as when a single answer is lost.
package store
