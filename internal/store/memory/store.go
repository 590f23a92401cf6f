package memory

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/tracecontext"
	"github.com/google/uuid"
)

// clockTolerance is how early a waiting delivery may be claimed, as in the Postgres store.
const clockTolerance = time.Second

// Store is one model of a database. It is safe for concurrent use.
type Store struct {
	now    func() time.Time
	strict bool // set by KeepOrder

	mu      sync.Mutex
	started time.Time
	rows    []*row // in order of acceptance
	byID    map[uuid.UUID]*row
	byKey   map[string]*row
	agents  map[store.Agent]*agent
	claims  int64 // the last claim number
	leading bool

	verified []uint64 // chains whose events workers verify
}

// row is a delivery, with the columns that operators do not see.
type row struct {
	store.Delivery
	agent    store.Agent
	job      job.Job
	sealed   []byte
	source   store.Source // of the job's action
	bound    bool         // job was read from the chain
	verified bool         // accepted while workers verified the chain's events
	hints    int          // grows with each hint
	stored   []store.Hint // nil: no job besides job
	claimNo  int64
	lease    time.Time // while running: end of the lease
	handed   time.Time // when its newest task went to Redis; zero: no task in Redis
	accepted time.Time
	called   bool
	bulk     bool
	base     int // attempts before the present budget
	replays  int
	fetches  int    // failed fetches in the present budget
	parent   string // traceparent of the job

	holdsUntil time.Time // blocks later ones of its ordering key until then; zero: never
	history    []*store.Attempt
}

type agent struct {
	epoch, raised int64
	disabled      bool
	policy        store.Policy
	known         store.AgentRow // observations of its server
	hours         []store.AgentHour
}

// neverRaised represents raised_epoch IS NULL.
const neverRaised = -1

// New returns an empty store with the given clock.
func New(now func() time.Time) *Store {
	return &Store{now: now, started: now(), byID: map[uuid.UUID]*row{}, byKey: map[string]*row{},
		agents: map[store.Agent]*agent{}}
}

// Accept stores jobs as deliveries and dispatches as many as their agents may have.
func (s *Store) Accept(_ context.Context, in []store.Intake) ([]store.Acceptance, []store.Task, error) {
	if len(in) > store.MaxAccept {
		return nil, nil, fmt.Errorf("memory: at most %d jobs at once", store.MaxAccept)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]store.Acceptance, len(in))
	var agents []store.Agent
	for i, it := range in {
		out[i] = s.acceptOne(it)
		if it.Refused == "" {
			agents = append(agents, jobAgent(it.Job))
		}
	}
	return out, s.dispatch(agents...), nil
}

func (s *Store) acceptOne(it store.Intake) store.Acceptance {
	a := jobAgent(it.Job)
	if it.Job.Kind == job.KindAgentUpdated && it.Refused == "" {
		s.agent(a).epoch++
		return store.Acceptance{Verdict: store.Refreshed}
	}
	key := cmp.Or(it.Key, it.Job.Key())
	if known, ok := s.byKey[key]; ok {
		return s.answerKnown(known, it)
	}
	r := s.acceptAs(it, key, job.IDOf(key))
	return store.Acceptance{Verdict: store.Accepted, ID: r.ID, Key: key, Status: r.Status}
}

// acceptAs inserts a delivery.
func (s *Store) acceptAs(it store.Intake, key string, id uuid.UUID) *row {
	now, a := s.now(), jobAgent(it.Job)
	r := &row{agent: a, job: it.Job, sealed: it.SealedHeaders, source: it.Source, accepted: now, bulk: it.Bulk, parent: it.Traceparent,
		verified: slices.Contains(s.verified, a.ChainID)}
	r.Delivery = store.Delivery{ID: id, Key: key, Seq: int64(len(s.rows) + 1), Kind: string(it.Job.Kind),
		ChainID:          a.ChainID,
		IdentityRegistry: a.Registry, AgentID: a.ID, Status: store.Queued, CreatedAt: now, UpdatedAt: now, Verified: slices.Contains(s.verified, a.ChainID),
		TraceID: tracecontext.Of(id, it.Traceparent).TraceID.String()}
	if it.Refused != "" {
		r.finish(store.Rejected, reason.InvalidJob, now)
		r.Error, r.Result = it.Refused, it.Received
	} else {
		s.agent(a)
		r.Job, _ = json.Marshal(it.Job)
		if r.hasOrder() {
			r.holdsUntil = forever
		}
		if look, waits := s.orderWait(r, now); waits {
			r.stepBehind(look, now)
		}
	}
	s.rows = append(s.rows, r)
	s.byID[r.ID], s.byKey[key] = r, r
	return r
}

// Claim claims delivery id for task n. It returns nil if it refuses the claim, with a *store.EarlyError if the delivery
// is not due.
func (s *Store) Claim(_ context.Context, id uuid.UUID, n int, lease time.Duration) (*store.Claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	r := s.byID[id]
	if r == nil || n < 1 || r.Dispatch != n || r.handed.IsZero() {
		return nil, nil
	}
	if r.Status == store.Waiting {
		if r.NextAttemptAt.After(now.Add(clockTolerance)) {
			return nil, &store.EarlyError{Left: r.NextAttemptAt.Sub(now), Reason: r.Reason, Text: r.Error}
		}
		if look, waits := s.orderWait(r, now); waits {
			r.stepBehind(look, now)
			return nil, nil
		}
		if s.countDispatched(r.agent) >= r.mayDispatch() { // no free slot: back to the backlog
			r.queue(now)
			return nil, nil
		}
	} else if r.Status != store.Queued {
		return nil, nil
	}
	unfinished := func(after int) bool {
		return slices.ContainsFunc(r.history,
			func(a *store.Attempt) bool { return a.Outcome == "" && a.Number > after })
	}
	mayBeCalled := r.bound || !r.verified
	ever, inDoubt := unfinished(0), mayBeCalled && unfinished(r.base)
	r.Status, r.Reason, r.NextAttemptAt, r.UpdatedAt = store.Running, "", nil, now
	r.claimNo, r.lease = s.nextClaim(), now.Add(lease)
	r.Attempts++
	r.history = append(r.history, &store.Attempt{Number: r.Attempts, StartedAt: now, Stage: "claim"})
	g := s.agent(r.agent)
	return &store.Claim{ID: id, N: n, No: r.claimNo, Attempt: r.Attempts, StartedAt: now, LeaseUntil: r.lease,
		Key: r.Key, Job: r.job,
		SealedHeaders: r.sealed, CreatedAt: r.CreatedAt, Called: r.called || mayBeCalled && ever,
		Source: r.source, Bound: r.bound, Verified: r.verified, Hints: r.hints, Corrected: r.Corrected, Epoch: g.epoch, Enabled: !g.disabled,
		Budget: max(r.Attempts-r.base, 1), FetchFailures: r.fetches, Unfinished: ever, InDoubt: inDoubt,
		Replay: r.replays > 0, Policy: g.policy, Protocol: g.known.Protocol,
		Succeeded:   g.known.LastOKAt != nil && now.Sub(*g.known.LastOKAt) < store.RecentSuccess,
		Traceparent: r.parent, AheadOf: s.aheadOf(r, now)}, nil
}

// Extend renews a claim's lease that has not expired.
func (s *Store) Extend(_ context.Context, c *store.Claim, d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	r := s.byID[c.ID]
	if !r.isHeldBy(c) || !r.lease.After(now) {
		return store.ErrFenced
	}
	r.lease, r.UpdatedAt = now.Add(d), now
	c.LeaseUntil = r.lease
	return nil
}

// Delivery reads a delivery with its attempts.
func (s *Store) Delivery(_ context.Context, id uuid.UUID) (store.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.byID[id]
	if r == nil {
		return store.Delivery{}, store.ErrNotFound
	}
	return r.toDelivery(), nil
}

// DeliveryByKey reads the delivery that has a key.
func (s *Store) DeliveryByKey(_ context.Context, key string) (store.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.byKey[key]
	if r == nil {
		return store.Delivery{}, store.ErrNotFound
	}
	return r.toDelivery(), nil
}

// All reads all deliveries in the order of acceptance.
func (s *Store) All() []store.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]store.Delivery, len(s.rows))
	for i, r := range s.rows {
		all[i] = r.toDelivery()
	}
	return all
}

// Held returns the claim number and the end of the lease of a running delivery; running is false for others.
func (s *Store) Held(id uuid.UUID) (no int64, until time.Time, running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.byID[id]
	if r == nil || r.Status != store.Running {
		return 0, time.Time{}, false
	}
	return r.claimNo, r.lease, true
}

// MostDispatched returns the largest number of pending or running deliveries of an agent.
func (s *Store) MostDispatched() (most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := map[store.Agent]int{}
	for _, r := range s.rows {
		if r.isDispatched() {
			count[r.agent]++
			most = max(most, count[r.agent])
		}
	}
	return most
}

// Clock returns the store's time, and the time of its start.
func (s *Store) Clock(context.Context) (now, started time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now(), s.started, nil
}

// Restart simulates a restart of Postgres.
func (s *Store) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = s.now()
}

func (r *row) toDelivery() store.Delivery {
	d := r.Delivery
	if at := d.NextAttemptAt; at != nil && at.Sub(r.UpdatedAt) > lookTime/10 { // the end of the wait is not known
		d.NextAttemptAt = nil
	}
	for _, a := range r.history {
		d.History = append(d.History, *a)
	}
	return d
}

func (r *row) isHeldBy(c *store.Claim) bool {
	return r != nil && r.claimNo == c.No && r.Status == store.Running
}

// isDispatched reports whether the delivery counts towards MaxDispatchedPerAgent.
func (r *row) isDispatched() bool {
	return !r.handed.IsZero() && (r.Status == store.Queued || r.Status == store.Running)
}

// queue puts the delivery into its agent's backlog.
func (r *row) queue(now time.Time) {
	r.Status, r.Reason, r.NextAttemptAt, r.FinishedAt, r.handed, r.lease, r.UpdatedAt = store.Queued, "", nil, nil,
		time.Time{}, time.Time{}, now
}

func (r *row) finish(status store.Status, why reason.Reason, now time.Time) {
	r.Status, r.Reason, r.NextAttemptAt, r.FinishedAt, r.handed, r.lease, r.UpdatedAt = status, why, nil, &now,
		time.Time{}, time.Time{}, now
}

func (s *Store) agent(a store.Agent) *agent {
	g := s.agents[a]
	if g == nil {
		g = &agent{raised: neverRaised, known: store.AgentRow{State: store.StatePending, CreatedAt: s.now(),
			UpdatedAt: s.now()}}
		s.agents[a] = g
	}
	return g
}

func (s *Store) nextClaim() int64 {
	s.claims++
	return s.claims
}

func (s *Store) countDispatched(a store.Agent) (n int) {
	for _, r := range s.rows {
		if r.agent == a && r.isDispatched() {
			n++
		}
	}
	return n
}

// dispatch dispatches the agents' next deliveries, oldest first, up to MaxDispatchedPerAgent per agent.
func (s *Store) dispatch(agents ...store.Agent) (tasks []store.Task) {
	now := s.now()
	done := map[store.Agent]bool{}
	for _, a := range agents {
		if done[a] {
			continue
		}
		done[a] = true
		for _, r := range s.listLine(a) {
			if s.countDispatched(a) >= r.mayDispatch() {
				break
			}
			if look, waits := s.orderWait(r, now); waits {
				r.stepBehind(look, now)
				continue
			}
			r.Dispatch++
			r.handed, r.UpdatedAt = now, now
			tasks = append(tasks, r.toTask())
		}
	}
	return tasks
}

// mayDispatch returns how many deliveries of the agent may be dispatched, including this one: half as many for a
// backfill.
func (r *row) mayDispatch() int {
	if r.bulk {
		return store.MaxDispatchedPerAgent / 2
	}
	return store.MaxDispatchedPerAgent
}

// listLine returns the agent's backlog, oldest first. It returns deliveries of a backfill only if there are no others.
func (s *Store) listLine(a store.Agent) (line []*row) {
	var backfill []*row
	for _, r := range s.rows {
		switch {
		case r.agent != a || r.Status != store.Queued || !r.handed.IsZero():
		case r.bulk:
			backfill = append(backfill, r)
		default:
			line = append(line, r)
		}
	}
	if len(line) == 0 {
		return backfill
	}
	return line
}

func (r *row) toTask() store.Task {
	t := store.Task{ID: r.ID, N: r.Dispatch, Kind: r.Kind, Attempts: r.Attempts, Bulk: r.bulk || r.replays > 0 &&
		r.Attempts <= r.base}
	if r.Status == store.Waiting {
		t.At = *r.NextAttemptAt
	}
	return t
}

// toEnded returns the task without which the delivery continues.
func (r *row) toEnded() store.Task { return store.Task{ID: r.ID, N: r.Dispatch, Ended: true} }

func jobAgent(j job.Job) store.Agent { return (&store.Claim{Job: j}).Agent() }
