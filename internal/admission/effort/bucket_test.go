package effort

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestSharedUsage applies the same charges to a bucket in this process and to the usage in Redis and in miniredis.
func TestSharedUsage(t *testing.T) {
	heraldtest.EachRedis(t, func(t *testing.T, url string) {
		rdb := heraldtest.RedisClient(t, url)
		rules := newRules(60e6)
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 1))
			now := int64(1_700_000_000_000_000)
			s := newShared(rdb, rules)
			s.now = func() int64 { return now }
			b := bucket{at: now}
			for step := range 40 {
				if r.IntN(10) == 0 {
					now -= r.Int64N(5e6) // the clock was set back
				} else {
					now += r.Int64N(20e6)
				}
				var spent [kindCount]float64
				for w := range spent {
					if r.IntN(2) == 0 {
						spent[w] = float64(r.Int64N(30e6))
					}
				}
				mean := float64(step + 1)
				if step == 0 {
					b.chargeSpent(rules, now, spent)
					spent, all := [kindCount]float64{}, known{mean, b.used} // all effort counts, since Redis does not know it
					compare(t, s, agent(int(seed)), spent, all, b)
					continue
				}
				if r.IntN(4) == 0 {
					b.addRefill(rules, now)
					k, err := s.readSpent(t.Context(), agent(int(seed)))
					if err != nil || k.mean != mean-1 || !same(k.used, b.used) {
						t.Fatalf("step %d of %d: read %+v, %v; want %+v", step, seed, k, err, b.used)
					}
				}
				b.chargeSpent(rules, now, spent)
				compare(t, s, agent(int(seed)), spent, known{mean: mean}, b)
			}
		}
	})
}

func compare(t *testing.T, s *shared, of erc8004.Agent, spent [kindCount]float64, all known, want bucket) {
	t.Helper()
	k, err := s.addSpent(t.Context(), of, spent, all)
	if err != nil || k.mean != all.mean || !same(k.used, want.used) {
		t.Fatalf("Redis: %+v, %v; want %+v", k, err, want.used)
	}
}

// same allows for rounding, because a read does not store the refilled parts.
func same(a, b [kindCount]float64) bool {
	for i := range a {
		if math.Abs(a[i]-b[i]) > 0.01 {
			return false
		}
	}
	return true
}

// FuzzBucket: a bucket is never fuller than its size, refills by at most the passed time, and loses no charge.
func FuzzBucket(f *testing.F) {
	f.Add([]byte{0, 10, 200, 3, 7, 255, 1, 1, 1}, uint16(60))
	f.Add([]byte{255, 255, 255, 0, 0, 0, 128}, uint16(1))
	f.Fuzz(func(t *testing.T, steps []byte, size uint16) {
		if size == 0 {
			return
		}
		r := newRules(float64(size) * 1e6)
		var b bucket
		now, want := int64(0), 0.0
		for i, x := range steps {
			if i%2 == 0 {
				passed := (int64(x) - 16) * 250_000 // also backwards
				now += passed
				want = max(0, want-float64(max(passed, 0))*r.refill)
				b.addRefill(r, now)
			} else {
				var spent [kindCount]float64
				spent[i%int(kindCount)] = float64(x) * 100_000
				want += spent[i%int(kindCount)]
				b.chargeSpent(r, now, spent)
			}
			for _, p := range b.used {
				if p < 0 || math.IsNaN(p) {
					t.Fatalf("step %d: %v", i, b.used)
				}
			}
			if math.Abs(b.sumUsed()-want) > 1 {
				t.Fatalf("step %d: %g µs are used, want %g", i, b.sumUsed(), want)
			}
		}
	})
}

// TestForeignCounts: invalid values that another program wrote to Redis neither stop the counting nor make an agent
// wait for years.
func TestForeignCounts(t *testing.T) {
	t.Parallel()
	rdb := heraldtest.RedisClient(t, heraldtest.RealRedis(t))
	w := newWorld(t, rdb)
	b := w.worker()
	const version = "0123456789abcdef"
	for i, text := range []string{"", "x", version, version + "x", version + `{"Mean":1,"Used":[-3,4,5,6,7],"At":1}`,
		version + `{"Used":[9e300]}`, version + `{"Used":[3600000001]}`, version + `{"Mean":-1}`} {
		heraldtest.Must(t, rdb.Set(context.Background(), agentKey(agent(i)), text, 0).Err())
		w.begins(b, agent(i)).End()
		w.left(b, agent(i), 60)
		w.calls(b, agent(i), 1, 2e9)
		w.left(b, agent(i), 58)
		if b.isAway() {
			t.Fatalf("%q: Redis is left alone", text)
		}
		other := w.worker()
		w.left(other, agent(i), 58)
	}
}
