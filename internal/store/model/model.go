// Package model has the rules of the ledger (internal/store) in plain Go. Deliveries are a slice of structs, one mutex
// replaces Postgres' row locks, and every rule is a function that scans the slice. See docs/design/ledger.md.
//
// The package is for tests and is never linked into a program. Random histories of deliveries run on it in virtual
// time. The suite internal/testing/storetest runs on it and on Postgres, and TestModelIsPostgres compares the two after
// each operation of random sequences. The model has no totals, no retention, no results of calls and no counts of them.
package model

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// Store models one database. It is safe for concurrent use.
type Store struct {
	mu       sync.Mutex
	now      func() time.Time
	started  time.Time
	rows     []*row // deliveries, in order of acceptance
	agents   map[erc8004.Agent]*agent
	verified []uint64      // chains whose events workers verify
	strict   bool          // deliveries of one ordering key are called in order (KeepOrder)
	order    func() string // UseOrder
	lead     sync.Mutex    // locked while a call of Lead runs
	claims   int64         // the last claim number that was drawn
	seq      int           // row.seq of the last row
}

// State has the columns of a delivery that the rules use, for comparison with Postgres. A zero time is null.
type State struct {
	Key, IdentityRegistry, AgentID, Error string
	Status                                outcome.Status
	Reason                                outcome.Reason
	Attempts                              int // of all budgets
	BudgetBase                            int // value of Attempts when the present budget began
	FetchFailures                         int // failed fetches of the feedback file in the present budget
	Dispatch, Replays                     int
	Hints                                 int // raised when others add a hint or replace the job
	Called                                bool
	Bulk                                  bool      // part of a backfill
	Verified                              bool      // workers verified the chain's events at acceptance
	Bound                                 bool      // the job was read from the chain
	Ordered                               bool      // may wait for other deliveries (order_hash is not null)
	Turn                                  bool      // has the turn of its ordering key, while dispatched or running
	HandedAt                              time.Time // when its present task was created; zero: it has no task
	LeaseUntil, NextAttemptAt             time.Time
	DelaysUntil                           time.Time // until when it delays later ones of its ordering key; zero: none
	AcceptedAt, FinishedAt                time.Time
	History                               []ledger.Attempt
}

// Forever is the DelaysUntil of a delivery that delays later ones until it ends or is held.
var Forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// row is a delivery.
type row struct {
	State
	id        uuid.UUID
	seq       int // number in the order of acceptance
	agent     erc8004.Agent
	job       job.Job
	refused   bool // the job was invalid and is not stored
	received  json.RawMessage
	sealed    []byte        // encrypted headers of the job's endpoint
	source    ledger.Source // sender of the job whose endpoint and headers (action) are used
	hints     []ledger.Hint // empty: no other job was sent for the key
	corrected []string
	claimNo   int64
	excess    bool // the delivery waits because its agent has maxResponses other responses, not for its feedback
	parent    string
	created   time.Time
	updated   time.Time
}

// New returns an empty store with the given clock.
func New(now func() time.Time) *Store {
	return &Store{now: now, started: now(), agents: map[erc8004.Agent]*agent{}}
}

// KeepOrder switches on the order of the deliveries of each ordering key, like store.Store.StrictOrder. It
// returns s.
func (s *Store) KeepOrder() *Store {
	s.strict = true
	return s
}

// UseOrder sets the order of the default policy, like store.Store.UseOrder.
func (s *Store) UseOrder(order func() string) { s.order = order }

// lock locks the store and returns the function that unlocks it.
func (s *Store) lock() (unlock func()) {
	s.mu.Lock()
	return s.mu.Unlock
}

// find returns the delivery that matches, or nil.
func (s *Store) find(matches func(*row) bool) *row {
	if i := slices.IndexFunc(s.rows, matches); i >= 0 {
		return s.rows[i]
	}
	return nil
}

func (s *Store) findID(id uuid.UUID) *row { return s.find(func(r *row) bool { return r.id == id }) }
func (s *Store) findKey(key string) *row  { return s.find(func(r *row) bool { return r.Key == key }) }

// count returns how many deliveries match.
func (s *Store) count(matches func(*row) bool) (n int) {
	for _, r := range s.rows {
		if matches(r) {
			n++
		}
	}
	return n
}

// drawClaim returns a new claim number. After it is stored in a delivery, writes under an older number of this delivery
// change nothing.
func (s *Store) drawClaim() int64 {
	s.claims++
	return s.claims
}

// isInBacklog reports whether the delivery is in its agent's backlog: queued without a task.
func (r *row) isInBacklog() bool { return r.Status == outcome.Queued && r.HandedAt.IsZero() }

// isOut reports whether the delivery is queued with a task, or running (place = 'out').
func (r *row) isOut() bool {
	return r.Status == outcome.Queued && !r.HandedAt.IsZero() || r.Status == outcome.Running
}

// isDispatched reports whether the delivery counts towards ledger.MaxDispatchedPerAgent. The members of a batch run
// without a task, so they do not count.
func (r *row) isDispatched() bool { return r.isOut() && !r.HandedAt.IsZero() }

// isSetAside reports whether the delivery waits outside the backlog (behind_earlier) until another one releases it.
func (r *row) isSetAside() bool {
	return r.Status == outcome.Waiting && r.Reason == outcome.BehindEarlier && r.HandedAt.IsZero()
}

// setStatus changes the status. It clears the task, the lease and the end of the wait; the caller may set them again.
func (r *row) setStatus(status outcome.Status, why outcome.Reason, now time.Time) {
	r.Status, r.Reason, r.updated = status, why, now
	r.HandedAt, r.LeaseUntil, r.NextAttemptAt, r.FinishedAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	if status.Final() {
		r.FinishedAt = now
	}
}

// setQueued puts the delivery into its agent's backlog.
func (r *row) setQueued(now time.Time) { r.setStatus(outcome.Queued, "", now) }

// renew begins a new budget of attempts, and a new period after which Expire ends the delivery.
func (r *row) renew(now time.Time) { r.BudgetBase, r.FetchFailures, r.AcceptedAt = r.Attempts, 0, now }

// toTask returns the task of a dispatched delivery. Tasks of a backfill, and of a replay before its first attempt, go
// to the lane bulk.
func (r *row) toTask() ledger.Task {
	return ledger.Task{ID: r.id, N: r.Dispatch, Kind: string(r.job.Kind), Attempts: r.Attempts, At: r.NextAttemptAt,
		Bulk: r.Bulk || r.Replays > 0 && r.Attempts <= r.BudgetBase}
}

// toEnded returns the delivery's task, marked as no longer needed (ledger.Task.Ended).
func (r *row) toEnded() ledger.Task { return ledger.Task{ID: r.id, N: r.Dispatch, Ended: true} }

func (r *row) toDelivery() ledger.Delivery {
	optional := func(t time.Time) *time.Time {
		if t.IsZero() || t.Sub(r.updated) > recheckTime/2 { // it waits until another delivery ends, at an unknown time
			return nil
		}
		return &t
	}
	d := ledger.Delivery{ID: r.id, Key: r.Key, Kind: string(r.job.Kind), ChainID: r.agent.ChainID,
		IdentityRegistry: r.IdentityRegistry, AgentID: r.AgentID, Status: r.Status, Reason: r.Reason, Error: r.Error,
		Attempts: r.Attempts, Dispatch: r.Dispatch, NextAttemptAt: optional(r.NextAttemptAt), Verified: r.Verified,
		Corrected: r.corrected, CreatedAt: r.created, UpdatedAt: r.updated, FinishedAt: optional(r.FinishedAt),
		TraceID: tracecontext.Of(r.id, r.parent).TraceID.String(), Result: r.received, History: slices.Clone(r.History)}
	if !r.refused {
		d.Job, _ = json.Marshal(r.job)
	}
	return d
}

// Delivery reads a delivery with its attempts.
func (s *Store) Delivery(_ context.Context, id uuid.UUID) (ledger.Delivery, error) {
	return s.readDelivery(func(r *row) bool { return r.id == id })
}

// DeliveryByKey reads the delivery that has the key.
func (s *Store) DeliveryByKey(_ context.Context, key string) (ledger.Delivery, error) {
	return s.readDelivery(func(r *row) bool { return r.Key == key })
}

func (s *Store) readDelivery(matches func(*row) bool) (ledger.Delivery, error) {
	defer s.lock()()
	if r := s.find(matches); r != nil {
		return r.toDelivery(), nil
	}
	return ledger.Delivery{}, ledger.ErrNotFound
}

// All reads all deliveries in the order of acceptance.
func (s *Store) All() (all []ledger.Delivery) {
	defer s.lock()()
	for _, r := range s.rows {
		all = append(all, r.toDelivery())
	}
	return all
}

// States returns the state of all deliveries in the order of acceptance.
func (s *Store) States() (all []State) {
	defer s.lock()()
	for _, r := range s.rows {
		x := r.State
		x.Turn, x.History = r.hasTurn(), slices.Clone(r.History)
		all = append(all, x)
	}
	return all
}

// Held returns the claim number and the end of the lease of a running delivery; for any other delivery, running is
// false.
func (s *Store) Held(id uuid.UUID) (no int64, until time.Time, running bool) {
	defer s.lock()()
	if r := s.findID(id); r != nil && r.Status == outcome.Running {
		return r.claimNo, r.LeaseUntil, true
	}
	return 0, time.Time{}, false
}

// MostDispatched returns the largest number of dispatched deliveries of an agent.
func (s *Store) MostDispatched() (most int) {
	defer s.lock()()
	for a := range s.agents {
		most = max(most, s.count(func(r *row) bool { return r.agent == a && r.isDispatched() }))
	}
	return most
}

// Clock returns the store's time, and the time of its start.
func (s *Store) Clock(context.Context) (now, started time.Time, err error) {
	defer s.lock()()
	return s.now(), s.started, nil
}

// Restart simulates a restart of Postgres.
func (s *Store) Restart() {
	defer s.lock()()
	s.started = s.now()
}
