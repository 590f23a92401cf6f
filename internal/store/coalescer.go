package store

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Defaults of coalescerConfig.
const (
	maxGroup   = 64 // requests per group: with more, rows stay locked longer, and the cost per row hardly falls
	maxFlights = 1  // concurrent flights: with two, groups are half as large, and each costs Postgres a third more

	// flightStall is how long a flight may delay the next one. A busy Postgres answers sooner; a row lock or a silent
	// connection can last longer.
	flightStall = 250 * time.Millisecond

	// groupTimeout limits one flush. It is long, because a claim that Postgres commits after the flush gave up has no
	// worker until its lease ends. It is shorter than the 10 s for which callers wait, so that they have time left to
	// call single.
	groupTimeout = 5 * time.Second
)

// coalescer combines concurrent requests into one statement. A flight runs either one statement for a group of requests
// (flush), or the statement for a single request. The first request starts a flight at once. While maxFlights flights
// are active, further requests queue; the next flight takes all queued requests, up to maxGroup. No request waits for a
// group to fill. The caller of the group's first request runs the flight, so no background goroutine is needed.
//
// A flush may leave requests unanswered, or fail as a whole. Each caller then runs its own request with single, under
// its own context. So flush needs to decide plain requests only, and must answer them as single would have.
//
// A caller whose context ends while its request is queued withdraws the request. Once the request is in a group, the
// caller waits for the end of the group and returns the answer, because committed work must not be lost.
type coalescer[Q, A any] struct {
	coalescerConfig[Q, A]

	mu     sync.Mutex
	queue  []*request[Q, A] // requests in no group yet, oldest first
	active int              // running flights that took less than stall so far
	closed bool
	stats  coalescerStats

	running sync.WaitGroup // counts callers in do, and flights
}

// coalescerConfig has the functions and limits of a coalescer. Zero limits get their defaults.
type coalescerConfig[Q, A any] struct {
	// flush answers a group; result i belongs to request i. Its context does not end with a caller's context, but after
	// timeout.
	flush func(ctx context.Context, group []Q) ([]result[A], error)

	// single answers one request: one in a group smaller than min, or one that flush left unanswered.
	single func(ctx context.Context, q Q) (A, error)

	// min is the size from which groups are flushed; the request of a smaller group runs with single. Default 2; claims
	// use 1.
	min     int
	max     int           // requests per group; default maxGroup
	flights int           // concurrent flights; default maxFlights
	stall   time.Duration // how long a flight may delay the next one; default flightStall
	timeout time.Duration // limit of a flush; default groupTimeout
}

// result is the answer of flush to one request. If answered is false, flush has not decided the request, and do runs it
// alone with single.
type result[A any] struct {
	answer   A
	err      error
	answered bool
}

// request is the request of one caller. The coalescer's mutex guards taken and group. The caller that runs the group's
// flight writes result, and then closes wake.
type request[Q, A any] struct {
	q      Q
	taken  bool             // a group contains the request, so it is no longer in the queue
	toRun  []*request[Q, A] // the group whose flight this caller must run; nil: none
	result result[A]
	wake   chan struct{} // closed when the caller must run the flight of its group, or when that flight has ended
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

// do answers one request, alone or in a group. If ctx ends while the request is queued, do returns the error of ctx.
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

// enqueue queues a request. If fewer than c.flights flights (running statements) are active, it starts one. It returns
// nil if the coalescer is closed. Otherwise the caller calls c.running.Done at the end.
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

// withdraw removes a request from the queue and returns true. It returns false if a group already contains the request.
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
// the first request of each group, which then runs the flight. The caller of startFlights has locked c.mu.
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

// endFlight ends the counting of a flight as active, because it ended or took longer than c.stall, and starts the next
// one.
func (c *coalescer[Q, A]) endFlight() {
	defer c.running.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	c.startFlights()
}

// runFlight runs the flight of r's group. When it returns or panics, the flight has ended and all callers of the group
// are woken.
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
