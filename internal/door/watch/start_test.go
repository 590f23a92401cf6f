package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// openCursors creates the cursors of a future watcher at a block.
func (w *world) openCursors(start uint64) {
	w.Helper()
	for _, contract := range w.net.Deployment().List() {
		key := cursor.Key{ChainID: w.net.ChainID(), Contracts: contract}
		_, err := w.store.OpenCursor(w.Context(), key, start, nil)
		heraldtest.Must(w, err)
	}
}

// TestCursorAboveTheHead: a cursor that a false head created and that has read nothing starts again at the real head,
// and this is logged. With --from it starts at that block.
func TestCursorAboveTheHead(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]*uint64{"at the head": nil, "at --from": new(uint64)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.openCursors(1_000_000)
			w.give(2)
			log := &heraldtest.Log{}
			g := w.watch(func(c *Config) { c.From, c.Logger = from, slog.New(slog.NewTextHandler(log, nil)) })
			heraldtest.Await(t, "the cursor begins again", func() bool { return strings.Contains(log.String(), "nothing was read") })
			w.give(1)
			want := map[bool]int{true: 1, false: 3}[from == nil]
			heraldtest.Await(t, "events are read", func() bool { return g.count(ledger.Accepted) >= want })
		})
	}
}

// TestResumesFarFromTheHead: a watcher resumes at cursors that have read blocks, even if the head's timestamp is more
// than ten minutes from this machine's time, as on a halted chain. A contract without a cursor does not stop it.
func TestResumesFarFromTheHead(t *testing.T) {
	t.Parallel()
	const base = 8453 // this chain also makes blocks without transactions
	w := newWorldOf(t, devnet.Config{ChainID: base})
	w.give(1)
	first := w.watch(without(false, false, true))
	heraldtest.Await(t, "the chain is read", func() bool { return first.count(ledger.Accepted) > 0 })
	heraldtest.Fails(t, "the stop", first.stop(), context.Canceled)
	for range 700 { // each block adds at least one second to the chain's time
		_, err := w.net.Commit()
		heraldtest.Must(t, err)
	}
	_, err := w.client.StartHead(t.Context())
	heraldtest.Fails(t, "beginning at the head", err)
	w.give(1)
	second := w.watch(func(c *Config) { c.From = nil })
	heraldtest.Await(t, "the events since then are read", func() bool { return second.count(ledger.Accepted) == 1 })
}

var errDenied = errors.New("permission denied for table deliveries")

// brokenCommit fails every commit until mended is set.
type brokenCommit struct {
	*store.Store
	mended atomic.Bool
	tried  atomic.Int32
}

func (b *brokenCommit) AdvanceCursors(ctx context.Context, c []*cursor.Cursor, a store.Advance) (store.Advanced, error) {
	if n := b.tried.Add(1); !b.mended.Load() { // the range and so the error grow with the chain
		return store.Advanced{}, fmt.Errorf("accept jobs up to block %d: %w", n, errDenied)
	}
	return b.Store.AdvanceCursors(ctx, c, a)
}

// TestLastingFailureIsLoggedOnce: repeated failures of a commit are logged once, although the blocks in the error
// differ. Another line is logged when a commit succeeds.
func TestLastingFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(1)
	log, broken := &heraldtest.Log{}, &brokenCommit{Store: w.store}
	g := w.watch(func(c *Config) { c.Ledger, c.Logger = broken, slog.New(slog.NewTextHandler(log, nil)) })
	heraldtest.Await(t, "several commits fail", func() bool { return broken.tried.Load() >= 4 })
	broken.mended.Store(true)
	heraldtest.Await(t, "the chain is read again", func() bool {
		return g.count(ledger.Accepted) == 1 && strings.Contains(log.String(), "the chain is read again")
	})
	heraldtest.Equal(t, "lines about the failure", strings.Count(log.String(), "permission denied"), 1)
	heraldtest.Equal(t, "lines about the beginning", strings.Count(log.String(), "msg=\"reading the chain\""), 1)
}

// TestLastingFailureIsRepeated: a failure that lasts is logged again after a minute, then after twice as long each time
// up to an hour, with the number of failures. Another failure is logged at once.
func TestLastingFailureIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &heraldtest.Log{}
		w := &Watcher{log: slog.New(slog.NewTextHandler(log, nil))}
		began := time.Now()
		var logged []time.Duration
		for lines := 0; time.Since(began) < 4*time.Hour; <-time.After(3 * time.Second) {
			w.noteFailure(fmt.Errorf("up to block %s: %w", time.Since(began), errDenied))
			if n := log.Count("permission denied"); n > lines {
				lines, logged = n, append(logged, time.Since(began))
			}
		}
		want := []time.Duration{0, time.Minute, 3 * time.Minute, 7 * time.Minute, 15 * time.Minute, 31 * time.Minute,
			63 * time.Minute, 123 * time.Minute, 183 * time.Minute}
		heraldtest.Equal(t, "the times of the lines", logged, want)
		if !strings.Contains(log.String(), "failures=21 ") { // the line of the first minute
			t.Errorf("the failures are not counted:\n%s", log)
		}
		w.noteFailure(errors.New("another one"))
		heraldtest.Equal(t, "lines about another failure", log.Count("another one"), 1)
	})
}
