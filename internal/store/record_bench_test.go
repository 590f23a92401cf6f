package store

import (
	"fmt"
	"sync"
	"testing"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/secret"
)

// BenchmarkRecord is records alone and in groups, of 64 agents, by as many callers at a time. What it takes to claim is
// not in it.
func BenchmarkRecord(b *testing.B) {
	for _, callers := range []int{16, 64} {
		s := openBenchStore(b, callers)
		for turn := range 3 {
			for _, way := range []struct {
				name   string
				record func(*testing.B, recordRequest) (Recorded, error)
			}{
				{"alone", func(b *testing.B, r recordRequest) (Recorded, error) { return s.recordAlone(b.Context(), r) }},
				{"grouped", func(b *testing.B, r recordRequest) (Recorded, error) {
					return s.Record(b.Context(), r.claim, r.outcome)
				}},
			} {
				b.Run(fmt.Sprintf("%d callers/%s/turn %d", callers, way.name, turn), func(b *testing.B) {
					exec(b, s, `TRUNCATE herald.deliveries, herald.attempts, herald.agents CASCADE`)
					claims := make(chan *Claim, b.N)
					for len(claims) < b.N {
						claimSome(b, s, claims, min(b.N-len(claims), 64*MaxDispatchedPerAgent))
					}
					close(claims)
					b.ResetTimer()
					var wg sync.WaitGroup
					for range callers {
						wg.Go(func() {
							for c := range claims {
								o := delivered
								o.Arguments, o.Response, o.Result = benchSide, benchSide, benchSide
								if _, err := way.record(b, recordRequest{c, o}); err != nil {
									b.Error(err)
								}
							}
						})
					}
					wg.Wait()
				})
			}
		}
	}
}

var benchSide = []byte(`{"deliveryId": "00000000-0000-0000-0000-000000000001", "feedback": {"value": "99.77", "tag1": "uptime"},
	"note": "some text that is as long as what agents say mostly is"}`)

func openBenchStore(b *testing.B, callers int) *Store {
	s, err := Open(Config{URL: secret.New(heraldtest.Postgres(b, Migrate)), MaxConns: int32(callers) + 2})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	return s
}

var benchEvent int

// claimSome accepts and claims n deliveries of 64 agents.
func claimSome(b *testing.B, s *Store, claims chan<- *Claim, n int) {
	var in []Intake
	for i := range n {
		benchEvent++
		in = append(in, Intake{Job: feedback(i%64, benchEvent)})
	}
	for len(in) > 0 {
		part := in[:min(len(in), MaxAccept)]
		in = in[len(part):]
		_, _ = accept(b, s, part...)
	}
	exec(b, s, `UPDATE herald.deliveries SET status = 'queued', dispatch = 1, handed_at = now() WHERE status = 'queued'`)
	rows, _ := s.pool.Query(b.Context(), `SELECT id FROM herald.deliveries WHERE status = 'queued'`)
	var ids []Task
	for rows.Next() {
		t := Task{N: 1}
		if err := rows.Scan(&t.ID); err != nil {
			b.Fatal(err)
		}
		ids = append(ids, t)
	}
	var wg sync.WaitGroup
	next := make(chan Task, len(ids))
	for _, t := range ids {
		next <- t
	}
	close(next)
	for range 8 {
		wg.Go(func() {
			for t := range next {
				c, err := s.Claim(b.Context(), t.ID, 1, lease)
				if err != nil || c == nil {
					b.Error(c, err)
					continue
				}
				claims <- c
			}
		})
	}
	wg.Wait()
}
