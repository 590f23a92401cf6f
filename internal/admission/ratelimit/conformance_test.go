package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// bench is one implementation of the state machine, with a clock that the test moves.
type bench struct {
	t     *testing.T
	rules rules
	now   *int64
	id    string // of the endpoint
	enter func(id, token string, q question) acquireAnswer
	leave func(id, token string, r Result, took int64) releaseAnswer
}

// on returns a bench for another endpoint of the same origin.
func (b *bench) on(id string) *bench {
	other := *b
	other.id = id
	return &other
}

// ask and end add the endpoint's id to the token, as Acquire does.
func (b *bench) ask(token string, q question) acquireAnswer {
	return b.enter(b.id, permitToken(b.id, token), q)
}

func (b *bench) end(token string, r Result, took int64) releaseAnswer {
	return b.leave(b.id, permitToken(b.id, token), r, took)
}

const second = int64(time.Second / time.Microsecond)

func defaultRules() rules {
	return rules{inflight: 4, gap: second / 100, burst: 100, hold: 180 * second, bucket: 30 * second, minCalls: 10, ratio: 0.7,
		openFor: 30 * second, minWait: second, maxWait: 300 * second, presence: second / 4, slack: 5 * second, recent: 60 * second}
}

var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixMicro()

func localBench(t *testing.T, r rules) *bench {
	now, m, circuits := epoch, &originState{}, map[string]*circuit{}
	of := func(id string) *circuit {
		if circuits[id] == nil {
			circuits[id] = &circuit{id: id}
		}
		return circuits[id]
	}
	return &bench{t: t, rules: r, now: &now, id: "e",
		enter: func(id, token string, q question) acquireAnswer { return m.acquire(&r, now, of(id), token, q) },
		leave: func(id, token string, res Result, took int64) releaseAnswer {
			return m.release(&r, now, of(id), token, res, took)
		}}
}

func sharedBench(url string) func(*testing.T, rules) *bench {
	n := 0
	return func(t *testing.T, r rules) *bench {
		now := epoch
		n++
		s, key := newRedisState(client(t, url), r), originKey(fmt.Sprint("origin ", n))
		s.now = func() int64 { return now }
		return &bench{t: t, rules: r, now: &now, id: "e",
			enter: func(id, token string, q question) acquireAnswer {
				v, err := s.acquire(t.Context(), key, id, token, q)
				heraldtest.Must(t, err)
				return v
			},
			leave: func(id, token string, res Result, took int64) releaseAnswer {
				e, err := s.release(t.Context(), key, id, token, res, took)
				heraldtest.Must(t, err)
				return e
			}}
	}
}

func (b *bench) move(d int64) { *b.now += d }

// take tries to acquire a permit, and expects the answer to have the code want.
func (b *bench) take(token string, want code) acquireAnswer {
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
		b.take(token, granted)
	}
}

// burst makes n calls without a pause.
func (b *bench) burst(n int) {
	b.t.Helper()
	for range n {
		b.take("a", granted)
		b.give("a", OK, true)
	}
}

// waits expects the wait of an answer.
func (b *bench) waits(v acquireAnswer, want int64) {
	b.t.Helper()
	if v.wait != want {
		b.t.Fatalf("%+v, want a wait of %d µs", v, want)
	}
}

// give releases a permit, and expects whether the permit is known.
func (b *bench) give(token string, r Result, known bool) releaseAnswer {
	b.t.Helper()
	e := b.end(token, r, second/10)
	if e.known != known {
		b.t.Fatalf("leave %s: %+v, want known %v", token, e, known)
	}
	return e
}

// calls makes n calls with the result r, one after the other.
func (b *bench) calls(n int, r Result) (last releaseAnswer) {
	b.t.Helper()
	for range n {
		b.take("call", granted)
		last = b.give("call", r, true)
		b.move(b.rules.gap)
	}
	return last
}

func (b *bench) state(e releaseAnswer, want state) {
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

// TestConformance checks that the machine in this process, the scripts in Redis and the scripts in miniredis follow the
// same rules.
func TestConformance(t *testing.T) {
	backends := []struct {
		name   string
		random uint64 // number of random sequences; the scripts are the same in both, and miniredis is ten times slower
		make   func(*testing.T) func(*testing.T, rules) *bench
	}{
		{"local", 0, func(*testing.T) func(*testing.T, rules) *bench { return localBench }},
		{"redis", 3, func(t *testing.T) func(*testing.T, rules) *bench { return sharedBench(heraldtest.RealRedis(t)) }},
		{"miniredis", 1, func(t *testing.T) func(*testing.T, rules) *bench { return sharedBench(heraldtest.MiniRedis(t)) }},
	}
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			t.Parallel()
			newBench := backend.make(t)
			for _, c := range conformance {
				t.Run(c.name, func(t *testing.T) {
					r := defaultRules()
					r.keptAfter = c.keptAfter
					c.test(newBench(t, r))
				})
			}
			if backend.random > 0 {
				t.Run("random", func(t *testing.T) { sameAsLocal(t, newBench, backend.random) })
			}
		})
	}
}

var conformance = []struct {
	name      string
	keptAfter int64
	test      func(*bench)
}{
	{"permits", 0, func(b *bench) {
		b.takeEach("p", 4)
		b.take("fifth", busy)
		b.give("p-2", OK, true)
		b.give("p-2", OK, false)
		b.take("fifth", granted)
		b.take("sixth", busy)
		b.give("nobody", OK, false)
		b.take("sixth", busy)
	}},
	{"the same token enters again for nothing", 0, func(b *bench) {
		for range 300 { // three bursts
			b.take("a", granted)
		}
		b.takeEach("p", 3)
		b.take("fifth", busy)
		b.take("a", granted) // also if all permits are in use
		b.give("a", OK, true)
		b.give("a", OK, false)
	}},
	{"a permit comes back after PermitTTL", 0, func(b *bench) {
		b.takeEach("dead", 4)
		b.move(b.rules.hold - 1)
		b.take("a", busy)
		b.move(1)
		b.take("a", granted)
		b.give("dead-0", Failed, false)
		b.takeEach("p", 3)
		b.take("b", busy)
	}},
	{"a permit that is acquired again lasts for another PermitTTL", 0, func(b *bench) {
		b.takeEach("p", 4)
		b.move(b.rules.hold - 1)
		b.take("p-0", granted)
		b.move(b.rules.hold - 1) // the others expire
		b.takeEach("more", 3)
		b.take("a", busy)
		b.give("p-0", OK, true)
		b.take("a", granted)
	}},
	{"a probe that acquires its permit again stays the probe", 0, func(b *bench) {
		b.trip()
		b.move(b.rules.openFor)
		b.take("probe", grantedProbe)
		b.move(b.rules.hold - 1)
		b.take("probe", grantedProbe)
		b.move(b.rules.hold - 1)
		b.take("other", open)
		b.state(b.give("probe", OK, true), closed)
	}},
	{"rate", 0, func(b *bench) {
		b.burst(100)
		b.waits(b.take("a", throttled), b.rules.gap)
		b.move(b.rules.gap - 1)
		b.waits(b.take("a", throttled), 1)
		b.move(1)
		b.take("a", granted)
		b.give("a", OK, true)
		b.take("a", throttled)
		b.move(second / 2)
		b.burst(50)
		b.take("a", throttled)
	}},
	{"a refusal costs no rate", 0, func(b *bench) {
		b.takeEach("p", 4)
		for range 1000 {
			b.take("a", busy)
		}
		b.give("p-0", OK, true)
		b.burst(96)
		b.take("a", throttled)
	}},
	{"looking takes nothing", 0, func(b *bench) {
		for range 10 {
			if v := b.ask("a", question{}); v.code != busy || v.wait != 0 {
				b.t.Fatalf("%+v", v)
			}
		}
		b.give("a", OK, false)
		b.take("b", granted)
	}},
	{"breaker: calls and share", 0, func(b *bench) {
		b.state(b.calls(9, Failed), closed)
		b.state(b.calls(1, OK), closed) // 9 of 10, but a success does not open it
		b.state(b.calls(1, Failed), opened)
		b.take("a", open)
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
		if v := b.take("a", open); v.state != opened || v.left != 1 {
			b.t.Fatalf("%+v", v)
		}
		b.move(1)
		if v := b.take("probe", grantedProbe); v.state != halfOpen {
			b.t.Fatalf("%+v", v)
		}
		b.take("probe", grantedProbe) // a repeated request by the probe is granted again
		b.take("a", open)
		b.take("b", open)
		b.state(b.give("probe", OK, true), closed)
		b.state(b.calls(9, Failed), closed) // the window is new
		b.state(b.calls(1, Failed), opened)
	}},
	{"a probe that fails opens again", 0, func(b *bench) {
		b.trip()
		for range 3 {
			b.move(b.rules.openFor)
			b.take("probe", grantedProbe)
			b.state(b.give("probe", Failed, true), opened)
			b.take("a", open)
		}
	}},
	{"a neutral probe lets another one probe", 0, func(b *bench) {
		b.trip()
		b.move(b.rules.openFor)
		b.take("probe", grantedProbe)
		b.state(b.give("probe", Neutral, true), halfOpen)
		b.take("other", grantedProbe)
		b.take("probe", open)
	}},
	{"a probe that dies lets another one probe", 0, func(b *bench) {
		b.trip()
		b.move(b.rules.openFor)
		b.take("dead", grantedProbe)
		b.move(b.rules.hold - 1)
		b.take("other", open)
		b.move(1)
		b.take("other", grantedProbe)
		b.state(b.give("dead", OK, false), halfOpen)
		b.take("third", open)
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
		b.take("probe", grantedProbe)
		b.state(b.give("old-2", OK, true), halfOpen)
		b.take("a", open)
	}},
	{"reservations at the service rate", 0, func(b *bench) {
		b.take("a", granted)
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
			b.take("a", granted)
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
			b.waits(b.take("a", open), b.rules.openFor+(i+1)*(second/10/4))
		}
		b.move(b.rules.openFor + second)
		b.take("probe", grantedProbe)
		if v := b.take("a", open); v.state != halfOpen || v.wait < second || v.wait > 2*second {
			b.t.Fatalf("%+v", v)
		}
	}},
	{"the probe's success forgets the slow time", 0, func(b *bench) {
		for range 10 {
			b.take("a", granted)
			b.end("a", Failed, 30*second)
			b.move(second)
		}
		b.take("b", open)
		b.move(b.rules.openFor)
		b.take("probe", grantedProbe)
		b.end("probe", OK, second/10)
		b.waits(b.ask("b", question{reserve: true}), second+second/10/4)
	}},
	{"breaker: one for each endpoint", 0, func(b *bench) {
		other := b.on("other")
		other.calls(1, OK)
		b.trip()
		b.take("a", open)
		b.state(other.calls(20, OK), closed)
		b.move(b.rules.openFor - 20*b.rules.gap)
		other.take("a", granted) // no probe
		other.give("a", Failed, true)
		b.take("probe", grantedProbe)
		b.state(b.give("probe", Failed, true), opened)
		other.take("a", granted)
	}},
	{"permits and rate: one for all endpoints", 0, func(b *bench) {
		for i, token := range tokens("p", 100) {
			e := b.on(fmt.Sprint("e", i%7))
			e.take(token, granted)
			e.give(token, OK, true)
		}
		b.on("another").take("a", throttled)
		b.move(b.rules.gap * b.rules.burst)
		for i := range 4 {
			b.on(fmt.Sprint("e", i)).take("a", granted)
		}
		b.on("another").take("a", busy)
	}},
	{"share: an endpoint alone has all permits, also after others have gone", 0, func(b *bench) {
		other := b.on("other")
		other.take("a", granted)
		other.give("a", OK, true)
		b.takeEach("p", 2)
		b.take("third", busy) // the other was active just before
		b.move(b.rules.recent - 1)
		b.take("third", busy)
		b.move(1)
		b.take("third", granted)
		b.take("fourth", granted)
		b.take("fifth", busy)
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
		b.take("more", busy)
		b.give("p-1", OK, true)
		b.take("more", busy)
		b.give("p-2", OK, true)
		b.take("more", granted)
		b.take("third", busy) // it has half
		other.take("a", granted)
		b.give("more", OK, true)
		other.take("b", granted)
		b.take("more", busy) // it has one, so two would have to be free
		other.give("b", OK, true)
		b.take("more", granted)
	}},
	{"share: one that waits is forgotten", 0, func(b *bench) {
		other := b.on("other")
		b.takeEach("p", 4)
		v := other.ask("a", question{reserve: true})
		b.give("p-0", OK, true)
		b.take("fourth", busy)
		b.move(v.wait + b.rules.slack)
		b.take("fourth", busy)
		b.move(1)
		b.take("fourth", granted)
		// An endpoint that waits without a reservation is forgotten much sooner.
		other.take("b", busy)
		b.give("fourth", OK, true)
		b.move(b.rules.presence)
		b.take("fourth", busy)
		b.move(1)
		b.take("fourth", granted)
	}},
	{"share: who waits longest is first", 0, func(b *bench) {
		first, second, third := b.on("first"), b.on("second"), b.on("third")
		b.takeEach("p", 4)
		for _, e := range []*bench{first, second} {
			e.take("a", busy)
			b.move(1)
		}
		b.give("p-0", OK, true)
		second.take("a", busy)
		third.take("a", busy)
		first.take("a", granted)
		b.give("p-1", OK, true)
		third.take("a", busy)
		first.take("b", busy) // it has had its turn
		second.take("a", granted)
		b.give("p-2", OK, true)
		first.take("b", busy)
		third.take("a", granted)
		b.give("p-3", OK, true)
		first.take("b", busy) // it has one, and one is free
		b.take("a", granted)  // so it blocks no other endpoint
	}},
	{"share: a permit is kept only for one that has waited a little", second / 10, func(b *bench) {
		other := b.on("other")
		b.takeEach("p", 4)
		other.take("a", busy)
		b.move(b.rules.keptAfter - 1)
		for i := range 3 {
			b.give(fmt.Sprint("p-", i), OK, true)
		}
		b.take("a", granted) // a call that ends before the other asks again does not block it
		b.on("third").take("a", granted)
		b.move(1)
		b.on("third").take("b", busy)
		other.take("a", granted)
	}},
	{"share: who fails has one permit", 0, func(b *bench) {
		other := b.on("other")
		b.take("a", granted)
		b.give("a", Failed, true)
		b.takeEach("p", 2) // alone, it gets all permits
		b.give("p-1", Neutral, true)
		other.take("a", granted)
		b.take("b", busy)
		b.give("p-0", Neutral, true)
		b.take("b", granted)
		b.take("c", busy)
		b.give("b", OK, true) // after one success it has the usual share
		b.take("c", granted)
		b.give("c", Failed, true)
		b.take("d", granted)
		b.take("e", granted)
		b.take("f", busy) // by the rule for all: it has half
	}},
	{"share: what failed before the window does not count", 0, func(b *bench) {
		b.take("a", granted)
		b.give("a", Failed, true)
		b.move(buckets * b.rules.bucket)
		b.on("other").take("a", granted)
		b.take("b", granted)
		b.take("c", granted)
	}},
	{"share: one that may not take the free permit is in nobody's way", 0, func(b *bench) {
		hog, other := b.on("hog"), b.on("other")
		hog.take("a", granted)
		other.take("a", granted)
		hog.take("b", granted)
		hog.take("c", busy)
		b.move(1)
		b.take("a", granted)
		b.take("b", busy)
	}},
	{"share: a slow call makes way for one that comes back", 0, func(b *bench) {
		r := &b.rules
		slow, quick, waits := b.on("slow"), b.on("quick"), b.on("waits")
		slow.take("a", granted)
		slow.end("a", Neutral, 30*second)
		b.move(r.recent)
		for i := range 4 {
			b.on(fmt.Sprint("e", i)).take("a", granted)
		}
		v := waits.ask("a", question{attempt: true, reserve: true})
		b.move(r.presence + 1)
		b.on("e0").give("a", OK, true)
		slow.take("b", busy) // it would still use the permit when waits returns
		quick.take("b", granted)
		quick.give("b", OK, true)
		b.move(v.wait - r.presence)
		waits.take("a", granted)
	}},
	{"share: a flood leaves the rate to others in turn", 0, func(b *bench) {
		other, third := b.on("other"), b.on("third")
		b.burst(100)
		other.take("a", throttled)
		b.move(1)
		b.take("a", throttled)
		b.move(1)
		b.waits(third.take("a", throttled), 3*b.rules.gap-2)
		b.move(b.rules.gap)
		third.take("a", throttled)
		b.take("a", throttled)
		other.take("a", granted)
		other.give("a", OK, true)
		b.move(b.rules.gap)
		third.take("a", throttled)
		b.take("a", granted)
		b.give("a", OK, true)
		b.move(b.rules.gap)
		b.take("a", throttled)
		third.take("a", granted)
	}},
	{"share: an open breaker waits for no permit", 0, func(b *bench) {
		b.trip()
		for i := range 4 {
			b.on(fmt.Sprint("e", i)).take("a", granted)
		}
		b.take("a", open)
		b.move(b.rules.recent)
		b.on("e0").give("a", OK, true)
		b.on("e1").give("a", OK, true)
		b.on("e2").give("a", OK, true)
		b.on("e3").takeEach("more", 3)
	}},
	{"share: more that wait than are known", 0, func(b *bench) {
		b.takeEach("p", 4)
		for i := range 3 * maxWaitingEndpoints {
			b.on(fmt.Sprint("e", i)).take("a", busy)
			b.move(1)
		}
		b.give("p-0", OK, true)
		b.on("late").take("a", busy)
		b.on("e0").take("a", granted)
		for i := range 3 {
			b.give(fmt.Sprint("p-", i+1), OK, true)
			b.on(fmt.Sprint("e", i+1)).take("a", granted)
		}
	}},
	{"a clock that is set back closes nothing for long", 0, func(b *bench) {
		b.takeEach("p", 4)
		for range 400 {
			b.ask("a", question{reserve: true})
		}
		b.move(-3600 * second)
		b.take("a", granted) // the permits are from another time
		if v := b.ask("b", question{reserve: true}); v.wait > b.rules.maxWait {
			b.t.Fatalf("%+v", v)
		}
		b.give("a", Neutral, true)
		b.give("p-0", Neutral, true)
		b.move(b.rules.burst * b.rules.gap)
		b.trip()
		b.move(-3600 * second)
		b.take("a", grantedProbe)
		b.move(-3600 * second)
		b.give("a", OK, true)
		b.take("b", granted)
		b.burst(50)
		b.move(-3600 * second)
		b.burst(100)
		b.take("a", throttled)
	}},
	{"a clock that is set back a little changes little", 0, func(b *bench) {
		b.trip()
		b.move(-second)
		if v := b.take("a", open); v.left != b.rules.openFor+second {
			b.t.Fatalf("%+v", v)
		}
		b.move(b.rules.openFor + second)
		b.take("a", grantedProbe)
		b.move(-second)
		b.take("b", open)
	}},
}

// sameAsLocal makes the same random requests for up to six endpoints to a backend and to the machine in this process.
// All answers must be equal.
func sameAsLocal(t *testing.T, newBench func(*testing.T, rules) *bench, seeds uint64) {
	seen := map[code]int{}
	for seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 3))
		r := rules{inflight: 1 + rnd.IntN(5), gap: 1 + rnd.Int64N(second), burst: 1 + rnd.Int64N(20), hold: second + rnd.Int64N(60*second),
			bucket: 1 + rnd.Int64N(3*second), minCalls: 1 + rnd.Int64N(5), ratio: 0.1 + 0.9*rnd.Float64(), openFor: 1000 + rnd.Int64N(5*second),
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
					t.Fatalf("seed %d, move %d: enter %s %+v: %+v, the machine says %+v", seed, i, token, q, got, want)
				}
				seen[got.code]++
				continue
			}
			result, took := Result(rnd.IntN(3)), rnd.Int64N(10*second)
			if got, want := b.leave(id, token, result, took), a.leave(id, token, result, took); got != want {
				t.Fatalf("seed %d, move %d: leave %s %s %d: %+v, the machine says %+v", seed, i, token, result, took, got, want)
			}
		}
	}
	for c := granted; c <= open; c++ {
		if seen[c] < 2*int(seeds) {
			t.Errorf("answer %d was given %d times: the moves try too little", c, seen[c])
		}
	}
}
