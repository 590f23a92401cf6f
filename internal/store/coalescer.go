package store

import (
	"context"
	"slices"
	"sync"
	"time"
)

// How the store groups what its callers ask for one by one.
const (
	maxGroup   = 64 // a statement of more rows holds their locks for longer, and hardly costs less per row
	maxFlights = 1  // under way at a time: with two, groups are half as large and cost Postgres a third more each

	// flightStall is how long a flight may keep the next group waiting: for longer than a busy Postgres takes, not for as
	// long as somebody may hold a row or a connection may be silent.
	flightStall = 250 * time.Millisecond

	// groupTimeout is longer, because a claim that Postgres commits after its group gave up has no worker until its
	// lease ends. It is shorter than the caller's 10 seconds, so that there is time left to try a row alone.
	groupTimeout = 5 * time.Second
)

// coalescer makes one statement of what many callers ask for at a time. The first caller goes at once and alone; who
// comes while maxFlights flights (a flush, or a request alone) are under way waits, and the next takes all that wait, up
// to maxGroup. Nobody waits for a group to fill. The first caller of a group runs its flush, so there is no goroutine to
// own.
//
// A flush may leave requests unanswered, or fail as a whole: then each caller tries its own request alone, with its own
// context. So single decides whatever is not plain, and a group can only answer what single would have answered.
//
// A caller whose context ends leaves as long as its request waits. Once it is in a group the caller stays until the
// group's end and gets the answer, because what was committed must not be lost.
type coalescer[Q, A any] struct {
	coalescerConfig[Q, A]

	mu     sync.Mutex
	queue  []*request[Q, A] // what no group has taken yet, oldest first
	active int              // flights under way, without those that stall
	closed bool
	stats  coalescerStats

	running sync.WaitGroup // callers in do, and flights
}

type coalescerConfig[Q, A any] struct {
	// flush answers a group, result i for request i. Its context is nobody's: it ends after timeout.
	flush func(ctx context.Context, group []Q) ([]result[A], error)

	// single answers one request: of a group of one, and of one that flush did not answer.
	single func(ctx context.Context, q Q) (A, error)

	min     int           // a smaller group is not flushed: its requests are made alone. Default 2; tests force groups with 1
	max     int           // requests of a group; default maxGroup
	flights int           // under way at a time; default maxFlights
	stall   time.Duration // a flight under way for longer no longer counts; default flightStall
	timeout time.Duration // of a flush; default groupTimeout
}

// result is what a flush found for one request: answer and err if it is answered, else nothing.
type result[A any] struct {
	answer   A
	err      error
	answered bool
}

// request is one caller's. taken and group are written under the coalescer's mutex, result by the group's leader
// before it closes wake.
type request[Q, A any] struct {
	q      Q
	taken  bool
	group  []*request[Q, A] // of the caller who leads it; nil: it does not
	result result[A]
	wake   chan struct{} // closed when the caller is to lead, or when its group has ended
}

// coalescerStats counts what went in groups.
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

// do answers one request, alone or in a group.
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

// enqueue returns nil when the coalescer is closed.
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

// withdraw takes a request back that no group has taken yet.
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

// startFlights makes groups of what waits while there are flights for them, and wakes the callers who lead them. The
// mutex is held.
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

// endFlight lets the next group start.
func (c *coalescer[Q, A]) endFlight() {
	defer c.running.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active--
	c.startFlights()
}

// runFlight makes the requests of the group that r leads. However it ends, a panic included, the flight ends and nobody
// of the group goes on waiting.
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

// close waits for all that is under way. What comes later is made alone.
func (c *coalescer[Q, A]) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}
