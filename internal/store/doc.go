// Package store keeps Herald's truth in Postgres: deliveries, attempts, agents, tokens, cursors (schema herald).
//
// What lives here: the SQL and its Go face. What does not: when to do what (internal/delivery) and Redis
// (internal/queue).
//
// Invariants:
//   - A delivery exists once its Accept has committed; from then on only a fenced write changes its course.
//   - Claim takes a row for one worker: it draws a claim number, and every later write of that worker names it. Whoever
//     takes a running row from its worker draws a new one. Who lost the claim gets ErrFenced and must not act on the
//     delivery again; a late success is the one exception (Record).
//   - at most MaxDispatchedPerAgent deliveries of an agent are pending or running with a task of their own at a time;
//     waiting and held ones do not count, nor do followers, which run without one (handed_at is null). Only a holder of the agent's row lock adds to them. A task whose row went back into the line
//     (handed_at is null) claims nothing.
//   - Whoever locks agents and deliveries in one transaction locks the agents first, in the order of their primary key.
//   - Every time compared with a lease or a wait is Postgres' now(), never this machine's clock.
//   - What is written as jsonb or text was made storable before (no NUL, valid UTF-8, bounded); a stranger's bytes
//     cannot make a write fail, nor one job the batch it came in.
//   - A budget is what attempts has beyond budget_base. A replay, or an event that came back, begins a new one;
//     attempts' numbers only go on, but that a free attempt's is used again.
//   - An attempt is completed once. One without outcome is under way, or its outcome is unknown: only Redis may know it
//     (Adopt).
//   - What is final changes only by an operator's replay, by retention (which drops what it carried), or when its event
//     comes back.
//   - An access token is renewed by one worker at a time: it leases the renewal and saves by its number. A credential
//     that was replaced meanwhile takes nothing that was had for the one before.
//   - Every call ends: a context without a deadline gets one.
//
// A warm delivery costs two round trips and two commits alone: Claim, and Record, which also dispatches the agent's next
// ones. Under load it shares both with others (coalescer.go):
//   - Callers claim and record one delivery. While a statement is under way, requests wait; the next statement takes
//     all that wait, 64 at most, and answers each. Nobody waits for a group to fill, and a request that finds nothing
//     under way is made alone, by the statement for one.
//   - Only plain requests go in groups. A row that is missing from a group's answer, and every row of a group that
//     failed, is tried alone, so the statements for one decide.
//   - The first caller of a group runs its statement, on a context that is no caller's. Who gives up while waiting leaves;
//     who gives up later gets what was committed nevertheless, and uses it as if it had not given up.
//   - A statement that stalls keeps the next one waiting for 250 ms, and its own group for five seconds. What Postgres
//     commits after that has no caller: a claim's lease runs out, as when the answer to a claim made alone is lost.
package store
