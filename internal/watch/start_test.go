package watch

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/store"
)

// openCursor makes the cursor of a watcher that is to be, at a block.
func (w *world) openCursor(start uint64) {
	w.Helper()
	key := store.CursorKey{ChainID: w.net.ChainID(), Follower: "head of " + strings.Join(w.net.Deployment().List(), ",")}
	if _, err := w.store.OpenCursor(w.Context(), key, start, nil); err != nil {
		w.Fatal(err)
	}
}

// TestCursorAboveTheHead: a cursor that a false head made, and that has read nothing, begins again at the true one and says
// so; where --from names a block, it begins there.
func TestCursorAboveTheHead(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]*uint64{"at the head": nil, "at --from": new(uint64)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.openCursor(1_000_000)
			w.give(2)
			log := &heraldtest.Log{}
			g := w.watch(func(c *Config) { c.From, c.Logger = from, slog.New(slog.NewTextHandler(log, nil)) })
			heraldtest.Await(t, "the cursor begins again", func() bool { return strings.Contains(log.String(), "nothing was read") })
			w.give(1)
			want := map[bool]int{true: 1, false: 3}[from == nil]
			heraldtest.Await(t, "events are read", func() bool { return g.count(store.Accepted) >= want })
		})
	}
}

// brokenCommit fails commits until it is mended.
type brokenCommit struct {
	*store.Store
	mended atomic.Bool
	tried  atomic.Int32
}

func (b *brokenCommit) AdvanceCursor(ctx context.Context, c *store.Cursor, a store.Advance) (store.Advanced, error) {
	if b.tried.Add(1); !b.mended.Load() {
		return store.Advanced{}, errors.New("permission denied for table deliveries")
	}
	return b.Store.AdvanceCursor(ctx, c, a)
}

// TestLastingFailureIsLoggedOnce: a commit that fails each time is one line, and another when it succeeds.
func TestLastingFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(1)
	log, broken := &heraldtest.Log{}, &brokenCommit{Store: w.store}
	g := w.watch(func(c *Config) { c.Ledger, c.Logger = broken, slog.New(slog.NewTextHandler(log, nil)) })
	heraldtest.Await(t, "several commits fail", func() bool { return broken.tried.Load() >= 4 })
	broken.mended.Store(true)
	heraldtest.Await(t, "the chain is read again", func() bool {
		return g.count(store.Accepted) == 1 && strings.Contains(log.String(), "the chain is read again")
	})
	if n := strings.Count(log.String(), "permission denied"); n != 1 {
		t.Errorf("the failure is logged %d times:\n%s", n, log.String())
	}
	if n := strings.Count(log.String(), "msg=\"reading the chain\""); n != 1 {
		t.Errorf("the beginning is logged %d times:\n%s", n, log.String())
	}
}
