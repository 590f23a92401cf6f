package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// bench asks the rules about an endpoint, with a clock that the test moves.
type bench struct {
	t     *testing.T
	rules rules
	now   *int64
	id    string // of the endpoint
	// take runs a step on the states of the origin and the endpoint with this id.
	take func(id string, run func(m *originState, e *circuit, now int64))
}

// asked is the answer of acquire, with the breaker before it.
type asked struct {
	acquireAnswer
	state state
	left  int64 // time for which the breaker stays open; 0: it is not open
}

// released is the answer of release, with the breaker after it.
type released struct {
	known bool
	state state
	left  int64
}

// on returns a bench for another endpoint of the same origin.
func (b *bench) on(id string) *bench {
	other := *b
	other.id = id
	return &other
}

// ask and end add the endpoint's id to the token, as Acquire does.
func (b *bench) ask(token string, q question) asked {
	return b.enter(b.id, permitToken(b.id, token), q)
}

func (b *bench) end(token string, r Result, took int64) released {
	return b.leave(b.id, permitToken(b.id, token), r, took)
}

func (b *bench) enter(id, token string, q question) (v asked) {
	b.take(id, func(m *originState, e *circuit, now int64) {
		v.state, v.left = b.readBreaker(e, now)
		v.acquireAnswer = m.acquire(&b.rules, now, e, token, q)
	})
	return v
}

func (b *bench) leave(id, token string, r Result, took int64) (v released) {
	b.take(id, func(m *originState, e *circuit, now int64) {
		v.known = m.release(&b.rules, now, e, token, r, took)
		v.state, v.left = b.readBreaker(e, now)
	})
	return v
}

func (b *bench) readBreaker(e *circuit, now int64) (s state, left int64) {
	until := limitTime(e.OpenUntil, now, b.rules.openFor, now)
	if s = breakerState(until, now); s == opened {
		left = until - now
	}
	return s, left
}

const second = int64(time.Second / time.Microsecond)

func defaultRules() rules {
	return rules{inflight: 4, gap: second / 100, burst: 100, hold: 180 * second, bucket: 30 * second, minCalls: 10, returns: 1, ratio: 0.7,
		openFor: 30 * second, minWait: second, maxWait: 300 * second, presence: second / 4, slack: 5 * second, recent: 60 * second}
}

var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixMicro()

// localBench has the states in memory.
func localBench(t *testing.T, r rules) *bench {
	now, m, circuits := epoch, &originState{}, map[string]*circuit{}
	return &bench{t: t, rules: r, now: &now, id: "e", take: func(id string, run func(*originState, *circuit, int64)) {
		if circuits[id] == nil {
			circuits[id] = &circuit{id: id}
		}
		run(m, circuits[id], now)
	}}
}

// sharedBench returns a function that makes benches whose states are in Redis. Two workers take the steps in turn.
func sharedBench(t *testing.T) func(*testing.T, rules) *bench {
	url, n, clock := heraldtest.RealRedis(t), 0, newClock()
	var workers []*Limiter
	for range 2 {
		workers = append(workers, inTime(newLimits(t, client(t, url), func(c *Config) { c.Now = clock.Now })))
	}
	return func(t *testing.T, r rules) *bench {
		now := epoch
		n++
		key, steps := originKey(fmt.Sprint("origin ", n)), 0
		return &bench{t: t, rules: r, now: &now, id: "e", take: func(id string, run func(*originState, *circuit, int64)) {
			steps++
			l := workers[steps%2]
			l.mu.Lock()
			l.setTime(now)
			l.rules = r
			e := l.findEndpoint(key, id)
			l.mu.Unlock()
			l.takeStep(e, run)
			if l.Stats().Local {
				t.Fatal("the state is not in Redis")
			}
		}}
	}
}

func (b *bench) move(d int64) { *b.now += d }

// try tries to acquire a permit, and expects the answer to have the code want.
func (b *bench) try(token string, want code) asked {
	b.t.Helper()
	v := b.ask(token, question{attempt: true})
	if v.code != want {
		b.t.Fatalf("enter %s: %+v, want code %d", token, v, want)
	}
	return v
}

// takeEach acquires n permits for tokens with a prefix.
func (b *bench) takeEach(prefix string, n int) {
	b.t.Helper()
	for _, token := range tokens(prefix, n) {
		b.try(token, granted)
	}
}

// burst makes n calls without a pause.
func (b *bench) burst(n int) {
	b.t.Helper()
	for range n {
		b.try("a", granted)
		b.give("a", OK, true)
	}
}

// waits expects the wait of an answer.
func (b *bench) waits(v asked, want int64) {
	b.t.Helper()
	if v.wait != want {
		b.t.Fatalf("%+v, want a wait of %d µs", v, want)
	}
}

// give releases a permit, and expects whether the permit is known.
func (b *bench) give(token string, r Result, known bool) released {
	b.t.Helper()
	e := b.end(token, r, second/10)
	if e.known != known {
		b.t.Fatalf("leave %s: %+v, want known %v", token, e, known)
	}
	return e
}

// calls makes n calls with the result r, one after the other.
func (b *bench) calls(n int, r Result) (last released) {
	b.t.Helper()
	for range n {
		b.try("call", granted)
		last = b.give("call", r, true)
		b.move(b.rules.gap)
	}
	return last
}

func (b *bench) state(e released, want state) {
	b.t.Helper()
	if e.state != want || want == opened && e.left != b.rules.openFor || want != opened && e.left != 0 {
		b.t.Fatalf("breaker: %+v, want state %d", e, want)
	}
}

// trip opens the breaker.
func (b *bench) trip() {
	b.t.Helper()
	b.state(b.calls(int(b.rules.minCalls), Failed), opened)
	// calls has moved the clock once more than needed.
	b.move(-b.rules.gap)
}

// TestRules checks the rules on states in memory, and on states in Redis that two workers change in turn.
func TestRules(t *testing.T) {
	t.Parallel()
	for name, maker := range map[string]func(*testing.T) func(*testing.T, rules) *bench{
		"local": func(*testing.T) func(*testing.T, rules) *bench { return localBench }, "shared": sharedBench,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newBench := maker(t)
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					r := defaultRules()
					r.keptAfter = c.keptAfter
					c.test(newBench(t, r))
				})
			}
			if name == "shared" {
				t.Run("random", func(t *testing.T) { sameAsLocal(t, newBench, 3) })
			}
		})
	}
}

var cases = []struct {
	name      string
	keptAfter int64
	test      func(*bench)
}{
	{"permits", 0, func(b *bench) {
		b.takeEach("p", 4)
		b.try("fifth", busy)
		b.give("p-2", OK, true)
		b.give("p-2", OK, false)
		b.try("fifth", granted)
		b.try("sixth", busy)
		b.give("nobody", OK, false)
		b.try("sixth", busy)
	}},
	{"the same token enters again for nothing", 0, func(b *bench) {
		for range 300 { // three bursts
			b.try("a", granted)
		}
		b.takeEach("p", 3)
		b.try("fifth", busy)
		b.try("a", granted) // also if all permits are in use
		b.give("a", OK, true)
		b.give("a", OK, false)
	}},
	{"a permit comes back after PermitTTL", 0, func(b *bench) {
		b.takeEach("dead", 4)
		b.move(b.rules.hold - 1)
		b.try("a", busy)
		b.move(1)
		b.try("a", granted)
		b.give("dead-0", Failed, false)
		b.takeEach("p", 3)
		b.try("b", busy)
		b.move(b.rules.hold)
		b.give("p-0", Failed, false) // also if no call has asked since
	}},
	{"a permit that is acquired again lasts for another PermitTTL", 0, func(b *bench) {
		b.takeEach("p", 4)
		b.move(b.rules.hold - 1)
		b.try("p-0", granted)
		b.move(b.rules.hold - 1) // the others expire
		b.takeEach("more", 3)
		b.try("a", busy)
		b.give("p-0", OK, true)
		b.try("a", granted)
	}},
	{"a probe that acquires its permit again stays the probe", 0, func(b *bench) {
		b.trip()
		b.move(b.rules.openFor)
		b.try("probe", grantedProbe)
		b.move(b.rules.hold - 1)
		b.try("probe", grantedProbe)
		b.move(b.rules.hold - 1)
		b.try("other", open)
		b.state(b.give("probe", OK, true), closed)
	}},
	{"rate", 0, func(b *bench) {
		b.burst(100)
		b.waits(b.try("a", throttled), b.rules.gap)
		b.move(b.rules.gap - 1)
		b.waits(b.try("a", throttled), 1)
		b.move(1)
		b.try("a", granted)
		b.give("a", OK, true)
		b.try("a", throttled)
		b.move(second / 2)
		b.burst(50)
		b.try("a", throttled)
	}},
	{"a refusal costs no rate", 0, func(b *bench) {
		b.takeEach("p", 4)
		for range 1000 {
			b.try("a", busy)
		}
		b.give("p-0", OK, true)
		b.burst(96)
		b.try("a", throttled)
	}},
	{"looking takes nothing", 0, func(b *bench) {
		for range 10 {
			if v := b.ask("a", question{}); v.code != busy || v.wait != 0 {
				b.t.Fatalf("%+v", v)
			}
		}
		b.give("a", OK, false)
		b.try("b", granted)
	}},
	{"breaker: calls and share", 0, func(b *bench) {
		b.state(b.calls(9, Failed), closed)
		b.state(b.calls(1, OK), closed) // 9 of 10, but a success does not open it
		b.state(b.calls(1, Failed), opened)
		b.try("a", open)
	}},
	{"breaker: below the share", 0, func(b *bench) {
		for range 12 {
			b.state(b.calls(1, OK), closed)
			b.state(b.calls(2, Failed), closed) // at most two thirds
		}
		b.state(b.calls(3, Neutral), closed)
		b.state(b.calls(1, Failed), closed) // 25 of 37
	}},
	{"breaker: neutral calls are not counted", 0, func(b *bench) {
		b.calls(9, Failed)
		b.state(b.calls(20, Neutral), closed)
		b.state(b.calls(1, Failed), opened)
	}},
	{"breaker: the window forgets", 0, func(b *bench) {
		b.calls(9, Failed)
		b.move(10 * b.rules.bucket)
		b.state(b.calls(9, Failed), closed)
		b.move(5 * b.rules.bucket)
		b.state(b.calls(1, Failed), opened)
	}},
	{"breaker: old successes do not hide an endpoint that fails now", 0, func(b *bench) {
		b.calls(50, OK)
		b.move(10 * b.rules.bucket)
		b.state(b.calls(10, Failed), opened)
	}},
	{"open, one probe, closed and cleared", 0, func(b *bench) {
		b.trip()
		b.move(b.rules.openFor - 1)
		if v := b.try("a", open); v.state != opened || v.left != 1 {
			b.t.Fatalf("%+v", v)
		}
		b.move(1)
		if v := b.try("probe", grantedProbe); v.state != halfOpen {
			b.t.Fatalf("%+v", v)
		}
		b.try("probe", grantedProbe) // a repeated request by the probe is granted again
		b.try("a", open)
		b.try("b", open)
		b.state(b.give("probe", OK, true), closed)
		b.state(b.calls(9, Failed), closed) // the window is new
		b.state(b.calls(1, Failed), opened)
	}},
	{"a probe that fails opens again", 0, func(b *bench) {
		b.trip()
		for range 3 {
			b.move(b.rules.openFor)
			b.try("probe", grantedProbe)
			b.state(b.give("probe", Failed, true), opened)
			b.try("a", open)
		}
	}},
	{"a neutral probe lets another one probe", 0, func(b *bench) {
		b.trip()
		b.move(b.rules.openFor)
		b.try("probe", grantedProbe)
		b.state(b.give("probe", Neutral, true), halfOpen)
		b.try("other", grantedProbe)
		b.try("probe", open)
	}},
	{"a probe that dies lets another one probe", 0, func(b *bench) {
		b.trip()
		b.move(b.rules.openFor)
		b.try("dead", grantedProbe)
		b.move(b.rules.hold - 1)
		b.try("other", open)
		b.move(1)
		b.try("other", grantedProbe)
		b.state(b.give("dead", OK, false), halfOpen)
		b.try("third", open)
		b.state(b.give("other", OK, true), closed)
	}},
	{"calls in flight when it opened change nothing", 0, func(b *bench) {
		b.takeEach("old", 3)
		b.trip()
		b.move(second)
		for token, r := range map[string]Result{"old-0": OK, "old-1": Failed} {
			if e := b.give(token, r, true); e.state != opened || e.left != b.rules.openFor-second {
				b.t.Fatalf("%s: %+v", token, e)
			}
		}
		b.move(b.rules.openFor - second)
		b.try("probe", grantedProbe)
		b.state(b.give("old-2", OK, true), halfOpen)
		b.try("a", open)
	}},
	{"reservations at the service rate", 0, func(b *bench) {
		b.try("a", granted)
		b.end("a", OK, 4*second) // 4 permits, 4 s each: one a second
		b.takeEach("p", 4)
		for i := range int64(299) {
			if v := b.ask("b", question{attempt: true, reserve: true}); v.code != busy || v.wait != (2+i)*second {
				b.t.Fatalf("reservation %d: %+v", i, v)
			}
		}
		for range 3 { // full
			if v := b.ask("b", question{reserve: true}); v.code != busy || v.wait != b.rules.maxWait {
				b.t.Fatalf("%+v", v)
			}
		}
		b.move(60 * second)
		b.waits(b.ask("b", question{reserve: true}), b.rules.maxWait-59*second)
	}},
	{"the mean follows", 0, func(b *bench) {
		for i, took := range []int64{second, 6 * second, 6 * second, 0} { // 1 s, 2 s, 2.8 s, unknown
			b.try("a", granted)
			b.end("a", OK, took)
			want := []int64{second / 4, second / 2, 7 * second / 10, 7 * second / 10}[i]
			b.move(b.rules.maxWait) // all reservations have passed
			b.waits(b.ask("b", question{reserve: true}), second+want)
		}
	}},
	{"reservations without a mean are at the rate", 0, func(b *bench) {
		for i := range int64(5) {
			b.waits(b.ask("b", question{reserve: true}), second+(i+1)*b.rules.gap)
		}
	}},
	{"reservations wait for the probe", 0, func(b *bench) {
		b.trip()
		for i := range int64(5) {
			// An open breaker always gives a reservation.
			b.waits(b.try("a", open), b.rules.openFor+(i+1)*(second/10/4))
		}
		b.move(b.rules.openFor + second)
		b.try("probe", grantedProbe)
		if v := b.try("a", open); v.state != halfOpen || v.wait < second || v.wait > 2*second {
			b.t.Fatalf("%+v", v)
		}
	}},
	{"the probe's success forgets the slow time", 0, func(b *bench) {
		for range 10 {
			b.try("a", granted)
			b.end("a", Failed, 30*second)
			b.move(second)
		}
		b.try("b", open)
		b.move(b.rules.openFor)
		b.try("probe", grantedProbe)
		b.end("probe", OK, second/10)
		b.waits(b.ask("b", question{reserve: true}), second+second/10/4)
	}},
	{"breaker: one for each endpoint", 0, func(b *bench) {
		other := b.on("other")
		other.calls(1, OK)
		b.trip()
		b.try("a", open)
		b.state(other.calls(20, OK), closed)
		b.move(b.rules.openFor - 20*b.rules.gap)
		other.try("a", granted) // no probe
		other.give("a", Failed, true)
		b.try("probe", grantedProbe)
		b.state(b.give("probe", Failed, true), opened)
		other.try("a", granted)
	}},
	{"permits and rate: one for all endpoints", 0, func(b *bench) {
		for i, token := range tokens("p", 100) {
			e := b.on(fmt.Sprint("e", i%7))
			e.try(token, granted)
			e.give(token, OK, true)
		}
		b.on("another").try("a", throttled)
		b.move(b.rules.gap * b.rules.burst)
		for i := range 4 {
			b.on(fmt.Sprint("e", i)).try("a", granted)
		}
		b.on("another").try("a", busy)
	}},
	{"share: an endpoint alone has all permits, also after others have gone", 0, func(b *bench) {
		other := b.on("other")
		other.try("a", granted)
		other.give("a", OK, true)
		b.takeEach("p", 2)
		b.try("third", busy) // the other was active just before
		b.move(b.rules.recent - 1)
		b.try("third", busy)
		b.move(1)
		b.try("third", granted)
		b.try("fourth", granted)
		b.try("fifth", busy)
	}},
	{"share: at most half while another waits", 0, func(b *bench) {
		other := b.on("other")
		b.takeEach("p", 4)
		for i, e := range []*bench{other, b} {
			// Of two waiting endpoints, each gets every second call of the rate.
			if v := e.ask("a", question{attempt: true, reserve: true}); v.code != busy || v.wait != second+int64(1+i)*b.rules.gap {
				b.t.Fatalf("%+v", v)
			}
		}
		b.give("p-0", OK, true)
		b.try("more", busy)
		b.give("p-1", OK, true)
		b.try("more", busy)
		b.give("p-2", OK, true)
		b.try("more", granted)
		b.try("third", busy) // it has half
		other.try("a", granted)
		b.give("more", OK, true)
		other.try("b", granted)
		b.try("more", busy) // it has one, so two would have to be free
		other.give("b", OK, true)
		b.try("more", granted)
	}},
	{"share: one that waits is forgotten", 0, func(b *bench) {
		other := b.on("other")
		b.takeEach("p", 4)
		v := other.ask("a", question{reserve: true})
		b.give("p-0", OK, true)
		b.try("fourth", busy)
		b.move(v.wait + b.rules.slack)
		b.try("fourth", busy)
		b.move(1)
		b.try("fourth", granted)
		// An endpoint that waits without a reservation is forgotten much sooner.
		other.try("b", busy)
		b.give("fourth", OK, true)
		b.move(b.rules.presence)
		b.try("fourth", busy)
		b.move(1)
		b.try("fourth", granted)
	}},
	{"share: who waits longest is first", 0, func(b *bench) {
		first, second, third := b.on("first"), b.on("second"), b.on("third")
		b.takeEach("p", 4)
		for _, e := range []*bench{first, second} {
			e.try("a", busy)
			b.move(1)
		}
		b.give("p-0", OK, true)
		second.try("a", busy)
		third.try("a", busy)
		first.try("a", granted)
		b.give("p-1", OK, true)
		third.try("a", busy)
		first.try("b", busy) // it has had its turn
		second.try("a", granted)
		b.give("p-2", OK, true)
		first.try("b", busy)
		third.try("a", granted)
		b.give("p-3", OK, true)
		first.try("b", busy) // it has one, and one is free
		b.try("a", granted)  // so it blocks no other endpoint
	}},
	{"share: a permit is kept only for one that has waited a little", second / 10, func(b *bench) {
		other := b.on("other")
		b.takeEach("p", 4)
		other.try("a", busy)
		b.move(b.rules.keptAfter - 1)
		for i := range 3 {
			b.give(fmt.Sprint("p-", i), OK, true)
		}
		b.try("a", granted) // a call that ends before the other asks again does not block it
		b.on("third").try("a", granted)
		b.move(1)
		b.on("third").try("b", busy)
		other.try("a", granted)
	}},
	{"share: who fails has one permit", 0, func(b *bench) {
		other := b.on("other")
		b.try("a", granted)
		b.give("a", Failed, true)
		b.takeEach("p", 2) // alone, it gets all permits
		b.give("p-1", Neutral, true)
		other.try("a", granted)
		b.try("b", busy)
		b.give("p-0", Neutral, true)
		b.try("b", granted)
		b.try("c", busy)
		b.give("b", OK, true) // after one success it has the usual share
		b.try("c", granted)
		b.give("c", Failed, true)
		b.try("d", granted)
		b.try("e", granted)
		b.try("f", busy) // by the rule for all: it has half
	}},
	{"share: what failed before the window does not count", 0, func(b *bench) {
		b.try("a", granted)
		b.give("a", Failed, true)
		b.move(buckets * b.rules.bucket)
		b.on("other").try("a", granted)
		b.try("b", granted)
		b.try("c", granted)
	}},
	{"share: one that may not take the free permit is in nobody's way", 0, func(b *bench) {
		hog, other := b.on("hog"), b.on("other")
		hog.try("a", granted)
		other.try("a", granted)
		hog.try("b", granted)
		hog.try("c", busy)
		b.move(1)
		b.try("a", granted)
		b.try("b", busy)
	}},
	{"share: a slow call makes way for one that comes back", 0, func(b *bench) {
		r := &b.rules
		slow, quick, waits := b.on("slow"), b.on("quick"), b.on("waits")
		slow.try("a", granted)
		slow.end("a", Neutral, 30*second)
		b.move(r.recent)
		for i := range 4 {
			b.on(fmt.Sprint("e", i)).try("a", granted)
		}
		v := waits.ask("a", question{attempt: true, reserve: true})
		b.move(r.presence + 1)
		b.on("e0").give("a", OK, true)
		slow.try("b", busy) // it would still use the permit when waits returns
		quick.try("b", granted)
		quick.give("b", OK, true)
		b.move(v.wait - r.presence)
		waits.try("a", granted)
	}},
	{"share: a flood leaves the rate to others in turn", 0, func(b *bench) {
		other, third := b.on("other"), b.on("third")
		b.burst(100)
		other.try("a", throttled)
		b.move(1)
		b.try("a", throttled)
		b.move(1)
		b.waits(third.try("a", throttled), 3*b.rules.gap-2)
		b.move(b.rules.gap)
		third.try("a", throttled)
		b.try("a", throttled)
		other.try("a", granted)
		other.give("a", OK, true)
		b.move(b.rules.gap)
		third.try("a", throttled)
		b.try("a", granted)
		b.give("a", OK, true)
		b.move(b.rules.gap)
		b.try("a", throttled)
		third.try("a", granted)
	}},
	{"share: an open breaker waits for no permit", 0, func(b *bench) {
		b.trip()
		for i := range 4 {
			b.on(fmt.Sprint("e", i)).try("a", granted)
		}
		b.try("a", open)
		b.move(b.rules.recent)
		b.on("e0").give("a", OK, true)
		b.on("e1").give("a", OK, true)
		b.on("e2").give("a", OK, true)
		b.on("e3").takeEach("more", 3)
	}},
	{"share: more that wait than are known", 0, func(b *bench) {
		b.takeEach("p", 4)
		for i := range 3 * maxWaitingEndpoints {
			b.on(fmt.Sprint("e", i)).try("a", busy)
			b.move(1)
		}
		b.give("p-0", OK, true)
		b.on("late").try("a", busy)
		b.on("e0").try("a", granted)
		for i := range 3 {
			b.give(fmt.Sprint("p-", i+1), OK, true)
			b.on(fmt.Sprint("e", i+1)).try("a", granted)
		}
	}},
	{"a clock that is set back closes nothing for long", 0, func(b *bench) {
		b.takeEach("p", 4)
		for range 400 {
			b.ask("a", question{reserve: true})
		}
		b.move(-3600 * second)
		b.try("a", granted) // the permits are from another time
		if v := b.ask("b", question{reserve: true}); v.wait > b.rules.maxWait {
			b.t.Fatalf("%+v", v)
		}
		b.give("a", Neutral, true)
		b.give("p-0", Neutral, true)
		b.move(b.rules.burst * b.rules.gap)
		b.trip()
		b.move(-3600 * second)
		b.try("a", grantedProbe)
		b.move(-3600 * second)
		b.give("a", OK, true)
		b.try("b", granted)
		b.burst(50)
		b.move(-3600 * second)
		b.burst(100)
		b.try("a", throttled)
	}},
	{"a clock that is set back a little changes little", 0, func(b *bench) {
		b.trip()
		b.move(-second)
		if v := b.try("a", open); v.left != b.rules.openFor+second {
			b.t.Fatalf("%+v", v)
		}
		b.move(b.rules.openFor + second)
		b.try("a", grantedProbe)
		b.move(-second)
		b.try("b", open)
	}},
}

// sameAsLocal asks the same random questions about up to six endpoints with newBench and with localBench. All answers must
// be equal.
func sameAsLocal(t *testing.T, newBench func(*testing.T, rules) *bench, seeds uint64) {
	seen := map[code]int{}
	for seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 3))
		r := rules{inflight: 1 + rnd.IntN(5), gap: 1 + rnd.Int64N(second), burst: 1 + rnd.Int64N(20), hold: second + rnd.Int64N(60*second),
			bucket: 1 + rnd.Int64N(3*second), minCalls: 1 + rnd.Int64N(5), returns: 1 + rnd.Int64N(3), ratio: 0.1 + 0.9*rnd.Float64(), openFor: 1000 + rnd.Int64N(5*second),
			minWait: second, maxWait: 20 * second, presence: 1 + rnd.Int64N(second), slack: 1 + rnd.Int64N(5*second),
			keptAfter: rnd.Int64N(second) * int64(rnd.IntN(2)), recent: 1 + rnd.Int64N(20*second)}
		a, b := localBench(t, r), newBench(t, r)
		names, ids := tokens("t", 8), tokens("e", 1+rnd.IntN(6))
		for i := range 400 {
			d := rnd.Int64N(second)
			switch rnd.IntN(40) {
			case 0:
				d = rnd.Int64N(100 * second)
			case 1:
				d = -rnd.Int64N(30 * second)
			case 2, 3, 4, 5, 6, 7, 8, 9:
				d = 0
			}
			a.move(d)
			b.move(d)
			id := ids[rnd.IntN(len(ids))]
			token := permitToken(id, names[rnd.IntN(len(names))])
			if rnd.IntN(2) == 0 {
				q := question{attempt: rnd.IntN(5) > 0, reserve: rnd.IntN(3) == 0, gap: rnd.Int64N(second) * int64(rnd.IntN(4)/3)}
				got, want := b.enter(id, token, q), a.enter(id, token, q)
				if got != want {
					t.Fatalf("seed %d, move %d: enter %s %+v: %+v, in memory %+v", seed, i, token, q, got, want)
				}
				seen[got.code]++
				continue
			}
			result, took := Result(rnd.IntN(3)), rnd.Int64N(10*second)
			if got, want := b.leave(id, token, result, took), a.leave(id, token, result, took); got != want {
				t.Fatalf("seed %d, move %d: leave %s %s %d: %+v, in memory %+v", seed, i, token, result, took, got, want)
			}
		}
	}
	for c := granted; c <= open; c++ {
		if seen[c] < 2*int(seeds) {
			t.Errorf("answer %d was given %d times: the moves try too little", c, seen[c])
		}
	}
}
