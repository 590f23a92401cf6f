// Package delivery takes an accepted delivery to its agent and its outcome to the store.
//
// It reads like the way of a delivery: Executor.Deliver is claim, then check, resolve, fetch, compose, call, then record; each
// step is a file of its own. Around it: Runner (what asynq calls: a slot, a context of its own, one run per delivery),
// Dispatcher (tasks into Redis; package maintenance finds what Redis or a dead worker lost), Intake (jobs into the store), Results
// (outcomes that Postgres could not take), Limits (what one origin gets; package ratelimit), Newcomers (what agents without a recent success get of the
// slots). Which credential goes to an agent is known to package agentauth.
//
// What does not live here: SQL (store), asynq (queue), the meaning of errors (delivery/retry), chains, content, MCP.
//
// Invariants:
//   - Nothing is called without a claim, and not with less of its lease left than the call may take.
//   - A delivery runs on a context that asynq cannot cancel; it ends with its deadline or with the process.
//   - Recording is tried until it is done, the claim is lost or the process ends; meanwhile Redis has the outcome, and a claim after an
//     attempt that never ended looks there first: what is known must not be asked for again.
//   - After Postgres was away nothing is taken from a worker until every living one could record what it knows.
//   - The agent's next deliveries are handed out by the transaction that records this one.
package delivery
