package delivery

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/queue"
	"github.com/google/uuid"
)

// outage is the state of a server.
type outage int

const (
	up     outage = iota
	down          // refuses connections
	frozen        // accepts requests, and does not answer
)

// health is the state of a server. A frozen server may run received requests when it resumes.
type health struct {
	mu    sync.Mutex
	state outage
	thaw  chan struct{} // closed when a frozen server resumes
	away  []span
}

func (s *health) set(state outage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == state {
		return
	}
	if s.thaw != nil {
		close(s.thaw)
		s.thaw = nil
	}
	if state == frozen {
		s.thaw = make(chan struct{})
	}
	if s.state != up {
		s.away[len(s.away)-1].to = time.Now()
	}
	if s.state = state; state != up {
		s.away = append(s.away, span{from: time.Now()})
	}
}

func (s *health) is() (outage, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.thaw
}

// wasAway reports whether the server was down or frozen at some time between from and to.
func (s *health) wasAway(from, to time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return meets(s.away, from, to)
}

// meets reports whether one of the spans overlaps the time between from and to.
func meets(spans []span, from, to time.Time) bool {
	return slices.ContainsFunc(spans, func(s span) bool { return !s.from.After(to) && (s.to.IsZero() || !s.to.Before(from)) })
}

var errNoAnswer = errors.New("connection refused")

// redisDouble is Redis as asynq uses it: it contains tasks by id. An id is taken while its task exists, done or not.
type redisDouble struct {
	health
	h *history

	mu      sync.Mutex
	tasks   map[string]*redisTask
	order   int
	results map[uuid.UUID][]byte
	marker  time.Time
	news    chan struct{} // closed when a task became pending
}

type redisTask struct {
	queue.Task
	state string // scheduled pending active done
	seq   int
	at    time.Time // scheduled: when it is due; done: when it ended
	lease time.Time // active
}

func newRedisDouble(h *history) *redisDouble {
	r := &redisDouble{h: h, news: make(chan struct{})}
	r.flush()
	return r
}

// flush is FLUSHALL, or a restart without a file.
func (r *redisDouble) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tasks, r.results, r.marker = map[string]*redisTask{}, map[uuid.UUID][]byte{}, time.Time{}
}

func (r *redisDouble) enqueue(t queue.Task) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.tasks[t.ID()]; old != nil && !(old.state == "done" && now.Sub(old.at) > time.Hour) {
		return // the id is taken, so the task exists
	}
	x := &redisTask{Task: t}
	r.tasks[t.ID()] = x
	at := r.h.tempo.ceil(t.At)
	if !at.After(now) {
		r.pend(x)
		return
	}
	r.schedule(x, at)
}

// schedule lets the task wait. The forwarder checks twice a second.
func (r *redisDouble) schedule(x *redisTask, at time.Time) {
	x.state, x.at = "scheduled", at
	time.AfterFunc(time.Until(at)+r.h.some("forward", x.ID(), r.h.tempo.whole/2), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.tasks[x.ID()] == x && x.state == "scheduled" {
			r.pend(x)
		}
	})
}

func (r *redisDouble) pend(x *redisTask) {
	r.order++
	x.state, x.seq = "pending", r.order
	close(r.news)
	r.news = make(chan struct{})
}

// take returns the oldest pending task, usually preferring first attempts. Without a task, it returns the channel to
// wait for.
func (r *redisDouble) take() (*redisTask, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var best *redisTask
	for _, x := range r.tasks {
		if x.state == "pending" && (best == nil || r.before(x, best)) {
			best = x
		}
	}
	if best != nil {
		best.state, best.lease = "active", time.Now().Add(r.h.tempo.asynqLease)
	}
	return best, r.news
}

func (r *redisDouble) before(a, b *redisTask) bool {
	if (a.Lane == queue.First) != (b.Lane == queue.First) {
		return (a.Lane == queue.First) != (r.order%4 == 0)
	}
	return a.seq < b.seq
}

// dropped is an argument of finish: the task is deleted.
const dropped = math.MinInt64

// finish ends a task, or schedules it again. It ignores tasks that no longer exist.
func (r *redisDouble) finish(x *redisTask, again time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.tasks[x.ID()] != x || x.state != "active":
	case again > 0:
		r.schedule(x, time.Now().Add(again))
	case again == dropped:
		delete(r.tasks, x.ID())
	case again < 0:
		r.pend(x)
	default:
		x.state, x.at = "done", time.Now()
	}
}

// beat renews a task's lease. It returns false if the lease was lost.
func (r *redisDouble) beat(x *redisTask) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tasks[x.ID()] != x || x.state != "active" {
		return false
	}
	x.lease = time.Now().Add(r.h.tempo.asynqLease)
	return true
}

// recover is asynq's recoverer: it retries tasks whose lease expired a while ago.
func (r *redisDouble) recover() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.tasks {
		if x.state == "active" && time.Since(x.lease) > r.h.tempo.asynqLease {
			r.h.count("task recovered by asynq")
			r.schedule(x, time.Now().Add(r.h.tempo.net))
		}
	}
}

func (r *redisDouble) find(t queue.Task) queue.Location {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.tasks[t.ID()]
	switch {
	case x == nil || x.state == "done":
		return queue.Nowhere
	case x.state == "active":
		return queue.Active
	case x.state == "scheduled" && time.Until(x.at) > 3*r.h.tempo.net:
		return queue.Postponed
	}
	return queue.Pending
}

// connection is one process' connection to Redis: the methods of queue.Queue that the product uses.
type connection struct {
	p *process
	r *redisDouble
}

// do sends a request to Redis.
func (c *connection) do(ctx context.Context, op, key string, effect func()) error {
	late := func() {}
	if op == "enqueue" || op == "keep" || op == "forget" {
		late = effect
	}
	return c.p.request(ctx, "Redis", op, key, math.MaxInt64, late, func() error { effect(); return nil })
}

func (c *connection) Enqueue(ctx context.Context, t queue.Task) error {
	return c.do(ctx, "enqueue", t.ID(), func() {
		if c.p.h.planted == blindReconciler && c.p.h.dice("lose", t.ID()).Float64() < .1 {
			return
		}
		c.r.enqueue(t)
	})
}

func (c *connection) Find(t queue.Task) (location queue.Location, err error) {
	ctx, cancel := context.WithTimeout(c.p.ctx, c.p.h.tempo.net)
	defer cancel()
	err = c.do(ctx, "find", t.ID(), func() { location = c.r.find(t) })
	if c.p.h.planted == blindReconciler {
		location = queue.Pending
	}
	return location, err
}

func (c *connection) Marker(ctx context.Context, now time.Time) (born time.Time, err error) {
	err = c.do(ctx, "marker", "", func() {
		c.r.mu.Lock()
		defer c.r.mu.Unlock()
		if c.r.marker.IsZero() {
			c.r.marker = now
		}
		born = c.r.marker
	})
	return born, err
}

func (c *connection) Drop(ctx context.Context, tasks []queue.Task) error {
	return c.do(ctx, "drop", tasks[0].ID(), func() {
		c.r.mu.Lock()
		defer c.r.mu.Unlock()
		for _, t := range tasks {
			if x := c.r.tasks[t.ID()]; x != nil && (x.state == "done" || x.state == "scheduled") {
				delete(c.r.tasks, t.ID())
			}
		}
	})
}

// DropArchived removes tasks from the web UI, which histories do not use.
func (c *connection) DropArchived(ctx context.Context, id uuid.UUID, n int) error {
	return c.do(ctx, "drop", queue.Task{DeliveryID: id, N: n}.ID(), func() {})
}

func (r *redisDouble) keeps(id uuid.UUID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.results[id] != nil
}

// safe is the spool for outcomes.
type safe struct {
	*connection
	h *history
}

func (s *safe) Put(ctx context.Context, key string, outcome []byte) error {
	return s.put(ctx, key, outcome, true)
}

func (s *safe) PutMissing(ctx context.Context, key string, outcome []byte) error {
	return s.put(ctx, key, outcome, false)
}

func (s *safe) put(ctx context.Context, key string, outcome []byte, replace bool) error {
	id := uuid.MustParse(key)
	return s.do(ctx, "keep", key, func() {
		if !replace && s.r.keeps(id) {
			return
		}
		s.h.kept(s.p, id, outcome)
		if s.h.planted == forgetfulResults {
			return
		}
		s.r.mu.Lock()
		s.r.results[id] = outcome
		s.r.mu.Unlock()
		s.p.at("kept", id)
	})
}

func (s *safe) Get(ctx context.Context, key string) (outcome []byte, err error) {
	err = s.do(ctx, "kept", key, func() {
		s.r.mu.Lock()
		defer s.r.mu.Unlock()
		outcome = s.r.results[uuid.MustParse(key)]
	})
	return outcome, err
}

func (s *safe) Delete(ctx context.Context, key string) error {
	id := uuid.MustParse(key)
	return s.do(ctx, "forget", key, func() {
		s.h.forgotten(id)
		s.r.mu.Lock()
		defer s.r.mu.Unlock()
		delete(s.r.results, id)
	})
}
