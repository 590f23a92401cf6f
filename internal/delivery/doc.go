// Package delivery delivers an accepted event to its agent and records the outcome in the store.
//
// executor.go contains the path of an attempt: Executor.Deliver and runAttempt call all steps in order. Each step has a
// file with one entry function, and the struct attempt contains the results of the steps:
//
//	claim.go     claimDelivery       claims the row, until the lease expires
//	completer.go slot.acquire        acquires one of the worker's slots, until the agent has answered
//	spool.go     loadSpooledOutcome  loads a known outcome that Postgres could not store
//	effort.go    acquireSlots        reserves worker time (package effort), and a slot for newcomers or costly agents
//	check.go     checkEvent          checks that the event is real and confirmed; checkAgent: that the agent is enabled
//	resolve.go   resolveEndpoint     finds the agent's endpoint; package agentauth adds the credential
//	fetch.go     fetchContent        fetches and verifies the feedback file
//	permit.go    acquirePermit       acquires a permit at the endpoint's origin (package ratelimit)
//	prepare.go   prepareCall         lists the agent's tools and fits the arguments to one of them (fit.go)
//	batch.go     gatherBatch         adds more of the agent's deliveries (batch_followers.go, batch_answer.go)
//	call.go      callTool            calls the tool
//	outcome.go   decideOutcome       decides how the delivery continues (package retry)
//	record.go    recordOutcome       commits the outcome, logs it (log.go), and enqueues the agent's next deliveries
//
// The other parts are: Runner, which asynq calls, and which runs each delivery once, on a context of its own;
// completer, which bounds the deliveries before, in and after a slot; Dispatcher, which enqueues tasks in Redis, while
// package maintenance finds tasks that Redis or a dead worker lost; and Newcomers, which bounds the slots of agents
// without a recent success.
//
// Package intake stores jobs, store contains the SQL, queue wraps asynq, delivery/retry classifies errors, and
// agentauth handles credentials. See docs/design/delivery.md.
//
// Invariants:
//   - Slots are only for calls. The claim precedes the slot, and the record follows it. At most maxBesideSlots
//     deliveries are in these two phases, where they hold no connection and no lock. After kill -9, the outcomes of
//     these deliveries and of the calls in flight may be unknown.
//   - asynq learns the end of a delivery after it was recorded, except a plain success, which it learns before the
//     record.
//   - No agent is called without a claim, or with less of the lease left than the call may take.
//   - A follower, which is delivered in another delivery's call, has its own claim, lease and attempt, but no task. It
//     is recorded or released, or its lease expires.
//   - A delivery runs on a context that asynq cannot cancel. It ends with its deadline or with the process.
//   - Recording is repeated until it succeeds, the claim is lost, or the process ends. Until then, the outcome is also
//     in Redis. A claim after an attempt without an outcome looks there first, so that a known outcome is not delivered
//     again.
//   - After an outage of Postgres, no worker loses a claim until all living workers could record their outcomes.
//   - The transaction that records a delivery also dispatches the agent's next deliveries.
//   - A delivery with a short wait keeps its task: after the commit, asynq is asked to run the task again when it is
//     due. If asynq does not learn that, it considers the task lost and runs it at any time. A task that runs too early
//     waits for the rest of the time.
package delivery
