//go:build chaos

package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// These rows are about workers.

// TestChaosKill: three workers, 5,000 deliveries, and agents that take 200 ms. There are 30 times kill -9, one a
// second, each with at least 20 calls in flight. No delivery is lost, and not more calls are repeated than were in
// flight. The number of deliveries with unknown outcome is at most the worker's slots and claims in addition to them.
func TestChaosKill(t *testing.T) {
	const (
		kills    = 30
		inFlight = 20
		slots    = 14 // of one worker
		doubt    = slots + claimedBesideSlots
	)
	r := newRow(t, "kill -9", 250)
	r.enqueue(5000, r.everyone()...)
	r.hire(3, slots)
	r.underWay(100, inFlight)
	running := make([]map[attempted]bool, kills)
	moments := make([]Moment, kills)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for i := range moments {
		<-ticker.C
		r.underWay(0, inFlight+5) // a few may end before the signal arrives
		w := r.workers[i%len(r.workers)]
		moments[i] = r.kill(w)
		running[i] = r.attempts(`SELECT id, attempts FROM herald.deliveries WHERE status = 'running'`)
		r.must(w.Start())
	}
	r.allReady()
	v := r.settle(2 * time.Minute)
	inDoubt, mostInDoubt := r.inDoubt(running)
	total, least := 0, -1
	for _, m := range moments {
		n := len(v.calls.At(m))
		total += n
		if least < 0 || n < least {
			least = n
		}
	}
	r.unexplained(v.calls, moments, 500*time.Millisecond)
	r.figures.Add("in_flight_at_kills", total).Add("least_in_flight", least).
		Add("overlaps", v.calls.Overlaps()).Add("in_doubt", inDoubt).Add("most_in_doubt_at_a_kill", mostInDoubt).Add("bound", doubt)
	r.print()
	if mostInDoubt > doubt {
		t.Errorf("a kill left %d deliveries in doubt, more than %d", mostInDoubt, doubt)
	}
	if least < inFlight {
		t.Errorf("a kill met %d calls under way, want at least %d", least, inFlight)
	}
	if v.tally > total {
		t.Errorf("%d calls were made again, more than the %d that were under way at the kills", v.tally, total)
	}
}

// claimedBesideSlots is how many deliveries a worker may have claimed in addition to those in its slots
// (docs/guarantees.md).
const claimedBesideSlots = 64

// attempted is one attempt at a delivery.
type attempted struct {
	ID     uuid.UUID
	Number int
}

// attempts returns the attempts that a query selects.
func (r *row) attempts(sql string) map[attempted]bool {
	r.Helper()
	all, err := Query(r.ctx, r.Site, pgx.RowToStructByPos[attempted], sql)
	r.must(err)
	found := map[attempted]bool{}
	for _, a := range all {
		found[a] = true
	}
	return found
}

// inDoubt counts the attempts without an outcome, in total and for the worst kill. running contains the attempts in
// flight right after each kill. An attempt that a kill interrupted looks in flight until its lease ends, so it counts
// only for the first kill that has it in running.
func (r *row) inDoubt(running []map[attempted]bool) (all, most int) {
	r.Helper()
	unknown := r.attempts(`SELECT delivery_id, number FROM herald.attempts WHERE outcome IS NULL`)
	for _, met := range running {
		here := 0
		for a := range met {
			if unknown[a] {
				here++
				delete(unknown, a)
			}
		}
		all, most = all+here, max(most, here)
	}
	return all + len(unknown), most
}

// TestChaosRollingTerm: three workers under load get SIGTERM one after the other, twice. Nothing is lost and nothing is
// called twice.
func TestChaosRollingTerm(t *testing.T) {
	r := newRow(t, "rolling SIGTERM", 60)
	r.enqueue(2000, r.everyone()...)
	r.hire(3, 14)
	r.underWay(100, 20)
	var longest time.Duration
	stops := 0
	for range 2 {
		for _, w := range r.workers {
			r.underWay(0, 10)
			began := time.Now()
			if err := w.Terminate(r.within(30 * time.Second)); err != nil {
				t.Error(err)
			}
			longest = max(longest, time.Since(began))
			stops++
			r.must(w.Start())
			r.must(w.Ready(r.within(30 * time.Second)))
		}
	}
	open, err := r.CountOpen(r.ctx)
	r.must(err)
	v := r.settle(time.Minute)
	r.figures.Add("stops", stops).Add("longest_stop", longest).Add("open_after_last", open)
	r.print()
	if v.tally > 0 {
		t.Errorf("%d calls were made twice", v.tally)
	}
	if open == 0 {
		t.Error("the load ended before the last stop")
	}
}

// TestChaosFrozenWorker: one worker is frozen for longer than its lease, and then resumed. Its late failures change
// nothing. Its late successes complete their own attempts and end deliveries that have not ended
// (docs/design/delivery.md).
func TestChaosFrozenWorker(t *testing.T) {
	const each = 8
	r := newRow(t, "worker SIGSTOPped past its lease", 4*each)
	r.grownUp()
	later := func(second Act, first Act) Behaviour { // first call, second call, then healthy
		return func(c Call) Act {
			switch c.Number {
			case 1:
				return first
			case 2:
				return second
			}
			return Act{}
		}
	}
	var (
		answer = Act{Take: 700 * time.Millisecond}
		hang   = Act{How: Hang}
		wait   = Act{How: Refuse, Status: 503, RetryAfter: 30 * time.Second}
		sets   = []struct {
			what          string
			first, second Act
			ids           []uuid.UUID
		}{
			{what: "late success, not final", first: answer, second: wait},
			{what: "late success, final", first: answer},
			{what: "late failure, final", first: hang},
			{what: "late failure, not final", first: hang, second: wait},
		}
	)
	// Agents that never answered get half of the slots, and those of one address half of that.
	frozen, err := r.Worker(WorkerConfig{Name: "frozen", Concurrency: 4 * 4 * each,
		Env: []string{"DATABASE_URL=" + r.address + "&application_name=frozen"}}) // for the end of its connections
	r.must(err)
	r.must(frozen.Ready(r.within(time.Minute)))
	all := r.lines(4*each, r.everyone()...)
	for i := range r.agents.Len() {
		s := sets[i/each]
		r.agents.Behave(i, later(s.second, s.first))
	}
	accepted, _, err := r.Enqueue(r.within(time.Minute), strings.NewReader(all))
	r.must(err)
	r.remember(accepted)
	for i := range sets {
		sets[i].ids = accepted[i*each : (i+1)*each]
	}
	r.underWay(4*each, 4*each)

	// The successes are blocked where they are recorded, so that the worker knows them and Postgres does not. The
	// worker's connections are cut while it is frozen. Otherwise Postgres would finish the statements.
	var met Calls
	err = r.SQL(r.ctx, func(ctx context.Context, c *pgx.Conn) error {
		tx, err := c.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		if _, err := tx.Exec(ctx, `SELECT FROM herald.agents WHERE agent_id <= $1 FOR UPDATE`, 2*each); err != nil {
			return err
		}
		answers := fmt.Sprintf(`mcp_calls_total{status="success",tool_name="agent.receiveFeedback"} %d`, 2*each)
		err = Until(r.within(5*time.Second), pollQuick, "the worker to have the answers", func() (bool, error) {
			metrics, err := frozen.Metrics(ctx)
			return strings.Contains(metrics, answers+"\n"), err
		})
		if err != nil {
			return err
		}
		if err := frozen.Freeze(); err != nil {
			return err
		}
		met, _ = r.agents.Calls()
		_, err = c.Exec(ctx, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'frozen'`)
		return err
	})
	r.must(err)
	if n := len(slices.DeleteFunc(slices.Clone(met), func(c Call) bool { return !c.Ended.IsZero() })); n != 2*each || len(met) != 4*each {
		t.Fatalf("when the worker was frozen %d calls had come and %d were under way, want %d and %d: this machine was too busy for the row", len(met), n, 4*each, 2*each)
	}
	r.hire(1, 16)
	r.must(Until(r.within(40*time.Second), pollSlow, "the other worker to take everything up", func() (bool, error) {
		calls, err := r.agents.Calls()
		for _, of := range calls.ByDelivery() {
			if len(of) < 2 || of[1].Ended.IsZero() {
				return false, err
			}
		}
		return true, err
	}))
	r.awaitRows(10*time.Second, "the second calls to be recorded", func(row Row) bool {
		return row.Final() || row.Status == "waiting" || row.Status == "held"
	}, accepted...)
	before := r.texts()
	r.must(frozen.Thaw())

	// The resumed worker records its late outcomes at once. Its log shows when it has.
	told := func() map[string]bool {
		ids := map[string]bool{}
		for l, err := range frozen.Lines() {
			if err == nil && l.Message == "delivery attempted" {
				ids[l.Delivery] = true
			}
		}
		return ids
	}
	r.must(Until(r.within(30*time.Second), pollSlow, "the resumed worker to try to record its outcomes", func() (bool, error) {
		return len(told()) >= 4*each, nil
	}))
	after := r.texts()
	rows, err := r.Rows(r.ctx)
	r.must(err)
	changed, completed, ended := 0, 0, 0
	for k, s := range sets {
		for _, id := range s.ids {
			first, err := r.firstAttempt(id)
			r.must(err)
			switch {
			case k == 0:
				if rows[id].Status == "delivered" {
					ended++
				}
			case before[id] != after[id]:
				changed++
				t.Errorf("%s changed delivery %s: %s", s.what, id, difference(before[id], after[id]))
			}
			if k < 2 && first.Outcome == "delivered" {
				completed++
			}
			if k >= 2 && first.Outcome == "delivered" {
				t.Errorf("%s: attempt 1 of %s is said to have delivered", s.what, id)
			}
		}
	}
	v := r.settle(90 * time.Second)
	r.figures.Add("late_failures", 2*each).Add("late_successes", 2*each).Add("rows_changed", changed).
		Add("attempts_completed", completed).Add("ended_by_late_success", ended)
	third := 0
	calls := v.calls.ByDelivery()
	for _, id := range slices.Concat(sets[0].ids, sets[1].ids, sets[2].ids) {
		third += len(calls[id]) - 2
	}
	r.figures.Add("third_calls", third)
	r.print()
	if completed != 2*each {
		t.Errorf("%d of %d late successes completed their own attempt", completed, 2*each)
	}
	if ended != each {
		t.Errorf("%d of %d deliveries that had not ended were ended by the late success", ended, each)
	}
	heraldtest.Equal(t, "calls were made although the delivery was delivered", third, 0)
}

// difference returns the names of the columns in which two rows differ.
func difference(before, after string) string {
	var a, b map[string]any
	if json.Unmarshal([]byte(before), &a) != nil || json.Unmarshal([]byte(after), &b) != nil {
		return before + " to " + after
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if !reflect.DeepEqual(a[name], b[name]) {
			out = append(out, fmt.Sprintf("%s from %v to %v", name, a[name], b[name]))
		}
	}
	return strings.Join(out, ", ")
}

// texts returns the deliveries' rows as JSON, without their jobs.
func (r *row) texts() map[uuid.UUID]string {
	r.Helper()
	return r.textByID(`SELECT id, (to_jsonb(d) - 'job')::text FROM herald.deliveries d`)
}

func (r *row) firstAttempt(id uuid.UUID) (Attempt, error) {
	all, err := r.Attempts(r.ctx, id)
	if err != nil || len(all) == 0 {
		return Attempt{}, fmt.Errorf("delivery %s has no attempts: %w", id, err)
	}
	return all[0], nil
}
