package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
)

// crowd simulates the deliveries of many endpoints at one origin, with its own clock. Each delivery asks for a permit,
// waits a little in the process, is refused with a return time, returns somewhat late, and makes its call. Then the
// endpoint's next delivery begins.
type crowd struct {
	t     *testing.T
	rules rules
	rnd   *rand.Rand
	m     originState
	now   int64
	queue []event // in order of their times

	endpoints []*member
}

// member is an endpoint of the crowd.
type member struct {
	circuit
	takes   int64 // how long its calls take
	calls   int
	hungry  int64 // since when it has waited without a turn; 0: it does not wait
	longest int64
	most    int // permits at the same time while another endpoint waited
}

type event struct {
	at int64
	do func()
}

func newCrowd(t *testing.T, r rules) *crowd {
	return &crowd{t: t, rules: r, rnd: rand.New(rand.NewPCG(0, 7)), now: epoch}
}

func (c *crowd) after(d int64, do func()) {
	at := c.now + d
	i := sort.Search(len(c.queue), func(i int) bool { return c.queue[i].at > at })
	c.queue = slices.Insert(c.queue, i, event{at, do})
}

// join adds an endpoint with calls of the given duration and the given number of concurrent deliveries, which begin
// within a second.
func (c *crowd) join(takes int64, deliveries int) *member {
	e := &member{circuit: circuit{id: fmt.Sprintf("e%d", len(c.endpoints))}, takes: takes}
	c.endpoints = append(c.endpoints, e)
	for i := range deliveries {
		c.after(c.rnd.Int64N(second), func() { c.deliver(e, fmt.Sprint(i), 0) })
	}
	return e
}

// run simulates the time d.
func (c *crowd) run(d int64) {
	for end := c.now + d; len(c.queue) > 0 && c.queue[0].at <= end; {
		next := c.queue[0]
		c.queue, c.now = c.queue[1:], next.at
		next.do()
	}
}

const crowdPatience, crowdLook = 200_000, 50_000

// deliver asks for a permit. waited is how long the delivery has waited in the process.
func (c *crowd) deliver(e *member, name string, waited int64) {
	token := permitToken(e.id, name)
	last := waited >= crowdPatience
	v := c.m.acquire(&c.rules, c.now, &e.circuit, token, question{attempt: true, reserve: last})
	if v.code.isGranted() {
		c.granted(e, name)
		return
	}
	if e.hungry == 0 && v.code != open {
		e.hungry = c.now
	}
	if last || v.code == open {
		c.after(v.wait+c.rnd.Int64N(2*second), func() { c.deliver(e, name, 0) })
		return
	}
	look := crowdLook + c.rnd.Int64N(crowdLook)
	c.after(look, func() { c.deliver(e, name, waited+look) })
}

func (c *crowd) granted(e *member, name string) {
	e.calls++
	if e.hungry != 0 {
		e.longest = max(e.longest, c.now-e.hungry)
		e.hungry = 0
	}
	if n := c.m.countHeld(&c.rules, c.now, ""); n > c.rules.inflight {
		c.t.Fatalf("%d permits are held", n)
	}
	for _, w := range c.m.Waiting {
		if w.ID != e.id && !w.isForgotten(&c.rules, c.now) {
			e.most = max(e.most, c.m.countHeld(&c.rules, c.now, e.id))
		}
	}
	c.after(e.takes, func() {
		c.m.release(&c.rules, c.now, &e.circuit, permitToken(e.id, name), Neutral, e.takes)
		c.deliver(e, name, 0)
	})
}

// TestEndpointsShareOrigin: with any behaviour of the endpoints, each can make a call within a bounded time, none has
// more than half of the permits while another waits, and the origin does not become idle.
func TestEndpointsShareOrigin(t *testing.T) {
	t.Parallel()
	const ms = second / 1000
	for name, c := range map[string]struct {
		inflight   int
		takes      []int64 // durations of the endpoints' calls
		each       int     // concurrent deliveries per endpoint
		quick      int64   // longest wait for a turn of endpoints with short calls
		slow       int64   // the same for the other endpoints
		perMinute  int     // least number of calls
		playedMins int64
	}{
		"alone":                  {4, []int64{second}, 8, 0, 2 * second, 238, 20},
		"two, fast":              {4, []int64{10 * ms, 10 * ms}, 8, second, 0, 5900, 3},
		"slow beside fast":       {4, []int64{30 * second, 50 * ms}, 8, second, 60 * second, 600, 20},
		"twenty, fast":           {4, repeat(20, 50*ms), 8, 10 * second, 0, 3000, 3},
		"twenty, one second":     {4, repeat(20, second), 8, 0, 20 * second, 170, 8},
		"twenty, half hang":      {4, append(repeat(10, 30*second), repeat(10, 50*ms)...), 8, 120 * second, 300 * second, 200, 15},
		"twenty hang":            {4, repeat(20, 30*second), 4, 0, 400 * second, 5, 30},
		"one permit, twenty":     {1, repeat(20, 100*ms), 4, 30 * second, 0, 300, 6},
		"one permit, slow, fast": {1, append(repeat(3, 10*second), repeat(3, 50*ms)...), 4, 60 * second, 150 * second, 100, 20},
		"two permits":            {2, append(repeat(3, 10*second), repeat(3, 50*ms)...), 4, 40 * second, 100 * second, 20, 20},
		"a hundred":              {4, repeat(100, 100*ms), 2, 60 * second, 0, 1500, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := defaultRules()
			r.inflight, r.keptAfter = c.inflight, toMicros(keptAfter)
			w := newCrowd(t, r)
			for _, takes := range c.takes {
				w.join(takes, c.each)
			}
			w.run(c.playedMins * 60 * second)
			total, quick, slow := 0, int64(0), int64(0)
			for _, e := range w.endpoints {
				if e.hungry != 0 {
					e.longest = max(e.longest, w.now-e.hungry)
				}
				if e.takes < second {
					quick = max(quick, e.longest)
				} else {
					slow = max(slow, e.longest)
				}
				total += e.calls
				if half := (c.inflight + 1) / 2; e.most > half {
					t.Errorf("%s held %d permits while another waited", e.id, e.most)
				}
			}
			if quick > c.quick || slow > c.slow {
				t.Errorf("endpoints waited %d and %d ms for a turn, want at most %d and %d", quick/ms, slow/ms,
					c.quick/ms, c.slow/ms)
			}
			if perMinute := total / int(c.playedMins); perMinute < c.perMinute {
				t.Errorf("%d calls a minute, want at least %d", perMinute, c.perMinute)
			}
		})
	}
}

func repeat(n int, x int64) []int64 { return slices.Repeat([]int64{x}, n) }
