// Package event checks the event of a delivery against the chain: does the chain have it, is it confirmed, and is it
// the event that the sender of the job described? It binds the delivery to the event on the chain (ledger.Binding). For
// a revocation, a response or a retraction, it also checks the feedback to which the event refers.
//
// The package asks the chain through package chain, and it reads and changes deliveries through Ledger. It does not
// decide in which order the checks of an attempt run, does not record outcomes, and calls no agent: package delivery
// does.
//
// Invariants:
//   - Before Checker.Check, the job of a delivery is only what its sender says. After it returned nil, the job is the
//     event on the chain, with the action of a hint (chooseAction). Only if the chain has no RPC URL, or with
//     HERALD_VERIFY_EVENT=off, it is the sender's job.
//   - A delivery that was or may have been called never gets another event: its event is gone (Result.Gone).
//   - A node that does not answer refutes no hint.
package event
