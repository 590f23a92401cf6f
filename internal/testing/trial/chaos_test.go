//go:build chaos

package trial

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Each row is one test, and `make chaos` runs them one after another. A row prints one line of figures, and fails if
// its condition is broken. After a failure, or with HERALD_TRIAL_KEEP=1, it keeps the logs of its processes and prints
// their folder.
//
// Common figures: deliveries (accepted); lost (missing, not final, or delivered without a call); calls (received by the
// agents); duplicates (calls beyond one per delivery, which are expected if agents refuse the first one); known_again
// (calls for a delivery whose agent had answered before, although the worker with the answer was not killed).

const (
	rowTimeout = 5 * time.Minute
	// think is the time that agents take in rows that need calls in flight.
	think = 200 * time.Millisecond
	// restless is the age of Postgres after which the reconciler takes over stranded deliveries. Before that it assumes
	// that workers are about to record their outcomes (docs/design/delivery.md).
	restless = 61 * time.Second
)

// row is one chaos test.
type row struct {
	*testing.T
	*Site
	ctx     context.Context
	agents  *Agents
	workers []*Worker
	figures *Figures
	began   time.Time

	mu       sync.Mutex
	accepted []uuid.UUID
	serial   int
}

// newRow starts a Herald for the row with that many agents, each of which takes think for a call.
func newRow(t *testing.T, name string, agents int) *row {
	return newRowWith(t, name, func() (*Agents, error) { return StartAgents(agents) })
}

func newRowWith(t *testing.T, name string, start func() (*Agents, error)) *row {
	return newRowOf(t, name, rowTimeout, start)
}

// newRowOf starts a Herald for a row that ends after timeout.
func newRowOf(t *testing.T, name string, timeout time.Duration, start func() (*Agents, error)) *row {
	shared.Programs(t) // may compile them, so this comes before the time limit
	logs, err := os.MkdirTemp("", "herald-chaos-logs-")
	heraldtest.Must(t, err)
	t.Cleanup(func() { // after the site has closed
		if t.Failed() || os.Getenv("HERALD_TRIAL_KEEP") != "" {
			t.Logf("logs of the processes: %s", logs)
			return
		}
		heraldtest.Must(t, os.RemoveAll(logs))
	})
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	r := &row{T: t, ctx: ctx, figures: NewFigures("chaos", name), began: time.Now()}
	r.agents, err = start()
	heraldtest.Must(t, err)
	r.agents.BehaveAll(Taking(think))
	t.Cleanup(r.agents.Close)
	r.Site = shared.Open(ctx, t, Config{Database: fmt.Sprintf("chaos_%d", rand.Uint32()), Logs: logs})
	r.must(r.Site.ListAgents(r.agents))
	return r
}

// must fails the row if err is not nil.
func (r *row) must(err error) {
	r.Helper()
	heraldtest.Must(r, err)
}

// within returns the row's context with a shorter deadline.
func (r *row) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(r.ctx, d, fmt.Errorf("not within %s", d))
	r.Cleanup(cancel)
	return ctx
}

// pass waits, because the duration of a fault is part of the trial.
func (r *row) pass(d time.Duration) {
	r.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.ctx.Done():
		r.Fatal(context.Cause(r.ctx))
	}
}

// hire starts n workers and waits until they are ready.
func (r *row) hire(n, concurrency int, env ...string) {
	r.Helper()
	for i := range n {
		w, err := r.Worker(WorkerConfig{Name: fmt.Sprintf("worker-%d", i+1), Concurrency: concurrency, Env: env})
		r.must(err)
		r.workers = append(r.workers, w)
	}
	r.allReady()
}

func (r *row) allReady() {
	r.Helper()
	ctx := r.within(time.Minute)
	for _, w := range r.workers {
		r.must(w.Ready(ctx))
	}
}

// lines returns n jobs, rotating through the agents.
func (r *row) lines(n int, agents ...int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for i := range n {
		b.WriteString(r.agents.Line(agents[i%len(agents)], r.serial))
		r.serial++
	}
	return b.String()
}

// everyone returns all agents.
func (r *row) everyone() []int { return span(0, r.agents.Len()) }

// span returns the numbers from..to-1.
func span(from, to int) []int {
	out := make([]int, 0, to-from)
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

// enqueue enqueues n jobs, all of which must be accepted.
func (r *row) enqueue(n int, agents ...int) []uuid.UUID {
	r.Helper()
	accepted, _, err := r.Enqueue(r.within(2*time.Minute), strings.NewReader(r.lines(n, agents...)))
	r.must(err)
	if len(accepted) != n {
		r.Fatalf("%d of %d jobs were accepted", len(accepted), n)
	}
	r.remember(accepted)
	return accepted
}

func (r *row) remember(ids []uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accepted = append(r.accepted, ids...)
}

// underWay waits until there were that many calls and that many are in flight.
func (r *row) underWay(calls, inFlight int) {
	r.Helper()
	r.must(Until(r.within(time.Minute), pollQuick, fmt.Sprintf("%d calls, %d of them under way", calls, inFlight), func() (bool, error) {
		return r.agents.Count() >= calls && r.agents.InFlight() >= inFlight, nil
	}))
}

// grownUp waits until Postgres is old enough for the reconciler.
func (r *row) grownUp() {
	r.Helper()
	r.must(Until(r.within(restless+10*time.Second), pollSlow, "Postgres to have been up for a minute", func() (bool, error) {
		age, err := QueryOne(r.ctx, r.Site, pgx.RowTo[float64],
			`SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())`)
		return age > restless.Seconds(), err
	}))
}

// textByID returns the rows of a query for an id and a text.
func (r *row) textByID(sql string) map[uuid.UUID]string {
	r.Helper()
	type pair struct {
		ID   uuid.UUID
		Text string
	}
	all, err := Query(r.ctx, r.Site, pgx.RowToStructByPos[pair], sql)
	r.must(err)
	texts := make(map[uuid.UUID]string, len(all))
	for _, p := range all {
		texts[p.ID] = p.Text
	}
	return texts
}

// awaitRows waits until ok returns true for all of these deliveries.
func (r *row) awaitRows(limit time.Duration, what string, ok func(Row) bool, ids ...uuid.UUID) {
	r.Helper()
	r.must(Until(r.within(limit), pollSlow, what, func() (bool, error) {
		rows, err := r.Rows(r.ctx)
		return !slices.ContainsFunc(ids, func(id uuid.UUID) bool { return !ok(rows[id]) }), err
	}))
}

// kill kills a worker (kill -9) and returns when.
func (r *row) kill(w *Worker) Moment {
	r.Helper()
	from := time.Now()
	r.must(w.Kill())
	return Moment{from, time.Now()}
}

// touched reports whether one of the kills met the call (Moment.Touches).
func touched(kills []Moment, c Call, slack time.Duration) bool {
	return slices.ContainsFunc(kills, func(m Moment) bool { return m.Touches(c, slack) })
}

// unexplained fails the row if a call was made again although no kill met the call before. record is the longest time in
// which a worker records an answer: a worker that is killed within it loses the answer.
func (r *row) unexplained(calls Calls, kills []Moment, record time.Duration) {
	r.Helper()
	n := 0
	for _, p := range calls.Repeats() {
		if !touched(kills, p.Earlier, record) {
			n++
		}
	}
	r.figures.Add("kills", len(kills)).Add("unexplained_duplicates", n)
	if n > 0 {
		r.Errorf("%d calls were made again although no kill met the call before", n)
	}
}

// verdict is the result that every row checks.
type verdict struct {
	rows  map[uuid.UUID]Row
	calls Calls
	tally int // duplicates
}

// settle waits until everything has ended, at most for recovery, and checks that nothing was lost and everything was
// delivered.
func (r *row) settle(recovery time.Duration) verdict {
	r.Helper()
	if err := r.AwaitFinal(r.within(recovery)); err != nil {
		r.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), time.Minute)
	defer cancel()
	rows, err := r.Rows(ctx)
	r.must(err)
	calls, err := r.agents.Calls()
	if err != nil {
		r.Error(err)
	}
	lost := Lost(r.accepted, rows, calls)
	v := verdict{rows: rows, calls: calls, tally: len(calls.Repeats())}
	r.figures.Add("deliveries", len(r.accepted)).Add("lost", len(lost)).Add("calls", len(calls)).Add("duplicates", v.tally)
	if len(lost) > 0 {
		r.Errorf("%d deliveries are lost, the first: %+v", len(lost), rows[lost[0]])
	}
	if len(rows) != len(r.accepted) {
		r.Errorf("%d deliveries were accepted, Postgres has %d", len(r.accepted), len(rows))
	}
	if by := CountStatus(rows); by["delivered"] != len(r.accepted) {
		r.Errorf("not all were delivered: %v", by)
	}
	return v
}

// print prints the row's line.
func (r *row) print() {
	fmt.Println(r.figures.Add("took", time.Since(r.began).Round(100*time.Millisecond)))
}

// known checks that no delivery with a known outcome was called again.
func (r *row) known(v verdict) {
	r.Helper()
	again := v.calls.KnownAgain()
	r.figures.Add("known_again", again)
	if again > 0 {
		for _, p := range v.calls.Repeats() {
			if p.Earlier.Answered && p.Later.Begun.After(p.Earlier.Ended) {
				r.Errorf("%d deliveries were called again although their result was known, the first: %s, answered at %s by attempt %d, called again at %s by attempt %d",
					again, p.Earlier.Delivery, clock(p.Earlier.Ended), p.Earlier.Attempt, clock(p.Later.Begun), p.Later.Attempt)
				return
			}
		}
	}
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
