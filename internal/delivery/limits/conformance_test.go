package limits

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/embedded/embeddedtest"
)

// bench is one implementation of the state machine with a clock that the test moves.
type bench struct {
	t     *testing.T
	rules rules
	now   *int64
	enter func(token string, q question) verdict
	leave func(token string, r Result, took int64) ending
}

const second = int64(time.Second / time.Microsecond)

func defaultRules() rules {
	return rules{inflight: 4, gap: second / 100, burst: 100, hold: 180 * second, bucket: 30 * second, minCalls: 10, ratio: 0.7,
		openFor: 30 * second, minWait: second, maxWait: 300 * second}
}

var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixMicro()

func localBench(t *testing.T, r rules) *bench {
	now, m := epoch, &machine{}
	return &bench{t: t, rules: r, now: &now,
		enter: func(token string, q question) verdict { return m.enter(&r, now, token, q) },
		leave: func(token string, res Result, took int64) ending { return m.leave(&r, now, token, res, took) }}
}

func sharedBench(url string) func(*testing.T, rules) *bench {
	n := 0
	return func(t *testing.T, r rules) *bench {
		now := epoch
		n++
		s, key := newShared(client(t, url), r), keyOf(fmt.Sprint("origin ", n))
		s.now = func() int64 { return now }
		return &bench{t: t, rules: r, now: &now,
			enter: func(token string, q question) verdict {
				v, err := s.enter(t.Context(), key, token, q)
				if err != nil {
					t.Fatal(err)
				}
				return v
			},
			leave: func(token string, res Result, took int64) ending {
				e, err := s.leave(t.Context(), key, token, res, took)
				if err != nil {
					t.Fatal(err)
				}
				return e
			}}
	}
}

func (b *bench) move(d int64) { *b.now += d }

// take expects an attempt to end with want.
func (b *bench) take(token string, want code) verdict {
	b.t.Helper()
	v := b.enter(token, question{attempt: true})
	if v.code != want {
		b.t.Fatalf("enter %s: %+v, want code %d", token, v, want)
	}
	return v
}

// give expects the leave to be known, or not.
func (b *bench) give(token string, r Result, known bool) ending {
	b.t.Helper()
	e := b.leave(token, r, second/10)
	if e.known != known {
		b.t.Fatalf("leave %s: %+v, want known %v", token, e, known)
	}
	return e
}

// calls makes n calls, one after the other, that end with r.
func (b *bench) calls(n int, r Result) (last ending) {
	b.t.Helper()
	for range n {
		b.take("call", granted)
		last = b.give("call", r, true)
		b.move(b.rules.gap)
	}
	return last
}

func (b *bench) state(e ending, want state) {
	b.t.Helper()
	if e.state != want || want == opened && e.left != b.rules.openFor || want != opened && e.left != 0 {
		b.t.Fatalf("breaker: %+v, want state %d", e, want)
	}
}

// trip opens the breaker.
func (b *bench) trip() {
	b.t.Helper()
	b.state(b.calls(int(b.rules.minCalls), Failed), opened)
	// calls moved the clock once more after the last one.
	b.move(-b.rules.gap)
}

// TestConformance holds the machine in this process, the scripts in Redis and the scripts in miniredis to the same rules.
func TestConformance(t *testing.T) {
	backends := []struct {
		name string
		make func(*testing.T) func(*testing.T, rules) *bench
	}{
		{"local", func(*testing.T) func(*testing.T, rules) *bench { return localBench }},
		{"redis", func(t *testing.T) func(*testing.T, rules) *bench { return sharedBench(embeddedtest.RealRedis(t)) }},
		{"miniredis", func(t *testing.T) func(*testing.T, rules) *bench { return sharedBench(embeddedtest.MiniRedis(t)) }},
	}
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			t.Parallel()
			newBench := backend.make(t)
			for _, c := range conformance {
				t.Run(c.name, func(t *testing.T) { c.test(newBench(t, defaultRules())) })
			}
			t.Run("random", func(t *testing.T) { sameAsLocal(t, newBench) })
		})
	}
}

var conformance = []struct {
	name string
	test func(*bench)
}{
	{"places", func(b *bench) {
		for _, token := range tokens("p", 4) {
			b.take(token, granted)
		}
		b.take("fifth", busy)
		b.give("p-2", OK, true)
		b.give("p-2", OK, false)
		b.take("fifth", granted)
		b.take("sixth", busy)
		b.give("nobody", OK, false)
		b.take("sixth", busy)
	}},
	{"the same token enters again for nothing", func(b *bench) {
		for range 300 { // three bursts
			b.take("a", granted)
		}
		for _, token := range tokens("p", 3) {
			b.take(token, granted)
		}
		b.take("fifth", busy)
		b.take("a", granted) // also when all is taken
		b.give("a", OK, true)
		b.give("a", OK, false)
	}},
	{"a place comes back after Hold", func(b *bench) {
		for _, token := range tokens("dead", 4) {
			b.take(token, granted)
		}
		b.move(b.rules.hold - 1)
		b.take("a", busy)
		b.move(1)
		b.take("a", granted)
		b.give("dead-0", Failed, false)
		for _, token := range tokens("p", 3) {
			b.take(token, granted)
		}
		b.take("b", busy)
	}},
	{"rate", func(b *bench) {
		for range 100 {
			b.take("a", granted)
			b.give("a", OK, true)
		}
		if v := b.take("a", throttled); v.wait != b.rules.gap {
			b.t.Fatalf("%+v, want the gap", v)
		}
		b.move(b.rules.gap - 1)
		if v := b.take("a", throttled); v.wait != 1 {
			b.t.Fatalf("%+v, want 1 µs", v)
		}
		b.move(1)
		b.take("a", granted)
		b.give("a", OK, true)
		b.take("a", throttled)
		b.move(second / 2)
		for range 50 {
			b.take("a", granted)
			b.give("a", OK, true)
		}
		b.take("a", throttled)
	}},
	{"a refusal costs no rate", func(b *bench) {
		for _, token := range tokens("p", 4) {
			b.take(token, granted)
		}
		for range 1000 {
			b.take("a", busy)
		}
		b.give("p-0", OK, true)
		for range 96 {
			b.take("a", granted)
			b.give("a", OK, true)
		}
		b.take("a", throttled)
	}},
	{"looking takes nothing", func(b *bench) {
		for range 10 {
			if v := b.enter("a", question{}); v.code != busy || v.wait != 0 {
				b.t.Fatalf("%+v", v)
			}
		}
		b.give("a", OK, false)
		b.take("b", granted)
	}},
	{"breaker: calls and share", func(b *bench) {
		b.state(b.calls(9, Failed), closed)
		b.state(b.calls(1, OK), closed) // 9 of 10, but a success does not open it
		b.state(b.calls(1, Failed), opened)
		b.take("a", open)
	}},
	{"breaker: below the share", func(b *bench) {
		for range 12 {
			b.state(b.calls(1, OK), closed)
			b.state(b.calls(2, Failed), closed) // at most two thirds
		}
		b.state(b.calls(3, Neutral), closed)
		b.state(b.calls(1, Failed), closed) // 25 of 37
	}},
	{"breaker: neutral calls are not counted", func(b *bench) {
		b.calls(9, Failed)
		b.state(b.calls(20, Neutral), closed)
		b.state(b.calls(1, Failed), opened)
	}},
	{"breaker: the window forgets", func(b *bench) {
		b.calls(9, Failed)
		b.move(10 * b.rules.bucket)
		b.state(b.calls(9, Failed), closed)
		b.move(5 * b.rules.bucket)
		b.state(b.calls(1, Failed), opened)
	}},
	{"breaker: old successes do not hide an endpoint that fails now", func(b *bench) {
		b.calls(50, OK)
		b.move(10 * b.rules.bucket)
		b.state(b.calls(10, Failed), opened)
	}},
	{"open, one probe, closed and cleared", func(b *bench) {
		b.trip()
		b.move(b.rules.openFor - 1)
		if v := b.take("a", open); v.state != opened || v.left != 1 {
			b.t.Fatalf("%+v", v)
		}
		b.move(1)
		if v := b.take("probe", grantedProbe); v.state != halfOpen {
			b.t.Fatalf("%+v", v)
		}
		b.take("probe", grantedProbe) // asked twice, it is still the one
		b.take("a", open)
		b.take("b", open)
		b.state(b.give("probe", OK, true), closed)
		b.state(b.calls(9, Failed), closed) // the window is new
		b.state(b.calls(1, Failed), opened)
	}},
	{"a probe that fails opens again", func(b *bench) {
		b.trip()
		for range 3 {
			b.move(b.rules.openFor)
			b.take("probe", grantedProbe)
			b.state(b.give("probe", Failed, true), opened)
			b.take("a", open)
		}
	}},
	{"a neutral probe lets another one probe", func(b *bench) {
		b.trip()
		b.move(b.rules.openFor)
		b.take("probe", grantedProbe)
		b.state(b.give("probe", Neutral, true), halfOpen)
		b.take("other", grantedProbe)
		b.take("probe", open)
	}},
	{"a probe that dies lets another one probe", func(b *bench) {
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
	{"calls in flight when it opened change nothing", func(b *bench) {
		for _, token := range tokens("old", 3) {
			b.take(token, granted)
		}
		b.trip()
		b.move(second)
		if e := b.give("old-0", OK, true); e.state != opened || e.left != b.rules.openFor-second {
			b.t.Fatalf("%+v", e)
		}
		if e := b.give("old-1", Failed, true); e.state != opened || e.left != b.rules.openFor-second {
			b.t.Fatalf("%+v", e)
		}
		b.move(b.rules.openFor - second)
		b.take("probe", grantedProbe)
		b.state(b.give("old-2", OK, true), halfOpen)
		b.take("a", open)
	}},
	{"reservations at the service rate", func(b *bench) {
		b.take("a", granted)
		b.leave("a", OK, 4*second) // 4 places, 4 s each: one a second
		for _, token := range tokens("p", 4) {
			b.take(token, granted)
		}
		for i := range int64(299) {
			if v := b.enter("b", question{attempt: true, reserve: true}); v.code != busy || v.wait != (2+i)*second {
				b.t.Fatalf("reservation %d: %+v", i, v)
			}
		}
		for range 3 { // full
			if v := b.enter("b", question{reserve: true}); v.code != busy || v.wait != b.rules.maxWait {
				b.t.Fatalf("%+v", v)
			}
		}
		b.move(60 * second)
		if v := b.enter("b", question{reserve: true}); v.wait != b.rules.maxWait-59*second {
			b.t.Fatalf("%+v", v)
		}
	}},
	{"the mean follows", func(b *bench) {
		for i, took := range []int64{second, 6 * second, 6 * second, 0} { // 1 s, 2 s, 2.8 s, not known
			b.take("a", granted)
			b.leave("a", OK, took)
			want := []int64{second / 4, second / 2, 7 * second / 10, 7 * second / 10}[i]
			b.move(b.rules.maxWait) // the line is empty again
			if v := b.enter("b", question{reserve: true}); v.wait != second+want {
				b.t.Fatalf("after %d calls: %+v, want %d", i+1, v, second+want)
			}
		}
	}},
	{"reservations without a mean are at the rate", func(b *bench) {
		for i := range int64(5) {
			if v := b.enter("b", question{reserve: true}); v.wait != second+(i+1)*b.rules.gap {
				b.t.Fatalf("%+v", v)
			}
		}
	}},
	{"reservations wait for the probe", func(b *bench) {
		b.trip()
		for i := range int64(5) {
			// An open breaker reserves whether asked to or not.
			if v := b.take("a", open); v.wait != b.rules.openFor+(i+1)*(second/10/4) {
				b.t.Fatalf("%+v", v)
			}
		}
		b.move(b.rules.openFor + second)
		b.take("probe", grantedProbe)
		if v := b.take("a", open); v.state != halfOpen || v.wait < second || v.wait > 2*second {
			b.t.Fatalf("%+v", v)
		}
	}},
	{"the probe's success forgets the slow time", func(b *bench) {
		for range 10 {
			b.take("a", granted)
			b.leave("a", Failed, 30*second)
			b.move(second)
		}
		b.take("b", open)
		b.move(b.rules.openFor)
		b.take("probe", grantedProbe)
		b.leave("probe", OK, second/10)
		if v := b.enter("b", question{reserve: true}); v.wait != second+second/10/4 {
			b.t.Fatalf("%+v", v)
		}
	}},
	{"a clock that is set back closes nothing for long", func(b *bench) {
		for _, token := range tokens("p", 4) {
			b.take(token, granted)
		}
		for range 400 {
			b.enter("a", question{reserve: true})
		}
		b.move(-3600 * second)
		b.take("a", granted) // those places are from another time
		if v := b.enter("b", question{reserve: true}); v.wait > b.rules.maxWait {
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
		for range 50 {
			b.take("a", granted)
			b.give("a", OK, true)
		}
		b.move(-3600 * second)
		for range 100 {
			b.take("a", granted)
			b.give("a", OK, true)
		}
		b.take("a", throttled)
	}},
	{"a clock that is set back a little changes little", func(b *bench) {
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

// sameAsLocal makes the same random moves on a backend and on the machine, whose answers must not differ in anything.
func sameAsLocal(t *testing.T, newBench func(*testing.T, rules) *bench) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		r := rules{inflight: 1 + rnd.IntN(5), gap: 1 + rnd.Int64N(second), burst: 1 + rnd.Int64N(20), hold: second + rnd.Int64N(60*second),
			bucket: 1 + rnd.Int64N(3*second), minCalls: 1 + rnd.Int64N(5), ratio: 0.1 + 0.9*rnd.Float64(), openFor: 1000 + rnd.Int64N(5*second),
			minWait: second, maxWait: 20 * second}
		a, b := localBench(t, r), newBench(t, r)
		names := tokens("t", 8)
		for i := range 1200 {
			d := rnd.Int64N(second)
			switch rnd.IntN(40) {
			case 0:
				d = rnd.Int64N(100 * second)
			case 1:
				d = -rnd.Int64N(30 * second)
			}
			a.move(d)
			b.move(d)
			token := names[rnd.IntN(len(names))]
			if rnd.IntN(2) == 0 {
				q := question{attempt: rnd.IntN(5) > 0, reserve: rnd.IntN(3) == 0}
				if got, want := b.enter(token, q), a.enter(token, q); got != want {
					t.Fatalf("seed %d, move %d: enter %s %+v: %+v, the machine says %+v", seed, i, token, q, got, want)
				}
				continue
			}
			result, took := Result(rnd.IntN(3)), rnd.Int64N(10*second)
			if got, want := b.leave(token, result, took), a.leave(token, result, took); got != want {
				t.Fatalf("seed %d, move %d: leave %s %s %d: %+v, the machine says %+v", seed, i, token, result, took, got, want)
			}
		}
	}
}
