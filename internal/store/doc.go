// Package store keeps Herald's truth in Postgres: deliveries, attempts, agents, tokens, cursors (schema herald).
//
// What lives here: the SQL and its Go face. What does not: when to do what (internal/delivery) and Redis (internal/queue).
//
// Invariants:
//   - A delivery exists once its Accept has committed; from then on only a fenced write changes its course.
//   - Claim takes a row for one worker: it draws a claim number, and every later write of that worker names it. Who lost
//     the claim gets ErrFenced and must not act on the delivery again.
//   - At most HandOut deliveries of an agent are pending or running at a time; waiting and held ones do not count.
//   - Every time compared with a lease or a wait is Postgres' now(), never this machine's clock.
//   - What is written as jsonb was made storable before (no NUL, valid UTF-8, bounded); a stranger's bytes cannot make a
//     write fail.
//
// A warm delivery costs two round trips and two commits: Claim, and Record, which also hands out the agent's next ones.
package store
