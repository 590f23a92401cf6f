package ratelimit

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/redis/go-redis/v9"
)

func newTurns(t testing.TB, rdb redis.UniversalClient, now func() time.Time) *Turns {
	t.Helper()
	turns, err := NewTurns(TurnsConfig{Redis: rdb, Timeout: 5 * time.Second, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return turns
}

// TestTurnsAgree: the rule in Go and the script give the same answers, for all callers and clocks.
func TestTurnsAgree(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.Redis(t))
	shared := newTurns(t, rdb, nil)
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		now, own := int64(1_800_000_000_000_000), turns{}
		shared.clock = func() int64 { return now }
		for step := range 200 {
			switch rnd.IntN(20) {
			case 0:
				now -= rnd.Int64N(3 * toMicros(maxTurn)) // the clock was set back
			default:
				now += rnd.Int64N(4 * 100_000 * (1 + rnd.Int64N(20)))
			}
			turn := Turn{name: string(rune('a' + seed)), gap: findGap([]float64{10, 3, 0.5, 0.01, 0.001}[rnd.IntN(5)])}
			again := rnd.IntN(2) == 0
			want := own.takeTurn(now, turn.gap, again)
			got, at, err := shared.askRedis(t.Context(), turn, again, 0)
			if err != nil || got != want || got.given && at != now+want.wait {
				t.Fatalf("seed %d, step %d: Redis says %+v at %d (%v), the rule %+v", seed, step, got, at, err, want)
			}
			if ttl := rdb.PTTL(t.Context(), turnsKey(turn.name)).Val(); ttl > slowestTurn+2*maxTurn || ttl == -1 {
				t.Fatalf("a TTL of %v", ttl)
			}
		}
	}
}

// TestTurnsOfManyWorkers: two workers with many deliveries together get as many turns as one agent asked for, evenly
// spaced. A refused delivery returns at most twice.
func TestTurnsOfManyWorkers(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		now := int64(1_800_000_000_000_000)
		clock := func() time.Time { return time.UnixMicro(now) }
		workers := []*Turns{newTurns(t, rdb, clock), newTurns(t, rdb, clock)}
		if rdb == nil {
			workers[1] = workers[0]
		}
		for _, w := range workers {
			w.clock = func() int64 { return now }
		}
		type comer struct {
			at    int64
			again bool
		}
		var crowd []comer
		for range 40 {
			crowd = append(crowd, comer{at: now})
		}
		var begun []int64
		asked := 0
		for len(crowd) > 0 {
			slices.SortStableFunc(crowd, func(a, b comer) int { return int(a.at - b.at) })
			c := crowd[0]
			crowd = crowd[1:]
			now = max(now, c.at)
			turn, err := workers[asked%2].Take(t.Context(), "8453:0xaa:1", 2, c.again)
			asked++
			switch {
			case err != nil:
				t.Fatal(err)
			case turn.Given:
				begun = append(begun, now+toMicros(turn.Wait))
			case !turn.Reserved:
				t.Fatalf("the wait of %v is not reserved", turn.Wait)
			default:
				crowd = append(crowd, comer{now + toMicros(turn.Wait) + rand.Int64N(20_000), true}) // asynq is a little late
			}
		}
		slices.Sort(begun)
		for i := 1; i < len(begun); i++ {
			if gap := begun[i] - begun[i-1]; gap < 500_000 {
				t.Errorf("calls %d and %d are %d µs apart", i-1, i, gap)
			}
		}
		if took := time.Duration(begun[39]-begun[0]) * time.Microsecond; took > 25*time.Second {
			t.Errorf("40 calls took %v, at 2 a second", took)
		}
		if asked > 2*40+5 {
			t.Errorf("40 calls asked %d times", asked)
		}
	})
}

func TestTurnsAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	turns := newTurns(t, nil, func() time.Time { return now })
	take := func(rate float64, again bool) Turn {
		t.Helper()
		turn, err := turns.Take(t.Context(), "a", rate, again)
		if err != nil {
			t.Fatal(err)
		}
		return turn
	}
	// A rate close to zero means one call a day, so no agent is left out for ever.
	if turn := take(1e-300, false); !turn.Given {
		t.Fatalf("%+v", turn)
	}
	if turn := take(1e-300, false); turn.Given || turn.Reserved || turn.Wait != maxTurn {
		t.Errorf("%+v", turn)
	}
	now = now.Add(slowestTurn)
	if turn := take(1e-300, true); !turn.Given {
		t.Errorf("a day later: %+v", turn)
	}
	// A higher rate applies at once, and a returned turn can be taken again.
	now = now.Add(time.Second)
	turn := take(1, false)
	if !turn.Given {
		t.Fatalf("%+v", turn)
	}
	if second := take(1, true); second.Given {
		t.Errorf("%+v", second)
	}
	turn.GiveBack(t.Context())
	turn.GiveBack(t.Context())
	if second := take(1, true); !second.Given {
		t.Errorf("%+v", second)
	}
	if third := take(1, true); third.Given {
		t.Errorf("a turn was given back twice: %+v", third)
	}
	for _, rate := range []float64{0, -1} {
		if _, err := turns.Take(t.Context(), "a", rate, false); err == nil {
			t.Errorf("a rate of %v", rate)
		}
	}
}

// TestTurnsGiveBackToAll: a turn that one worker returns unused can be taken by another.
func TestTurnsGiveBackToAll(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.Redis(t))
	one, other := newTurns(t, rdb, nil), newTurns(t, rdb, nil)
	turn, err := one.Take(t.Context(), "a", 0.01, false)
	if err != nil || !turn.Given {
		t.Fatal(turn, err)
	}
	if turn, err := other.Take(t.Context(), "a", 0.01, true); err != nil || turn.Given {
		t.Fatal(turn, err)
	}
	turn.GiveBack(t.Context())
	if turn, err := other.Take(t.Context(), "a", 0.01, true); err != nil || !turn.Given {
		t.Error(turn, err)
	}
}

// TestTurnsWithoutRedis: a worker that cannot reach Redis gives turns by itself, based on the turns it gave before.
func TestTurnsWithoutRedis(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.Redis(t))
	turns := newTurns(t, rdb, nil)
	if turn, err := turns.Take(t.Context(), "a", 0.01, false); err != nil || !turn.Given {
		t.Fatal(turn, err)
	}
	_ = rdb.Close()
	for range 3 {
		if turn, err := turns.Take(t.Context(), "a", 0.01, true); err != nil || turn.Given || turn.Reserved != (turn.Wait < maxTurn) {
			t.Error(turn, err)
		}
	}
	if turn, err := turns.Take(t.Context(), "b", 0.01, false); err != nil || !turn.Given {
		t.Error(turn, err)
	}
}

// TestTurnsInOneProcess: many callers take turns concurrently, under the race detector.
func TestTurnsInOneProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(t, nil, nil)
		var mu sync.Mutex
		given := 0
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				turn, err := turns.Take(t.Context(), "a", 10, false)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if turn.Given {
					given++
				}
			})
		}
		all.Wait()
		if given != 3 { // now, and after 100 and 200 ms
			t.Errorf("%d of 50 were given a turn at once", given)
		}
	})
}
