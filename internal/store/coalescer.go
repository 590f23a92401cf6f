package store

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Defaults of coalescerConfig.
const (
	maxGroup   = 64 // requests per group: more rows hold their locks longer and hardly cost less per row
	maxFlights = 1  // flights at a time: with two, groups are half as large and cost Postgres a third more each

	// flightStall is how long a flight may delay the next one. It is longer than a busy Postgres needs, and shorter
	// than a row lock or a silent connection can last.
	flightStall = 250 * time.Millisecond

	// groupTimeout limits one flush. It is long, because a claim that Postgres commits after the flush gave up has no
	// worker until its lease ends. It is shorter than the 10 s of the callers, so that they have time left to call
	// single.
	groupTimeout = 5 * time.Second
)

// coalescer combines concurrent requests into one statement. The first request starts a flight at once: a flush of a
// group, or a single request. While maxFlights flights are active, further requests queue; the next flight takes all
// queued requests, up to maxGroup. No request waits for a group to fill. The first caller of a group runs its flush, so
// no background goroutine is needed.
//
// A flush may leave requests unanswered, or fail as a whole. Each caller then runs its own request with single, under
// its own context. So single decides every case that is not plain, and a flush must answer a request as single would
// have.
//
// A caller whose context ends leaves while its request is queued. Once the request is in a group, the caller waits for
// the group's end and returns the answer, because committed work must not be lost.
type coalescer[Q, A any] struct {
	coalescerConfig[Q, A]

	mu     sync.Mutex
	queue  []*request[Q, A] // in no group yet, oldest first
	active int              // active flights, without those that stall
	closed bool
	stats  coalescerStats

	running sync.WaitGroup // callers in do, and flights
}

// coalescerConfig has the functions and limits of a coalescer. Zero limits get their defaults.
type coalescerConfig[Q, A any] struct {
	// flush answers a group; result i belongs to request i. Its context does not depend on a caller's and ends after
	// timeout.
	flush func(ctx context.Context, group []Q) ([]result[A], error)

	// single answers one request: a group smaller than min, or a request that flush left unanswered.
	single func(ctx context.Context, q Q) (A, error)

	// min is the smallest group that is flushed; the request of a smaller one runs with single. Default 2; claims use
	// 1.
	min     int
	max     int           // requests per group; default maxGroup
	flights int           // concurrent flights; default maxFlights
	stall   time.Duration // a flight that takes longer no longer counts as active; default flightStall
	timeout time.Duration // of a flush; default groupTimeout
}

// result is the answer of a flush to one request. If answered is false, flush has not decided the request, and its
// caller calls single.
type result[A any] struct {
	answer   A
	err      error
	answered bool
}

// request is the request of one caller. The coalescer's mutex guards taken and group. The leader of the request's group
// writes result and then closes wake.
type request[Q, A any] struct {
	q      Q
	taken  bool             // a group contains the request, so it is no longer in the queue
	group  []*request[Q, A] // the group that its caller leads; nil: it leads none
	result result[A]
	wake   chan struct{} // closed when the caller must lead its group, or when its group has ended
}

// coalescerStats counts the flushed groups, the requests in them, and the groups that failed.
type coalescerStats struct{ groups, grouped, failed int }

func newCoalescer[Q, A any](cfg coalescerConfig[Q, A]) *coalescer[Q, A] {
	if cfg.flush == nil || cfg.single == nil {
		panic("store: a coalescer needs flush and single")
	}
	setDefault(&cfg.min, 2)
	setDefault(&cfg.max, maxGroup)
	setDefault(&cfg.flights, maxFlights)
	setDefault(&cfg.stall, flightStall)
	setDefault(&cfg.timeout, groupTimeout)
	return &coalescer[Q, A]{coalescerConfig: cfg}
}

func setDefault[T ~int | ~int64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// do answers one request, alone or in a group. If ctx ends while the request is queued, it returns the error of ctx.
func (c *coalescer[Q, A]) do(ctx context.Context, q Q) (answer A, err error) {
	r := c.enqueue(q)
	if r == nil {
		return c.single(ctx, q)
	}
	defer c.running.Done()

	select {
	case <-r.wake:
	case <-ctx.Done():
		if c.withdraw(r) {
			return answer, ctx.Err()
		}
		<-r.wake
	}

	if r.group != nil {
		c.runFlight(ctx, r)
	}
	if r.result.answered {
		return r.result.answer, r.result.err
	}
	return c.single(ctx, q)
}

// enqueue queues a request, and starts a flight if one is free. It returns nil if the coalescer is closed.
func (c *coalescer[Q, A]) enqueue(q Q) *request[Q, A] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.running.Add(1)
	r := &request[Q, A]{q: q, wake: make(chan struct{})}
	c.queue = append(c.queue, r)
	c.startFlights()
	return r
}

// withdraw removes a request from the queue. It returns false if a group contains the request already.
func (c *coalescer[Q, A]) withdraw(r *request[Q, A]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.taken {
		return false
	}
	i := slices.Index(c.queue, r)
	c.queue = slices.Delete(c.queue, i, i+1)
	return true
}

// startFlights forms groups of the queued requests while flights are free, and wakes the first caller of each, which is
// the group's leader. The caller of startFlights holds the mutex.
func (c *coalescer[Q, A]) startFlights() {
	for c.active < c.flights && len(c.queue) > 0 {
		n := min(len(c.queue), c.max)
		group := slices.Clone(c.queue[:n])
		c.queue = slices.Delete(c.queue, 0, n)
		for _, r := range group {
			r.taken = true
		}
		c.active++
		c.running.Add(1)
		group[0].group = group
		close(group[0].wake)
	}
}

// endFlight stops counting a flight as active, because it has ended or stalls, and starts the next one.
func (c *coalescer[Q, A]) endFlight() {
	defer c.running.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	c.startFlights()
}

// runFlight runs the group that r leads. In every case, including a panic, the flight ends and all callers of the group
// are woken.
func (c *coalescer[Q, A]) runFlight(ctx context.Context, r *request[Q, A]) {
	stalled := time.AfterFunc(c.stall, c.endFlight)
	defer func() {
		if stalled.Stop() {
			c.endFlight()
		}
		for _, member := range r.group[1:] {
			close(member.wake)
		}
	}()

	if len(r.group) < c.min {
		r.result.answered = true
		r.result.answer, r.result.err = c.single(ctx, r.q)
		return
	}

	group := make([]Q, len(r.group))
	for i, member := range r.group {
		group[i] = member.q
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	defer cancel()
	results, err := c.flush(ctx, group)
	c.count(len(group), err)
	if err != nil {
		return
	}
	for i, result := range results {
		r.group[i].result = result
	}
}

func (c *coalescer[Q, A]) count(grouped int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.groups++
	c.stats.grouped += grouped
	if err != nil {
		c.stats.failed++
	}
}

func (c *coalescer[Q, A]) countGroups() GroupStat {
	c.mu.Lock()
	defer c.mu.Unlock()
	return GroupStat{Groups: c.stats.groups, Grouped: c.stats.grouped, Failed: c.stats.failed}
}

// close waits for all queued requests and flights. Later requests run with single.
func (c *coalescer[Q, A]) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}
