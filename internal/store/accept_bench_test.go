package store

import (
	"testing"

	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// BenchmarkBackfill accepts events of a backfill, 500 of 50 agents at a time. With a filter that skips all of them, it
// has to be at least as fast as without.
func BenchmarkBackfill(b *testing.B) {
	for name, filter := range map[string]string{"unfiltered": "", "filtered": "rule 1 of the default policy skips the event: {}"} {
		b.Run(name, func(b *testing.B) {
			s := newStore(b)
			end := uint64(1 << 40)
			c, err := s.OpenCursor(b.Context(), cursor.Key{ChainID: 8453, Contracts: emitterOf(feedback(1, 1)), Backfill: "1-2"}, 1, &end)
			heraldtest.Must(b, err)
			block, tasks := uint64(0), 0
			for b.Loop() {
				block++
				a := Advance{From: block, To: block, Head: block, Anchors: []cursor.Anchor{{Number: block}}, Settled: block}
				for i := range ledger.MaxAccept {
					j := inBlock(feedback(1+i%50, int(block)*10+i/50), block, 'a')
					a.Intakes = append(a.Intakes, ledger.Intake{Job: j, Bulk: true, Filtered: filter})
				}
				done, err := s.AdvanceCursors(b.Context(), []*cursor.Cursor{&c}, a)
				heraldtest.Must(b, err)
				tasks += len(done.Tasks)
			}
			b.ReportMetric(float64(int(block)*ledger.MaxAccept)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(tasks), "tasks")
		})
	}
}
