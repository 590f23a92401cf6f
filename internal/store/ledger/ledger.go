// Package ledger has the types of the ledger: the parameters and results of its methods, and the rules about these
// values that need no database. Package store keeps the ledger in Postgres, and package store/model in memory.
// Commands, pages and the steps of an attempt use this package, and declare the methods of the ledger that they call.
// Accept, Claim, Bind, Record and other methods that comments name are those of store.Store.
//
// A job arrives as an Intake, and the ledger answers with an Acceptance. Its delivery gets a Task. A worker runs the
// task with a Claim, and records the Outcome of the attempt. Operators see the Delivery. A Hint is another job with
// the key of a delivery. The comment of package store defines the terms and has the invariants.
package ledger

import (
	"cmp"
	"errors"
	"math"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/google/uuid"
)

// MaxDispatchedPerAgent limits the dispatched deliveries of one agent: those with a task in Redis, and those that are
// running. The limit keeps the queues in Redis short, and keeps many deliveries of one agent from delaying those of
// other agents.
const MaxDispatchedPerAgent = 8

// ErrFenced is returned by a write whose claim is lost: its lease expired, an operator cancelled the delivery, or an
// earlier claim's attempt succeeded and ended the delivery. The write changed nothing, except as described at Record.
var ErrFenced = errors.New("the claim on this delivery is lost: its lease ran out and another worker continued it")

// ErrStale is returned by Adopt if the attempt to which the outcome belongs already has an outcome, or was deleted
// because it did not count (Outcome.Free). The write changed nothing, and the claim is still valid.
var ErrStale = errors.New("the outcome belongs to an attempt that has been recorded already")

// ErrNotFound is returned when the requested row does not exist.
var ErrNotFound = errors.New("not found")

// Task is a task of a delivery that the caller must put into Redis, or remove there if Ended is set. N is the
// delivery's dispatch counter: a task whose N is not the present value cannot claim the delivery.
type Task struct {
	ID       uuid.UUID
	N        int
	Kind     string
	Attempts int // number of earlier attempts; above 0, the task goes to the lane retry
	// Bulk sends the task to the lane bulk: a queue in Redis that workers serve seldom while other lanes have tasks. It
	// is set if the delivery is part of a backfill, or was replayed and not attempted since.
	Bulk bool
	At   time.Time // earliest time at which the task may run; zero: now

	// Ended: the delivery was released, replayed or cancelled, and no longer needs this task. The caller removes the
	// task from Redis.
	Ended bool
}

// Vanished is a delivery whose event a reorg removed from the chain.
type Vanished struct {
	ID        uuid.UUID
	Key       string
	Cancelled bool // AdvanceCursors cancelled the delivery (reorg)
	Called    bool // the agent was or may have been called
	// Retraction is the id of the delivery that informs the agent. Zero: no such delivery exists, because the agent was
	// not called or the event is not a feedback.
	Retraction uuid.UUID
}

// WorkerGone is how long a worker counts as running after its last report (ReportVerified, records.ReportWorker).
const WorkerGone = time.Minute

// AgentRange is a part of all agents: those after an agent, up to the last one. A statement that reads all would take
// too long once strangers have made many. A zero Last: all agents after After.
type AgentRange struct{ After, Last erc8004.Agent }

// Arguments returns the range as arguments of a statement.
func (r AgentRange) Arguments() []any {
	after, last := r.After, r.Last
	if last == (erc8004.Agent{}) {
		last.ChainID = math.MaxInt64
	}
	return []any{after.ChainID, after.Registry, cmp.Or(after.ID, "0"), last.ChainID, last.Registry,
		cmp.Or(last.ID, "0")}
}
