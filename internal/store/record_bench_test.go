package store

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
)

// BenchmarkDeliveries measures claim and record of deliveries of 64 agents by many concurrent callers, alone and in
// groups.
func BenchmarkDeliveries(b *testing.B) {
	for _, callers := range []int{16, 64} {
		s := openBenchStore(b, callers)
		for turn := range 3 {
			for _, grouped := range []bool{false, true} {
				b.Run(fmt.Sprintf("%d callers, grouped=%t, turn %d", callers, grouped, turn), func(b *testing.B) {
					deliverAll(b, s, callers, grouped)
				})
			}
		}
	}
}

func deliverAll(b *testing.B, s *Store, callers int, grouped bool) {
	tasks := make(chan ledger.Task, b.N)
	for _, t := range benchTasks(b, s, b.N) {
		tasks <- t
	}
	close(tasks)
	o := delivered
	o.Arguments, o.Response, o.Result = benchSide, benchSide, benchSide
	b.ResetTimer()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for t := range tasks {
				if err := deliverOne(b.Context(), s, t, o, grouped); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func deliverOne(ctx context.Context, s *Store, t ledger.Task, o ledger.Outcome, grouped bool) error {
	claim, record := s.claimAlone, s.recordAlone
	if grouped {
		claim, record = s.claims.Do, s.records.Do
	}
	c, err := claim(ctx, claimRequest{t.ID, 1, lease})
	if err != nil || c == nil {
		return fmt.Errorf("claim of %s: %v, %w", t.ID, c, err)
	}
	_, err = record(ctx, newRecordRequest(c, o))
	return err
}

var benchSide = []byte(`{"deliveryId": "00000000-0000-0000-0000-000000000001", "feedback": {"value": "99.77", "tag1": "uptime"},
	"note": "some text that is as long as what agents say mostly is"}`)

func openBenchStore(b *testing.B, callers int) *Store {
	s, err := Open(postgres.Config{URL: secret.New(heraldtest.Postgres(b, postgres.Migrate)), MaxConns: int32(callers) + 2})
	heraldtest.Must(b, err)
	b.Cleanup(s.Close)
	return s
}

// benchTasks returns the first tasks of n deliveries in an otherwise empty store. It dispatches more deliveries per
// agent than Accept would.
func benchTasks(b *testing.B, s *Store, n int) []ledger.Task {
	exec(b, s, `TRUNCATE herald.history, herald.work, herald.attempts, herald.agents CASCADE`)
	for from := 0; from < n; from += ledger.MaxAccept {
		var in []ledger.Intake
		for i := from; i < min(from+ledger.MaxAccept, n); i++ {
			in = append(in, ledger.Intake{Job: feedback(i%64, 1+i/64)})
		}
		accept(b, s, in...)
	}
	exec(b, s, `UPDATE herald.deliveries SET dispatch = 1, handed_at = now()`)
	rows, _ := s.Conns.Query(b.Context(), `SELECT id, dispatch, kind, attempts, false FROM herald.deliveries ORDER BY seq`)
	tasks, err := pgx.CollectRows(rows, scanTask)
	heraldtest.Must(b, err)
	return tasks
}
