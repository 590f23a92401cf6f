package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/coalescer"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	stormAgents  = 3
	stormGrouped = 100 // records in groups, at least: a slow machine storms for longer
)

// TestStorm runs all writers concurrently on the deliveries of three agents: intakes, workers in groups and alone, the
// reconciler, operators. The only error that a caller may get is a lost claim, so nothing may deadlock. Never more than
// eight deliveries of an agent are dispatched. Each delivery ends once, and once more for each replay, and the agents'
// totals count each end. HERALD_STORM sets the duration (default 0.5s).
func TestStorm(t *testing.T) {
	t.Parallel()
	lasts := time.Second / 2
	if text := os.Getenv("HERALD_STORM"); text != "" {
		var err error
		lasts, err = time.ParseDuration(text)
		heraldtest.Must(t, err)
	}
	s := newStore(t)
	s.records.Min, s.claims.Min = 1, 1 // rare outcomes and second claims are still made alone
	s.records.Timeout = time.Minute    // on a slow machine, no group may fail
	exec(t, s, `CREATE TABLE ends (delivery uuid, agent numeric, status text)`)
	exec(t, s, `CREATE FUNCTION note_end() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO ends VALUES (NEW.id, NEW.agent_id, NEW.status); RETURN NULL; END $$`)
	exec(t, s, `CREATE TRIGGER note_end AFTER UPDATE ON herald.history FOR EACH ROW
		WHEN (NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL) EXECUTE FUNCTION note_end()`)

	storm := &storm{T: t, s: s, tasks: make(chan ledger.Task, 1<<16)}
	var weather, workers sync.WaitGroup
	calm := time.Now().Add(lasts)
	for _, act := range []func(*rand.Rand){storm.accept, storm.accept, storm.cancel, storm.replay, storm.changeAgent,
		storm.observe, storm.reconcile, storm.reconcile, storm.lookForNinth} {
		weather.Go(func() {
			for random := newRandom(); !t.Failed() && (time.Now().Before(calm) || storm.grouped() < stormGrouped); {
				act(random)
			}
		})
	}
	drained, end := context.WithCancel(t.Context())
	for range 12 {
		workers.Go(func() { storm.work(drained) })
	}
	weather.Wait()

	storm.over.Store(true) // the remaining deliveries are delivered
	for !t.Failed() && storm.reconcileRest() > 0 {
	}
	end()
	workers.Wait()
	stats := storm.recordStats()
	t.Logf("%d accepted, %d recorded, %d of them in %d groups (%d failed), %d fenced, %d replayed, %d cancelled", storm.accepted.Load(),
		storm.recorded.Load(), stats.Grouped, stats.Groups, stats.Failed, storm.lost.Load(), storm.replayed.Load(), storm.cancelled.Load())
	storm.checkEnds(stats)
}

type storm struct {
	*testing.T
	s     *Store
	tasks chan ledger.Task

	accepted, recorded, lost, replayed, cancelled atomic.Int64
	over                                          atomic.Bool
	once                                          sync.Map // tasks that were dispatched
}

func (m *storm) recordStats() coalescer.Stats {
	return m.s.records.Stats()
}

func (m *storm) grouped() int { return m.recordStats().Grouped }

func newRandom() *rand.Rand { return rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) }

// must fails the test if err is not nil.
func (m *storm) must(what string, err error) {
	if err != nil {
		m.Errorf("%s: %v", what, err)
	}
}

// give accepts tasks as Redis would. Each dispatch of a delivery may be given once.
func (m *storm) give(tasks ...ledger.Task) {
	for _, t := range toRun(tasks) {
		if _, twice := m.once.LoadOrStore(fmt.Sprintf("%s:%d", t.ID, t.N), true); twice {
			m.Errorf("task %d of %s was dispatched twice", t.N, t.ID)
		}
		select {
		case m.tasks <- t:
		default: // lost, as Redis may lose it: the reconciler replaces it
		}
	}
}

func (m *storm) accept(random *rand.Rand) {
	var in []ledger.Intake
	for range 1 + random.IntN(8) {
		in = append(in, ledger.Intake{Job: feedback(1+random.IntN(stormAgents), 1+random.IntN(3000))})
	}
	out, tasks, err := m.s.Accept(m.Context(), in)
	m.must("accept", err)
	m.give(tasks...)
	for _, a := range out {
		if a.Verdict == ledger.Accepted {
			m.accepted.Add(1)
		}
	}
}

// work claims and records tasks until all deliveries have ended.
func (m *storm) work(until context.Context) {
	random := newRandom()
	for {
		var task ledger.Task
		select {
		case task = <-m.tasks:
		case <-until.Done():
			return
		}
		c, err := m.s.Claim(m.Context(), task.ID, task.N, lease)
		if early := new(ledger.EarlyError); errors.As(err, &early) {
			continue // asynq would retry it; here the reconciler replaces it
		}
		m.must("claim", err)
		if c == nil {
			continue
		}
		if random.IntN(10) == 0 {
			if err := m.s.Extend(m.Context(), c, lease); !errors.Is(err, ledger.ErrFenced) {
				m.must("extend", err)
			}
		}
		o := delivered
		if !m.over.Load() {
			o = stormOutcome(random)
		}
		for range 1 + random.IntN(10)/9 { // sometimes twice, as if the answer had been lost
			rec, err := m.s.Record(m.Context(), c, o)
			if errors.Is(err, ledger.ErrFenced) {
				m.lost.Add(1)
				break
			}
			m.must("record", err)
			m.recorded.Add(1)
			m.give(rec.Next...)
			if rec.Task != nil {
				m.once.Delete(fmt.Sprintf("%s:%d", rec.Task.ID, rec.Task.N)) // the same task again for the same claim
				m.give(*rec.Task)
			}
		}
	}
}

func stormOutcome(random *rand.Rand) ledger.Outcome {
	switch random.IntN(16) {
	case 0:
		return ledger.Outcome{Status: outcome.Held, Reason: outcome.AuthRequired, Free: true, Stage: "check"}
	case 1:
		return ledger.Outcome{Status: outcome.Held, Reason: outcome.AgentDisabled, Free: true, Stage: "check"}
	case 2:
		return ledger.Outcome{Status: outcome.Waiting, Reason: outcome.Throttled, Task: true, Free: true, SkipDispatch: true, Stage: "call"}
	case 3:
		return ledger.Outcome{Status: outcome.Waiting, Reason: outcome.ConnectFailed, Stage: "call", Task: true, Moved: true, AgentError: "away"}
	case 4:
		return ledger.Outcome{Status: outcome.Waiting, Reason: outcome.ConnectFailed, Stage: "call"}
	case 5:
		return delivered
	}
	o := randomPlainOutcome(random)
	o.EndpointOfJob = false // such an outcome counts for no agent, and checkEnds compares ends with the agents' counts
	return o
}

// some returns the ids of a few deliveries in any state.
func (m *storm) some(random *rand.Rand) (ids []uuid.UUID) {
	rows, _ := m.s.Conns.Query(m.Context(), `SELECT id FROM herald.deliveries WHERE seq > $1 ORDER BY seq LIMIT $2`,
		random.Int64N(max(m.accepted.Load(), 1)), 1+random.IntN(5))
	for rows.Next() {
		var id uuid.UUID
		m.must("read ids", rows.Scan(&id))
		ids = append(ids, id)
	}
	m.must("read ids", rows.Err())
	random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids
}

func (m *storm) cancel(random *rand.Rand) {
	n, _, _, err := m.s.Cancel(m.Context(), m.some(random), random.IntN(2) == 0)
	m.must("cancel", err)
	m.cancelled.Add(int64(n))
}

func (m *storm) replay(random *rand.Rand) {
	n, _, tasks, err := m.s.Replay(m.Context(), m.some(random), random.IntN(2) == 0)
	m.must("replay", err)
	m.replayed.Add(int64(n))
	m.give(tasks...)
}

func (m *storm) changeAgent(random *rand.Rand) {
	a := agentNamed(fmt.Sprint(1 + random.IntN(stormAgents)))
	m.enable(a, random.IntN(3) > 0)
	_, tasks, err := m.s.ReleaseHeld(m.Context(), a, outcome.AuthRequired)
	m.must("release", err)
	m.give(tasks...)
}

// enable enables or disables an agent, as records.Store.EnableAgent does.
func (m *storm) enable(a erc8004.Agent, enabled bool) {
	reasons := []outcome.Reason{outcome.AgentDisabled}
	if !enabled {
		reasons = nil
	}
	_, tasks, err := m.s.ReleaseAfter(m.Context(), a, reasons, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE herald.agents SET enabled = $2, updated_at = now(),
			state = CASE WHEN NOT $2 THEN 'disabled' WHEN state = 'disabled' THEN 'pending' ELSE state END WHERE agent_id = $1`, a.ID, enabled)
		return err
	})
	m.must("enable", err)
	m.give(tasks...)
}

// observe changes an agent's row without a lock of the ledger, as an operator's commands do.
func (m *storm) observe(random *rand.Rand) {
	_, err := m.s.Conns.Exec(m.Context(), `UPDATE herald.agents SET endpoint = 'https://a.example', protocol = '2025-06-18',
		policy = '{"onUnknown": "resend"}', updated_at = now() WHERE agent_id = $1`, 1+random.IntN(stormAgents))
	m.must("observe", err)
}

// reconcile does the leader's work, and lets a few leases expire.
func (m *storm) reconcile(random *rand.Rand) {
	ctx := m.Context()
	_, err := m.s.Conns.Exec(ctx, `UPDATE herald.work SET lease_until = now() - interval '1 s'
		WHERE id = (SELECT id FROM herald.work WHERE place = 'out' AND status = 'running' AND seq % 7 = $1 LIMIT 1 FOR UPDATE SKIP LOCKED)`,
		random.IntN(7))
	m.must("let a lease run out", err)
	_, _, err = m.s.ExpireLeases(ctx, 100, 11)
	m.must("expire leases", err)
	m.reconcileOnce(time.Second)
	if random.IntN(20) == 0 {
		lost, err := m.s.LostBefore(ctx, time.Now(), 100)
		m.must("dispatch what Redis lost", err)
		m.give(lost...)
	}
	_, err = m.s.Expire(ctx, time.Hour, 100)
	m.must("expire", err)
	_, err = m.s.Release(ctx, []uint64{8453}, true, 100)
	m.must("release settings", err)
}

func (m *storm) reconcileOnce(late time.Duration) {
	ctx := m.Context()
	tasks, _, err := m.s.Due(ctx, 100)
	m.must("due", err)
	m.give(tasks...)
	tasks, err = m.s.Backlog(ctx, 100)
	m.must("backlog", err)
	m.give(tasks...)
	overdue, err := m.s.Overdue(ctx, late, uuid.Nil, 100)
	m.must("overdue", err)
	for _, t := range overdue {
		again, moved, err := m.s.Redispatch(ctx, t)
		m.must("dispatch again", err)
		if moved {
			m.give(again)
		}
	}
}

// reconcileRest continues with the deliveries that have not ended, and returns their number.
func (m *storm) reconcileRest() (left int) {
	for agent := range stormAgents {
		m.enable(agentNamed(fmt.Sprint(agent+1)), true)
		_, tasks, err := m.s.ReleaseHeld(m.Context(), agentNamed(fmt.Sprint(agent+1)), outcome.AuthRequired)
		m.must("release", err)
		m.give(tasks...)
	}
	exec(m, m.s, `UPDATE herald.work SET next_attempt_at = now() - interval '1 second' WHERE status = 'waiting'`)
	_, _, err := m.s.ExpireLeases(m.Context(), 100, 11)
	m.must("expire leases", err)
	m.reconcileOnce(100 * time.Millisecond)
	return value[int](m, m.s, `SELECT count(*)::int FROM herald.deliveries WHERE finished_at IS NULL`)
}

func (m *storm) lookForNinth(*rand.Rand) {
	if n := countDispatched(m, m.s); n > ledger.MaxDispatchedPerAgent {
		m.Errorf("%d deliveries of an agent are dispatched", n)
	}
}

func (m *storm) checkEnds(stats coalescer.Stats) {
	if stats.Failed > 0 || stats.Grouped < stormGrouped {
		m.Errorf("%d of the records went in groups, of which %d failed", stats.Grouped, stats.Failed)
	}
	for what, sql := range map[string]string{
		"ended in no final state, or otherwise than it says": `SELECT count(*)::int FROM herald.deliveries d WHERE finished_at IS NULL
			OR NOT EXISTS (SELECT FROM ends e WHERE e.delivery = d.id AND e.status = d.status)`,
		"ended more than once without a replay": `SELECT count(*)::int FROM (SELECT delivery FROM ends JOIN herald.deliveries ON id = delivery
			GROUP BY delivery, replays HAVING count(*) > replays + 1) x`,
		"counts of an agent are not what ended": `SELECT count(*)::int FROM
			(SELECT agent, status, count(*) AS n FROM ends GROUP BY 1, 2) e
			FULL JOIN (SELECT agent_id AS agent, key AS status, value::bigint AS n FROM herald.agents, jsonb_each_text(totals)) g USING (agent, status)
			WHERE e.n IS DISTINCT FROM g.n`,
		"attempts of the last claim are not what the delivery is": `SELECT count(*)::int FROM herald.deliveries d JOIN herald.attempts a
			ON a.delivery_id = d.id AND a.number = d.attempts WHERE a.outcome = 'delivered' AND d.status NOT IN ('delivered', 'cancelled')`,
	} {
		if n := value[int](m, m.s, sql); n != 0 {
			m.Errorf("%d %s", n, what)
		}
	}
}
