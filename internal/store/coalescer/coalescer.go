// Package coalescer combines concurrent requests into one SQL statement, so that they share a round trip and a commit.
// It runs no SQL itself. The ledger (internal/store) gives it two functions: one answers a group of requests, the other
// a single request.
//
// Invariants:
//   - Each request gets one answer: that of its group, or that of the function for a single request.
//   - No request waits for a group to fill. A statement delays the next one by Config.Stall at most.
//   - A caller gives up only a request that is still queued. It waits for the answer of a request that a group has
//     taken, because a committed answer must not be lost.
package coalescer

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Defaults of Config.
const (
	maxGroup   = 64 // requests per group; larger groups lock rows longer and save hardly anything per row
	maxFlights = 1  // statements that run at a time; with two, groups are half as large, and each request costs more

	// flightStall is how long one statement may delay the next statement of the same Coalescer. A busy Postgres answers
	// sooner. A statement that waits for a row lock or on a silent connection can take longer.
	flightStall = 250 * time.Millisecond

	// groupTimeout limits the statement of a group. It is long because a timeout does not undo a commit: a claim that
	// Postgres commits later has no worker until its lease expires. It is shorter than the 10 s after which package
	// delivery gives up a claim, so that each caller has time left to run its request alone.
	groupTimeout = 5 * time.Second
)

// Coalescer combines concurrent requests into one SQL statement. A flight is one run of a statement: Flush for a group
// of requests, or Single for one request. Safe for concurrent use.
//
// The first request starts a flight at once. While maxFlights flights run, further requests are queued. When a flight
// ends, the next flight takes all queued requests, at most maxGroup. No request waits for a group to fill. The caller
// of a group's first request runs the flight, so the Coalescer needs no background goroutine.
//
// A Flush may leave requests unanswered, or fail as a whole. Each caller without an answer then runs its own request
// with Single, under its own context. So Flush may skip every request that is not simple, but its answers must equal
// those of Single.
//
// A caller whose context ends while its request is queued removes the request from the queue. After a group has taken
// the request, the caller waits for the group's answer and returns it, because a committed claim or outcome must not be
// lost.
type Coalescer[Q, A any] struct {
	Config[Q, A] // must not change while requests run

	mu     sync.Mutex
	queue  []*request[Q, A] // requests that no group has taken yet, oldest first
	active int              // running flights, without those that have run for longer than Stall
	closed bool
	stats  Stats

	running sync.WaitGroup // counts callers in Do, and flights; Close waits for them
}

// Config has the functions and limits of a Coalescer. Zero limits get their defaults.
type Config[Q, A any] struct {
	// Flush answers a group: result i belongs to request i. The context of Flush ends after Timeout. It does not end
	// with the context of a caller, because a group has several callers.
	Flush func(ctx context.Context, group []Q) ([]Result[A], error)

	// Single answers one request. It is called for a request that Flush left unanswered, and instead of Flush for a
	// group that has fewer than Min requests.
	Single func(ctx context.Context, q Q) (A, error)

	// Min is the size from which a group is passed to Flush. Default 2. Claims use 1, because Flush claims a single
	// queued delivery with less work than Single does.
	Min     int
	Max     int           // requests per group; default maxGroup
	Flights int           // concurrent flights; default maxFlights
	Stall   time.Duration // how long a flight delays the next one at most; default flightStall
	Timeout time.Duration // limit of a Flush; default groupTimeout
}

// Result is the answer of Flush to one request. If Answered is false, Flush has not decided the request, and its caller
// runs the request with Single.
type Result[A any] struct {
	Answer   A
	Err      error
	Answered bool
}

// request is the request of one caller. Coalescer.mu guards taken and toRun. The caller that runs the group's flight
// writes the results of all requests in the group, and then closes their wake channels.
type request[Q, A any] struct {
	q      Q
	taken  bool             // a group has taken the request from the queue
	toRun  []*request[Q, A] // for a group's first request: the group, whose flight this caller runs; else nil
	result Result[A]
	wake   chan struct{} // closed when this caller must run its group's flight, or when that flight has ended
}

// Stats counts the groups of requests that ran in one statement, the requests in them (Grouped), and the groups that
// failed. The requests of a failed group were then run one by one.
type Stats struct{ Groups, Grouped, Failed int }

// New returns a Coalescer. It panics if cfg lacks Flush or Single.
func New[Q, A any](cfg Config[Q, A]) *Coalescer[Q, A] {
	if cfg.Flush == nil || cfg.Single == nil {
		panic("coalescer: it needs Flush and Single")
	}
	setDefault(&cfg.Min, 2)
	setDefault(&cfg.Max, maxGroup)
	setDefault(&cfg.Flights, maxFlights)
	setDefault(&cfg.Stall, flightStall)
	setDefault(&cfg.Timeout, groupTimeout)
	return &Coalescer[Q, A]{Config: cfg}
}

// setDefault sets *field to value if it is zero.
func setDefault[T ~int | ~int64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Do answers one request, alone or in a group. If ctx ends while the request is queued, Do returns the error of ctx. If
// the Coalescer is closed, Do runs the request with Single.
func (c *Coalescer[Q, A]) Do(ctx context.Context, q Q) (answer A, err error) {
	r := c.queueRequest(q)
	if r == nil {
		return c.Single(ctx, q)
	}
	defer c.running.Done()

	select {
	case <-r.wake:
	case <-ctx.Done():
		if c.withdrawRequest(r) {
			return answer, ctx.Err()
		}
		<-r.wake
	}

	if r.toRun != nil {
		c.runFlight(ctx, r)
	}
	if r.result.Answered {
		return r.result.Answer, r.result.Err
	}
	return c.Single(ctx, q)
}

// queueRequest adds a request to the queue, and starts a flight if fewer than c.Flights are active. It returns nil if
// the Coalescer is closed. Otherwise it has counted the caller in c.running, and the caller must call c.running.Done.
func (c *Coalescer[Q, A]) queueRequest(q Q) *request[Q, A] {
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

// withdrawRequest removes a request from the queue and returns true. It returns false if a group has already taken the
// request.
func (c *Coalescer[Q, A]) withdrawRequest(r *request[Q, A]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.taken {
		return false
	}
	i := slices.Index(c.queue, r)
	c.queue = slices.Delete(c.queue, i, i+1)
	return true
}

// startFlights forms groups of queued requests while fewer than c.Flights flights are active. It wakes the caller of
// each group's first request, which then runs the flight. c.mu must be locked.
func (c *Coalescer[Q, A]) startFlights() {
	for c.active < c.Flights && len(c.queue) > 0 {
		n := min(len(c.queue), c.Max)
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
// run for longer than c.Stall.
func (c *Coalescer[Q, A]) endFlight() {
	defer c.running.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	c.startFlights()
}

// runFlight runs the flight of the group r.toRun. On return, and after a panic, it wakes the group's other callers.
func (c *Coalescer[Q, A]) runFlight(ctx context.Context, r *request[Q, A]) {
	stalled := time.AfterFunc(c.Stall, c.endFlight)
	defer func() {
		if stalled.Stop() {
			c.endFlight()
		}
		for _, member := range r.toRun[1:] {
			close(member.wake)
		}
	}()

	if len(r.toRun) < c.Min {
		r.result.Answered = true
		r.result.Answer, r.result.Err = c.Single(ctx, r.q)
		return
	}

	group := make([]Q, len(r.toRun))
	for i, member := range r.toRun {
		group[i] = member.q
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Timeout)
	defer cancel()
	results, err := c.Flush(ctx, group)
	c.countGroup(len(group), err)
	if err != nil {
		return
	}
	for i, result := range results {
		r.toRun[i].result = result
	}
}

// countGroup adds a flushed group to the stats.
func (c *Coalescer[Q, A]) countGroup(grouped int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Groups++
	c.stats.Grouped += grouped
	if err != nil {
		c.stats.Failed++
	}
}

// Stats returns the counts of the groups since New.
func (c *Coalescer[Q, A]) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Queued returns the number of requests that no group has taken yet.
func (c *Coalescer[Q, A]) Queued() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue)
}

// Close waits for all queued requests and flights. Later requests run alone, with Single.
func (c *Coalescer[Q, A]) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}
