package delivery

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/prometheus/client_golang/prometheus"
)

// fill inserts n deliveries, eight for each agent, with these values of some columns.
func (w *world) fill(n int, columns, values string) {
	w.t.Helper()
	ctx, conn := heraldtest.Within(w.t, 2*time.Minute), w.connect()
	must(conn.Exec(ctx, `WITH agent AS (
		INSERT INTO herald.agents (chain_id, identity_registry, agent_id) SELECT 1, '0xaa', i FROM generate_series(0, ($1 - 1) / 8) i)
		INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, job,
			`+columns+`)
		SELECT md5(i::text)::uuid, i::text, 'NewFeedback', 1, '0xaa', i / 8, i::text, i, '{}', `+values+`
		  FROM generate_series(0, $1 - 1) i`, n))
	must(conn.Exec(ctx, `VACUUM ANALYZE herald.history, herald.work`))
}

// countRows counts the rows of a table and a condition.
func (w *world) countRows(of string) (n int) {
	w.t.Helper()
	heraldtest.Must(w.t, w.connect().QueryRow(heraldtest.Within(w.t, 20*time.Second), `SELECT count(*) FROM `+of).Scan(&n))
	return n
}

func (w *world) count(f records.Filter) (n int64) {
	w.t.Helper()
	for _, of := range must(records.New(w.store).Count(heraldtest.Within(w.t, 20*time.Second), f)) {
		n += of
	}
	return n
}

// TestEveryWorkerDispatchesDue: without a leader, two workers dispatch all due deliveries, each once, although these are
// more than one statement dispatches. They do not wait for an agent that another transaction has locked: a later round
// dispatches its deliveries. No leader, no repair.
func TestEveryWorkerDispatchesDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill(400, `status, reason, attempts, next_attempt_at`, `'waiting', 'server_error', 6, now() - interval '1 minute'`)
	lost := w.dispatchTo(newAgent(t).URL)
	w.flush()
	ctx := heraldtest.Within(t, time.Minute)
	tx := must(w.connect().Begin(ctx))
	must(tx.Exec(ctx, `SELECT FROM herald.agents WHERE agent_id = 0 AND chain_id = 1 FOR UPDATE`))

	still := heraldtest.NewClock(time.Now())
	round := func() error {
		worker := w.newReconciler(func(c *maintenance.ReconcilerConfig) { c.Ledger, c.Now, c.Batch = openStore(t, w.dbURL), still.Now, 50 })
		return worker.Round(ctx)
	}
	_, err := w.store.Lead(ctx, func(ctx context.Context) error {
		second := make(chan error)
		go func() { second <- round() }()
		if err := errors.Join(round(), <-second); err != nil {
			return err
		}
		heraldtest.Equal(t, "waiting deliveries", w.count(records.Filter{Statuses: []outcome.Status{outcome.Waiting}}), 8)
		must(tx.Exec(ctx, `ROLLBACK`))
		return round()
	})
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "deliveries that were dispatched once", w.countRows(`herald.work WHERE status = 'queued' AND dispatch = 1`), 401)
	if err := round(); err != nil || w.row(lost).Dispatch != 2 {
		t.Errorf("the leader did not replace a lost task: %v", err)
	}
}

// TestRetentionWaitsForNoLock: a round ends expired deliveries and deletes the data of old ones, more than one statement
// does, while another transaction has locked agents and rows. It leaves only the locked ones for the next round.
func TestRetentionWaitsForNoLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fill(800, `status, reason, created_at, accepted_at`, `'held', 'auth_required', now() - interval '1 year', now() - interval '1 year'`)
	w.exec(`UPDATE herald.deliveries SET status = 'delivered', reason = NULL, finished_at = accepted_at WHERE agent_id >= 50`)
	still := heraldtest.NewClock(time.Now()) // a busy machine would reach the round's time limit
	reg := prometheus.NewRegistry()
	retention := w.newRetention(func(c *maintenance.RetentionConfig) {
		c.KeepFinal, c.Now, c.Batch, c.CountDead = 30*24*time.Hour, still.Now, 50, must(NewMetrics(reg)).CountDead
	})

	ctx := heraldtest.Within(t, time.Minute)
	tx := must(w.connect().Begin(ctx))
	must(tx.Exec(ctx, `SELECT FROM herald.agents WHERE agent_id = 0 FOR UPDATE`))
	must(tx.Exec(ctx, `SELECT FROM herald.work WHERE agent_id IN (1, 50) FOR UPDATE`))
	must(tx.Exec(ctx, `SELECT FROM herald.history WHERE agent_id IN (1, 50) FOR UPDATE`))
	for _, left := range []int{16 + 8, 0} {
		heraldtest.Must(t, retention.Apply(heraldtest.Within(t, 20*time.Second)))
		if dead, jobs := w.count(records.Filter{Statuses: []outcome.Status{outcome.Dead}}),
			w.countRows(`herald.deliveries WHERE job IS NOT NULL`); int(dead) != 400-left*2/3 || jobs != 400+left/3 {
			t.Errorf("%d of 400 expired deliveries are dead, %d of 800 deliveries keep their job; %d are locked", dead, jobs, left)
		}
		heraldtest.Equal(t, "counted deaths", counted(t, reg, "herald_deliveries_total")["other expired dead"], float64(400-left*2/3))
		if left > 0 {
			must(tx.Exec(ctx, `ROLLBACK`))
		}
	}
}
