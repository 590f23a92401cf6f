package records

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestQuantiles: an interpolated quantile lies in the bucket of the exact one.
func TestQuantiles(t *testing.T) {
	t.Parallel()
	for range 500 {
		var h AgentHour
		took := make([]time.Duration, 1+rand.IntN(50))
		for i := range took {
			took[i] = time.Duration(1 + rand.Int64N(int64(1)<<rand.IntN(38)))
			h.addLatency(ledger.Outcome{Called: true, CallTook: took[i]}.LatencyBucket(), 1)
		}
		slices.Sort(took)
		for _, q := range []float64{0.5, 0.95, 1} {
			exact := took[int(math.Ceil(q*float64(len(took))))-1]
			bucket, _ := slices.BinarySearch(ledger.LatencyBounds[:], exact)
			from, to := 0.0, 60000.0
			if bucket > 0 {
				from = float64(ledger.LatencyBounds[bucket-1].Milliseconds())
			}
			if bucket < len(ledger.LatencyBounds) {
				to = float64(ledger.LatencyBounds[bucket].Milliseconds())
			}
			if got := interpolateQuantile(h.Latency, q); got == nil || *got < from || *got > to {
				t.Fatalf("the quantile %g of %v is %s, and %v was read from %v", q, took, exact, *got, h.Latency)
			}
		}
	}
	if got := interpolateQuantile(nil, 0.5); got != nil {
		t.Error(*got)
	}
	// Hours before the period do not count, and a row with fewer buckets causes no failure.
	now := time.Date(2026, 11, 23, 12, 34, 0, 0, time.UTC)
	got := SummarizeHours([]AgentHour{{Hour: now.Add(-2 * time.Hour).Truncate(time.Hour), Calls: 7, Failed: 1, Failures: map[outcome.Reason]int{"timeout": 1}},
		{Hour: now.Truncate(time.Hour), Calls: 1, Latency: []int{1}}}, now.Add(-time.Hour))
	p50, p95 := 5.0, 9.5
	heraldtest.Equal(t, "sum",
		got, CallSummary{Since: now.Add(-time.Hour).Truncate(time.Hour), Calls: 1, P50Ms: &p50, P95Ms: &p95})
}
