// Package model is the rules of the ledger (internal/store) in plain Go: deliveries are a slice of structs, one mutex
// replaces Postgres' row locks, and every rule is a function that scans the slice. See docs/design/ledger.md.
//
// It is for tests and is never linked into a program. Histories run on it in virtual time. The suite
// internal/store/storetest runs on it and on Postgres, and TestModelIsPostgres compares the two after each operation of
// random sequences. It has no totals, no retention and no results of calls.
package model

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/tracecontext"
	"github.com/google/uuid"
)

// Store is one model of a database. It is safe for concurrent use.
type Store struct {
	mu       sync.Mutex
	now      func() time.Time
	started  time.Time
	rows     []*row // in order of acceptance
	agents   map[store.Agent]*agent
	verified []uint64 // chains whose events workers verify
	strict   bool     // set by KeepOrder
	leading  bool
	claims   int64 // the last claim number
}

// State has the columns of a delivery on which the rules depend. A zero time is null.
type State struct {
	Key, IdentityRegistry, AgentID, Error string
	Status                                store.Status
	Reason                                outcome.Reason
	Attempts, BudgetBase, FetchFailures   int // attempts; those before the present budget; failed fetches in it
	Dispatch, Replays                     int
	Hints                                 int // grows with each hint
	Called                                bool
	Bulk                                  bool      // part of a backfill
	Verified, Bound                       bool      // accepted while workers verified the chain's events; the job was read there
	Ordered                               bool      // waits for other deliveries; false: it is an ordering key of its own
	Turn                                  bool      // has the turn of its ordering key, while it is dispatched or running
	HandedAt                              time.Time // when its newest task went to Redis; zero: no task in Redis
	LeaseUntil, NextAttemptAt             time.Time
	DelaysUntil                           time.Time // delays later ones of its ordering key until then; zero: it delays none
	AcceptedAt, FinishedAt                time.Time
	History                               []store.Attempt
}

// Forever is DelaysUntil of a delivery that delays later ones until it ends or is held.
var Forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// row is a delivery.
type row struct {
	State
	id        uuid.UUID
	agent     store.Agent
	job       job.Job
	refused   bool // the job was invalid: there is no job
	received  json.RawMessage
	sealed    []byte       // headers of the job's endpoint
	source    store.Source // of the job's action
	hints     []store.Hint // empty: no job besides job was sent
	corrected []string
	claimNo   int64
	excess    bool // a response that waits for other responses of its agent, not for its feedback
	parent    string
	created   time.Time
	updated   time.Time
}

// New returns an empty store with the given clock.
func New(now func() time.Time) *Store {
	return &Store{now: now, started: now(), agents: map[store.Agent]*agent{}}
}

// KeepOrder makes the store keep the order of each ordering key, as store.Config.StrictOrder does.
func (s *Store) KeepOrder() *Store {
	s.strict = true
	return s
}

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

// drawClaim returns a new claim number: writes under an older one change nothing.
func (s *Store) drawClaim() int64 {
	s.claims++
	return s.claims
}

// isInBacklog reports whether the delivery is queued without a task.
func (r *row) isInBacklog() bool { return r.Status == store.Queued && r.HandedAt.IsZero() }

// isOut reports whether the delivery is dispatched and queued, or running.
func (r *row) isOut() bool {
	return r.Status == store.Queued && !r.HandedAt.IsZero() || r.Status == store.Running
}

// isDispatched reports whether the delivery counts towards store.MaxDispatchedPerAgent. Followers of a batch do not.
func (r *row) isDispatched() bool { return r.isOut() && !r.HandedAt.IsZero() }

// isSetAside reports whether the delivery waits for another one, which releases it.
func (r *row) isSetAside() bool {
	return r.Status == store.Waiting && r.Reason == outcome.BehindEarlier && r.HandedAt.IsZero()
}

// setStatus changes the status. The delivery then has no task, no lease and no wait; the caller may give it one.
func (r *row) setStatus(status store.Status, why outcome.Reason, now time.Time) {
	r.Status, r.Reason, r.updated = status, why, now
	r.HandedAt, r.LeaseUntil, r.NextAttemptAt, r.FinishedAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	if status.Final() {
		r.FinishedAt = now
	}
}

// queue puts the delivery into its agent's backlog.
func (r *row) queue(now time.Time) { r.setStatus(store.Queued, "", now) }

// renew begins a new budget of attempts and a new age.
func (r *row) renew(now time.Time) { r.BudgetBase, r.FetchFailures, r.AcceptedAt = r.Attempts, 0, now }

// toTask returns the task of a dispatched delivery. Those of a backfill, and replays before their first attempt, are bulk.
func (r *row) toTask() store.Task {
	return store.Task{ID: r.id, N: r.Dispatch, Kind: string(r.job.Kind), Attempts: r.Attempts, At: r.NextAttemptAt,
		Bulk: r.Bulk || r.Replays > 0 && r.Attempts <= r.BudgetBase}
}

// toEnded returns the task without which the delivery continues.
func (r *row) toEnded() store.Task { return store.Task{ID: r.id, N: r.Dispatch, Ended: true} }

func (r *row) toDelivery() store.Delivery {
	optional := func(t time.Time) *time.Time {
		if t.IsZero() || t.Sub(r.updated) > recheckTime/2 { // a delivery that another one releases: nobody knows when
			return nil
		}
		return &t
	}
	d := store.Delivery{ID: r.id, Key: r.Key, Kind: string(r.job.Kind), ChainID: r.agent.ChainID, IdentityRegistry: r.IdentityRegistry,
		AgentID: r.AgentID, Status: r.Status, Reason: r.Reason, Error: r.Error, Attempts: r.Attempts, Dispatch: r.Dispatch,
		NextAttemptAt: optional(r.NextAttemptAt), Verified: r.Verified, Corrected: r.corrected, CreatedAt: r.created, UpdatedAt: r.updated,
		FinishedAt: optional(r.FinishedAt), TraceID: tracecontext.Of(r.id, r.parent).TraceID.String(), Result: r.received,
		History: slices.Clone(r.History)}
	if !r.refused {
		d.Job, _ = json.Marshal(r.job)
	}
	return d
}

// Delivery reads a delivery with its attempts.
func (s *Store) Delivery(_ context.Context, id uuid.UUID) (store.Delivery, error) {
	return s.read(func(r *row) bool { return r.id == id })
}

// DeliveryByKey reads the delivery that has a key.
func (s *Store) DeliveryByKey(_ context.Context, key string) (store.Delivery, error) {
	return s.read(func(r *row) bool { return r.Key == key })
}

func (s *Store) read(matches func(*row) bool) (store.Delivery, error) {
	defer s.lock()()
	if r := s.find(matches); r != nil {
		return r.toDelivery(), nil
	}
	return store.Delivery{}, store.ErrNotFound
}

// All reads all deliveries in the order of acceptance.
func (s *Store) All() (all []store.Delivery) {
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

// Held returns the claim number and the end of the lease of a running delivery; running is false for others.
func (s *Store) Held(id uuid.UUID) (no int64, until time.Time, running bool) {
	defer s.lock()()
	if r := s.findID(id); r != nil && r.Status == store.Running {
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
