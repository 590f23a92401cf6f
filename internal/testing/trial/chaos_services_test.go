//go:build chaos

package trial

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// These rows are about outages of Redis and Postgres. No worker dies in them, so every answer is known to a process.

// outage is one of these outages.
type outage struct {
	name     string
	prepare  func(r *row) // before the workers start; may be nil
	fault    func(s *Site) (begin, end step)
	away     time.Duration // between begin and end
	meantime bool          // Postgres is available, so events are enqueued during the outage
	recovery time.Duration // limit until everything has ended
}

// step begins or ends an outage.
type step func(context.Context) error

// run starts three workers, begins the outage while calls are in flight, and waits until every delivery has ended.
func (o outage) run(t *testing.T) {
	r := newRow(t, o.name, 60)
	if o.prepare != nil {
		o.prepare(r)
	}
	if o.meantime {
		r.grownUp() // if Postgres is restarted, it is young afterwards in any case
	}
	r.enqueue(3000, r.everyone()...)
	r.hire(3, 14)
	r.underWay(500, 20)
	inFlight, before := r.agents.InFlight(), r.agents.Count()
	begin, end := o.fault(r.Site)
	r.must(begin(r.ctx))
	began := time.Now()
	if o.meantime {
		r.enqueue(100, r.everyone()...)
	}
	if left := o.away - time.Since(began); left > 0 {
		r.pass(left)
	}
	called := r.agents.Count() - before
	back := time.Now()
	r.must(end(r.ctx))
	away := time.Since(began)
	v := r.settle(o.recovery)
	var last time.Time
	for _, d := range v.rows {
		if d.FinishedAt.After(last) {
			last = d.FinishedAt
		}
	}
	r.figures.Add("away", away).Add("in_flight_when_lost", inFlight).Add("calls_meanwhile", called).Add("recovered_after", last.Sub(back))
	r.known(v)
	r.figures.Add("overlaps", v.calls.Overlaps())
	r.print()
}

// TestChaosFlush: after FLUSHALL of Redis, deliveries with a recorded outcome are not called again, and dispatched ones
// move again within a minute.
func TestChaosFlush(t *testing.T) {
	const patience = time.Minute
	r := newRow(t, "Redis FLUSHALL", 60)
	r.grownUp()
	r.enqueue(3000, r.everyone()...)
	r.hire(3, 14)
	r.underWay(500, 20)
	flushed := time.Now()
	r.must(r.Redis.Client().FlushAll(r.ctx).Err())
	stranded := r.listDispatched()
	v := r.settle(2 * time.Minute)
	calls := v.calls.ByDelivery()
	var slowest time.Duration
	late := 0
	for _, id := range stranded {
		moved := v.rows[id].FinishedAt
		if i := slices.IndexFunc(calls[id], func(c Call) bool { return c.Begun.After(flushed) }); i >= 0 {
			moved = calls[id][i].Begun
		}
		slowest = max(slowest, moved.Sub(flushed))
		if moved.IsZero() || moved.Sub(flushed) > patience {
			late++
		}
	}
	extra := 0
	for id, d := range v.rows {
		for _, c := range calls[id] {
			if !d.FinishedAt.IsZero() && c.Begun.After(d.FinishedAt) {
				extra++
			}
		}
	}
	r.figures.Add("tasks_lost", len(stranded)).Add("extra_calls_for_recorded", extra).Add("moving_again_after", slowest)
	r.known(v)
	r.print()
	if len(stranded) == 0 {
		t.Error("nothing was dispatched when Redis was flushed")
	}
	if late > 0 {
		t.Errorf("%d of %d deliveries whose task was lost did not move within %s", late, len(stranded), patience)
	}
	if extra > 0 {
		t.Errorf("%d calls were made for deliveries that were recorded", extra)
	}
}

// listDispatched returns the deliveries whose task is or was in Redis and that no worker has claimed.
func (r *row) listDispatched() []uuid.UUID {
	r.Helper()
	ids, err := Query(r.ctx, r.Site, pgx.RowTo[uuid.UUID],
		`SELECT id FROM herald.deliveries WHERE status IN ('queued', 'waiting') AND handed_at IS NOT NULL`)
	r.must(err)
	return ids
}

// TestChaosRedisFrozen freezes Redis for a minute during calls.
func TestChaosRedisFrozen(t *testing.T) {
	outage{name: "Redis SIGSTOP 60 s", away: time.Minute, meantime: true, recovery: 90 * time.Second,
		fault: func(s *Site) (begin, end step) { return s.Redis.Freeze, s.Redis.Thaw },
	}.run(t)
}

// TestChaosRedisEmpty kills Redis and starts it again without its data.
func TestChaosRedisEmpty(t *testing.T) {
	outage{name: "Redis killed, back empty", away: 5 * time.Second, meantime: true, recovery: 90 * time.Second,
		fault: func(s *Site) (begin, end step) { return s.Redis.Kill, s.Redis.StartEmpty },
	}.run(t)
}

// TestChaosRedisAOF kills Redis and starts it again with its append-only file. The file lacks the last second, so a task
// may be active in it although no worker runs it. The reconciler replaces such a task after five minutes.
func TestChaosRedisAOF(t *testing.T) {
	outage{name: "Redis killed, back from AOF", away: 5 * time.Second, meantime: true, recovery: 6 * time.Minute,
		fault: func(s *Site) (begin, end step) { return s.Redis.Kill, s.Redis.Start },
	}.run(t)
}

// TestChaosPostgresStopped stops Postgres for half a minute during calls.
func TestChaosPostgresStopped(t *testing.T) {
	outage{name: "Postgres stopped 30 s", away: 30 * time.Second, recovery: 2 * time.Minute,
		fault: func(s *Site) (begin, end step) { return s.Postgres.Stop, s.Postgres.Start },
	}.run(t)
}

// TestChaosBothRestarted restarts both.
func TestChaosBothRestarted(t *testing.T) {
	outage{name: "Postgres and Redis restarted", away: 3 * time.Second, recovery: 3 * time.Minute,
		fault: func(s *Site) (begin, end step) {
			return func(ctx context.Context) error { return errors.Join(s.Redis.Stop(ctx), s.Postgres.Stop(ctx)) },
				func(ctx context.Context) error { return errors.Join(s.Postgres.Start(ctx), s.Redis.Start(ctx)) }
		},
	}.run(t)
}

// TestChaosKnownResults: Postgres is stopped during calls, and all workers are killed before it returns. Their outcomes
// are spooled in Redis (docs/design/delivery.md), so no delivery with a spooled outcome is called again.
func TestChaosKnownResults(t *testing.T) {
	r := newRow(t, "Postgres stopped and workers killed", 60)
	r.enqueue(1000, r.everyone()...)
	r.hire(3, 14)
	r.underWay(300, 20)
	inFlight := r.agents.InFlight()
	r.must(r.Postgres.Stop(r.ctx))
	r.must(Until(r.within(20*time.Second), pollSlow, "the calls to end", func() (bool, error) { return r.agents.InFlight() == 0, nil }))
	// Every answer has arrived by now. Outcomes that could not be recorded are spooled within moments.
	r.pass(5 * time.Second)
	kept := map[uuid.UUID]bool{}
	keys := r.Redis.Client().Scan(r.ctx, 0, keptPrefix+"*", 1000).Iterator()
	for keys.Next(r.ctx) {
		id, err := uuid.Parse(strings.TrimPrefix(keys.Val(), keptPrefix))
		r.must(err)
		kept[id] = true
	}
	r.must(keys.Err())
	killed := time.Now()
	for _, w := range r.workers {
		r.must(w.Kill())
	}
	r.must(r.Postgres.Start(r.ctx))
	for _, w := range r.workers {
		r.must(w.Start())
	}
	r.allReady()
	v := r.settle(2 * time.Minute)
	before := map[uuid.UUID]bool{} // deliveries called before the kill; the spooled outcome of any other one is that it was postponed
	for _, c := range v.calls {
		before[c.Delivery] = before[c.Delivery] || !c.Begun.After(killed)
	}
	again := 0
	for _, c := range v.calls {
		if kept[c.Delivery] && before[c.Delivery] && c.Begun.After(killed) {
			again++
		}
	}
	r.figures.Add("in_flight_when_lost", inFlight).Add("kept_in_redis", len(kept)).Add("kept_called_again", again)
	r.known(v)
	r.print()
	if len(kept) == 0 {
		t.Error("no outcome was kept in Redis: the row tried nothing")
	}
	if again > 0 {
		t.Errorf("%d calls were made although Redis had their outcome", again)
	}
}

// keptPrefix is the prefix of the Redis keys of spooled outcomes (docs/design/delivery.md).
const keptPrefix = "herald:result:"
