//go:build chaos

package trial

import (
	"slices"
	"testing"
	"time"

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
		// record is the longest time in which a worker records an answer. A worker that is killed within it loses the
		// answer.
		record = 500 * time.Millisecond
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
		moments[i].From = time.Now()
		r.must(w.Kill())
		moments[i].To = time.Now()
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
	unexplained := 0
	for _, p := range v.calls.Repeats() {
		if !slices.ContainsFunc(moments, func(m Moment) bool { return m.Touches(p.Earlier, record) }) {
			unexplained++
		}
	}
	r.figures.Add("kills", kills).Add("in_flight_at_kills", total).Add("least_in_flight", least).Add("unexplained_duplicates", unexplained).
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
	if unexplained > 0 {
		t.Errorf("%d calls were made again although no kill met the call before", unexplained)
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
