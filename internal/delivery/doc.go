// Package delivery takes an accepted delivery to its agent and its outcome to the store.
//
// executor.go shows the way of an attempt: Executor.Deliver and runAttempt call every step in order, each step is a
// file with one entry, and an attempt holds what the steps came to:
//
//	claim.go     claimDelivery       the row, for as long as the lease lasts
//	completer.go slot.acquire        one of the worker's slots, until the agent has answered
//	spool.go     loadSpooledOutcome  what an attempt led to that Postgres could not take
//	effort.go    acquireSlots        the agent's worker time (package effort), and a slot of newcomers or of costly agents
//	check.go     checkEvent          is the event real, confirmed, not revoked; checkAgent: is the agent enabled
//	resolve.go   resolveEndpoint     where the agent is called; package agentauth says with which credential
//	fetch.go     fetchContent        the feedback file, verified
//	permit.go    acquirePermit       one of the calls that the endpoint's origin may have (package ratelimit)
//	prepare.go   prepareCall         the agent's tools listed, the arguments fitted to one of them (fit.go)
//	batch.go     gatherBatch         more of the agent's deliveries in the same call (batch_followers.go, batch_answer.go)
//	call.go      callTool            the call
//	outcome.go   decideOutcome       what becomes of the delivery (package retry)
//	record.go    recordOutcome       one transaction, and the agent's next deliveries into Redis; log.go has the line
//
// Around it: Runner (what asynq calls: a context of its own, one run per delivery), completer (how many deliveries may
// be ahead of a slot, in one, and behind it), Dispatcher (tasks into Redis; package maintenance finds what Redis or a
// dead worker lost), Newcomers (what agents without a recent success get of the slots).
//
// What does not live here: how jobs get into the store (intake), SQL (store), asynq (queue), the meaning of errors
// (delivery/retry), credentials (agentauth), chains, content, MCP.
//
// Invariants:
//   - A slot is for calls: the claim comes before it and the record after it, maxBesideSlots of both at most, which is
//     what kill -9 may leave in doubt beside the calls in flight. They wait there without holding a connection or lock.
//   - asynq is told the end of a delivery when that is recorded, of plain success when only the record is left.
//   - Nothing is called without a claim, and not with less of its lease left than the call may take.
//   - What goes in another one's call (a follower) has a claim, a lease and an attempt of its own, and no task: it is
//     recorded, given back, or comes back with its lease.
//   - A delivery runs on a context that asynq cannot cancel; it ends with its deadline or with the process.
//   - Recording is tried until it is done, the claim is lost or the process ends; meanwhile Redis has the outcome, and
//     a claim after an attempt that never ended looks there first: what is known must not be asked for again.
//   - After Postgres was away nothing is taken from a worker until every living one could record what it knows.
//   - The agent's next deliveries are handed out by the transaction that records this one.
//   - A short wait keeps its task: asynq, which is told after Postgres, runs it again when it is due. If asynq was not
//     told, it takes the task for lost and runs it in its own time: what comes too early waits for what is left.
package delivery
