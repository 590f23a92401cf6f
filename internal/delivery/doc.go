// Package delivery delivers an accepted event to its agent and records the outcome in the store.
//
// executor.go contains the path of an attempt: Executor.Deliver and runAttempt call all steps in order. Each step has a
// file with one entry function, and the struct attempt contains the results of the steps:
//
//	claim.go     claimDelivery       claims the delivery, until the lease expires
//	slots/       Ticket.Acquire      acquires one of the worker's slots, until the agent has answered
//	spool.go     loadSpooledOutcome  loads the spooled outcome of an earlier attempt
//	check.go     checkDelivery       checks the event (package event), the filters, the turn and the agent
//	resolve.go   resolveEndpoint     finds the agent's endpoint; package auth adds the credential
//	fetch.go     fetchFile           fetches and verifies the feedback file (package content)
//	permit.go    admitOrigin         acquires a permit at the origin; its release reports the result to the breaker
//	prepare.go   prepareCall         lists the agent's tools and fits the arguments to one of them (package tools)
//	batch.go     gatherBatch         adds other deliveries of the agent (batch_members.go)
//	call.go      callTool            calls the tool
//	outcome.go   decideOutcome       decides how the delivery continues (packages classify, outcome)
//	record.go    recordOutcome       commits the outcome, logs it (log.go), and enqueues the agent's next tasks
//
// The other parts:
//   - asynq calls Runner, which runs each task on a context that asynq cannot cancel.
//   - Package slots bounds the deliveries that wait for a slot, have one, or are being recorded.
//   - Package queue/dispatch enqueues tasks in Redis.
//   - Package maintenance replaces tasks that Redis or a dead worker lost.
//   - Package admission limits how many attempts, and how many of their slow steps, run at a time (Gates, Pass).
//
// Package intake stores jobs, store contains the SQL, queue wraps asynq, classify classifies errors, and
// auth handles credentials. See docs/design/delivery.md, and docs/design/overview.md for the words.
//
// Invariants:
//   - A delivery is claimed before it gets a slot, and recorded after it has released the slot. At most
//     slots.MaxBesideSlots deliveries of a worker are in these two phases, in which they use no connection and no lock.
//     If the worker is killed, the outcomes of these deliveries and of the calls in flight may be unknown.
//   - A task ends in asynq after the outcome of its delivery was recorded. If the agent accepted the delivery, the task
//     ends earlier, while the outcome is being recorded.
//   - No agent is called without a claim, or if less of the lease is left than the call may take.
//   - A member of a batch has its own claim, lease and attempt, but no task. It is recorded, its claim is released, or
//     its lease expires.
//   - Only its deadline or the end of the process cancels an attempt. asynq cannot, even if it cancels the task.
//   - Recording is repeated until it succeeds, the claim is lost, or the process ends. Until then the outcome is also
//     spooled in Redis. If the latest attempt has no outcome in Postgres, the next claim reads the spool before any
//     call, so that an accepted delivery is not called again.
//   - After an outage of Postgres, the reconciler expires no lease until running workers had time to record their
//     outcomes.
//   - The transaction that records an outcome also dispatches the agent's next deliveries.
//   - A delivery that waits for at most maxTaskWait keeps its task: after the commit, asynq gets the time at which it
//     must run the task again. If asynq does not get that time, it runs the task earlier. The claim is then refused
//     because the delivery is not due, and the task waits for the rest of the time.
package delivery
