package store

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Defaults of coalescerConfig.
const (
	maxGroup   = 64 // requests per group; larger groups lock rows longer and save hardly anything per row
	maxFlights = 1  // statements that run at a time; with two, groups are half as large, and each request costs more

	// flightStall is how long one statement may delay the next statement of the same coalescer. A busy Postgres answers
	// sooner. A statement that waits for a row lock or on a silent connection can take longer.
	flightStall = 250 * time.Millisecond

	// groupTimeout limits the statement of a group. It is long because a timeout does not undo a commit: a claim that
	// Postgres commits later has no worker until its lease expires. It is shorter than the 10 s after which package
	// delivery gives up a claim, so that each caller has time left to run its request alone.
	groupTimeout = 5 * time.Second
)

// coalescer combines concurrent requests into one SQL statement. The store has one coalescer for claims and one for
// outcomes. A flight is one run of a statement: flush for a group of requests, or single for one request.
//
// The first request starts a flight at once. While maxFlights flights run, further requests are queued. When a flight
// ends, the next flight takes all queued requests, at most maxGroup. No request waits for a group to fill. The caller
// of a group's first request runs the flight, so the coalescer needs no background goroutine.
//
// A flush may leave requests unanswered, or fail as a whole. Each caller without an answer then runs its own request
// with single, under its own context. So flush may skip every request that is not simple, but its answers must equal
// those of single.
//
// A caller whose context ends while its request is queued removes the request from the queue. After a group has taken
// the request, the caller waits for the group's answer and returns it, because a committed claim or outcome must not be
// lost.
type coalescer[Q, A any] struct {
	coalescerConfig[Q, A]

	mu     sync.Mutex
	queue  []*request[Q, A] // requests that no group has taken yet, oldest first
	active int              // running flights, without those that have run for longer than stall
	closed bool
	stats  coalescerStats

	running sync.WaitGroup // counts callers in do, and flights; close waits for them
}

// coalescerConfig has the functions and limits of a coalescer. Zero limits get their defaults.
type coalescerConfig[Q, A any] struct {
	// flush answers a group: result i belongs to request i. The context of flush ends after timeout. It does not end
	// with the context of a caller, because a group has several callers.
	flush func(ctx context.Context, group []Q) ([]result[A], error)

	// single answers one request. It is called for a request that flush left unanswered, and instead of flush for a
	// group that has fewer than min requests.
	single func(ctx context.Context, q Q) (A, error)

	// min is the size from which a group is passed to flush. Default 2. Claims use 1, because flush claims a single
	// queued delivery with less work than single does.
	min     int
	max     int           // requests per group; default maxGroup
	flights int           // concurrent flights; default maxFlights
	stall   time.Duration // how long a flight delays the next one at most; default flightStall
	timeout time.Duration // limit of a flush; default groupTimeout
}

// result is the answer of flush to one request. If answered is false, flush has not decided the request, and its caller
// runs the request with single.
type result[A any] struct {
	answer   A
	err      error
	answered bool
}

// request is the request of one caller. coalescer.mu guards taken and toRun. The caller that runs the group's flight
// writes the results of all requests in the group, and then closes their wake channels.
type request[Q, A any] struct {
	q      Q
	taken  bool             // a group has taken the request from the queue
	toRun  []*request[Q, A] // for a group's first request: the group, whose flight this caller runs; else nil
	result result[A]
	wake   chan struct{} // closed when this caller must run its group's flight, or when that flight has ended
}

// coalescerStats counts the flushed groups, the requests in them (grouped), and the groups whose flush failed.
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

// setDefault sets *field to value if it is zero.
func setDefault[T ~int | ~int64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// do answers one request, alone or in a group. If ctx ends while the request is queued, do returns the error of ctx. If
// the coalescer is closed, do runs the request with single.
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

	if r.toRun != nil {
		c.runFlight(ctx, r)
	}
	if r.result.answered {
		return r.result.answer, r.result.err
	}
	return c.single(ctx, q)
}

// enqueue adds a request to the queue, and starts a flight if fewer than c.flights are active. It returns nil if the
// coalescer is closed. Otherwise it has counted the caller in c.running, and the caller must call c.running.Done.
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

// withdraw removes a request from the queue and returns true. It returns false if a group has already taken the
// request.
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

// startFlights forms groups of queued requests while fewer than c.flights flights are active. It wakes the caller of
// each group's first request, which then runs the flight. c.mu must be locked.
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
		group[0].toRun = group
		close(group[0].wake)
	}
}

// endFlight stops counting a flight as active, and starts the next one. It is called when the flight has ended, or has
// run for longer than c.stall.
func (c *coalescer[Q, A]) endFlight() {
	defer c.running.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	c.startFlights()
}

// runFlight runs the flight of the group r.toRun. On return, and after a panic, it wakes the group's other callers.
func (c *coalescer[Q, A]) runFlight(ctx context.Context, r *request[Q, A]) {
	stalled := time.AfterFunc(c.stall, c.endFlight)
	defer func() {
		if stalled.Stop() {
			c.endFlight()
		}
		for _, member := range r.toRun[1:] {
			close(member.wake)
		}
	}()

	if len(r.toRun) < c.min {
		r.result.answered = true
		r.result.answer, r.result.err = c.single(ctx, r.q)
		return
	}

	group := make([]Q, len(r.toRun))
	for i, member := range r.toRun {
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
		r.toRun[i].result = result
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

// close waits for all queued requests and flights. Later requests run alone, with single.
func (c *coalescer[Q, A]) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}
