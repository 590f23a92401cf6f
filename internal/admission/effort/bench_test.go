package effort

import (
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// BenchmarkAttempt measures the cost of an attempt at a quick agent.
func BenchmarkAttempt(b *testing.B) {
	w := newWorld(b, nil)
	budgets := w.worker(func(c *Config) { c.Size = time.Hour })
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for n := 0; p.Next(); n++ {
			h, err := budgets.Begin(b.Context(), agent(n%100))
			heraldtest.Must(b, err)
			h.Reach()
			h.Spend(Calls, 1, 10*time.Microsecond)
			h.End()
		}
	})
}
