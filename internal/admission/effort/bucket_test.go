package effort

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

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
	for i, text := range []string{"", "x", version, version + "x", version + `{"Mean":1,"Used":[-3e9,4,5,6,7],"At":NOW}`,
		version + `{"Used":[9e300],"At":NOW}`, version + `{"Used":[3600000001],"At":NOW}`, version + `{"Mean":-1,"At":NOW}`} {
		text = strings.ReplaceAll(text, "NOW", fmt.Sprint(w.Now().UnixMicro())) // so that no part is refilled
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
