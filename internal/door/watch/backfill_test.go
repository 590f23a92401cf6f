package watch

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// lane is a dispatcher that records the dispatched tasks in order.
type lane struct {
	mu    sync.Mutex
	tasks []ledger.Task
}

func (l *lane) Dispatch(_ context.Context, tasks []ledger.Task) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks = append(l.tasks, tasks...)
	return len(tasks)
}

func (l *lane) count(bulk bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.tasks {
		if t.Bulk == bulk {
			n++
		}
	}
	return n
}

// TestBackfillGivesWay: a backfill has dispatched as many deliveries of an agent as it may. A watcher of the same chain
// still dispatches its deliveries at once, and to another lane.
func TestBackfillGivesWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(12)
	head := w.head()
	var old, young lane
	backfill := w.watch(func(c *Config) { c.Ends, c.To, c.Dispatcher = true, &head, &old })
	heraldtest.Await(t, "the past is accepted", func() bool { return backfill.count(ledger.Accepted) == 12 })
	watcher := w.watch(func(c *Config) { from := head + 1; c.From, c.Dispatcher = &from, &young })
	w.give(2)
	heraldtest.Await(t, "what comes now is accepted", func() bool { return watcher.count(ledger.Accepted) == 2 })
	if old.count(true) != ledger.MaxDispatchedPerAgent/2 || old.count(false) != 0 || young.count(false) != 2 || young.count(true) != 0 {
		t.Errorf("dispatched %+v of the past, %+v of now", old.tasks, young.tasks)
	}
}

// TestBackfillWaits: a backfill that has reached its rate waits. A signal ends the wait, and the next start resumes at
// the same block.
func TestBackfillWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(2)
	// The last block does not exist yet, so that a range ends at the present head.
	first := w.head()
	to := first + 3
	slow := w.watch(func(c *Config) { c.Ends, c.To, c.Rate = true, &to, 1e-6 })
	heraldtest.Await(t, "the first range is accepted", func() bool { return slow.count(ledger.Accepted) == 2 })
	// A second watcher reads the same blocks, and so shows when the backfill had enough time to read them.
	live := w.watch(func(c *Config) { from := first + 1; c.From = &from })
	for n := range 3 {
		w.give(1)
		heraldtest.Await(t, "it is read by another", func() bool { return live.count(ledger.Accepted) == n+1 })
	}
	heraldtest.Fails(t, "the stop", slow.stop(), context.Canceled)
	heraldtest.Equal(t, "more were read: it did not wait", slow.count(ledger.Known), 0)
	again := w.watch(func(c *Config) { c.Ends, c.To = true, &to })
	heraldtest.Await(t, "the rest is read", func() bool { return again.count(ledger.Known) >= 3 })
	// It ends by itself, unless the signal comes first.
	if err := again.stop(); err != nil && !errors.Is(err, context.Canceled) || again.count(ledger.Known) != 3 || again.count(ledger.Accepted) != 0 {
		t.Errorf("read %+v anew, %v", again.verdicts, err)
	}
}

// TestBackfillAboveHead: a backfill without a last block that begins above the head waits for its first block.
func TestBackfillAboveHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	from := w.head() + 1
	backfill, err := New(Config{Chain: w.client, Deployment: w.net.Deployment(), Ledger: w.store,
		Limits: job.Limits{MaxTimeout: time.Minute}, Ends: true, From: &from})
	heraldtest.Must(t, err)
	if cursors, err := backfill.openCursors(t.Context(), backfill.keys); err == nil {
		t.Errorf("it reads blocks %d to %d, and the head is below", from, *cursors[0].End)
	}
	w.give(1)
	cursors, err := backfill.openCursors(t.Context(), backfill.keys)
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "the last block", *cursors[0].End, from)
}

// TestPace: after n deliveries, wait lasts n/rate minus the time since they were added. An earlier pause is no credit,
// and the end of the context ends the wait.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := pace{rate: 100}
		after := func(want time.Duration) {
			t.Helper()
			if err := p.awaitRoom(t.Context()); err != nil || time.Since(began) != want {
				t.Errorf("after %v (%v), want %v", time.Since(began), err, want)
			}
		}
		after(0)
		p.countJobs(50)
		<-time.After(200 * time.Millisecond) // duration of the commit
		after(500 * time.Millisecond)
		p.countJobs(0)
		after(500 * time.Millisecond)
		<-time.After(time.Hour)
		p.countJobs(100)
		p.countJobs(100)
		after(time.Hour + 2500*time.Millisecond)

		p.countJobs(1000)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.awaitRoom(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Hour+3500*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		p = pace{}
		p.countJobs(1e9)
		after(time.Hour + 3500*time.Millisecond)
	})
}
