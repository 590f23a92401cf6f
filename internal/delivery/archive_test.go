package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// TestReplayTidiesTheArchive: a replay that delivers removes the archived task from the web UI. A delivery that
// succeeds at its first attempt sends no such request to Redis.
func TestReplayTidiesTheArchive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var well atomic.Bool
	a := newAgent(t, onCall(func(_ int, rw http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
		if well.Load() {
			return false
		}
		reply(rw, id, saysNo)
		return true
	}))
	archived := func() int {
		t.Helper()
		lanes, err := w.queue.Lanes(t.Context())
		heraldtest.Must(t, err)
		return lanes[queue.First]["archived"] + lanes[queue.Retry]["archived"] + lanes[queue.Bulk]["archived"]
	}
	asked := &countingLanes{Lanes: w.queue}
	w.dispatcher = must(dispatch.New(asked, w.logger()))
	w.serve(w.newWorker())
	id, other := w.dispatchTo(a.URL), w.dispatchTo(a.URL)
	w.until(id, outcome.Rejected)
	w.until(other, outcome.Rejected)
	count := func() string { return fmt.Sprintf("%d are archived", archived()) }
	heraldtest.AwaitState(t, func() bool { return archived() == 2 }, count)

	well.Store(true)
	w.replay(id, false)
	w.until(id, outcome.Delivered)
	heraldtest.AwaitState(t, func() bool { return archived() == 1 }, count)
	w.until(w.dispatchTo(a.URL), outcome.Delivered)
	heraldtest.Equal(t, "requests for archived tasks", asked.dropped.Load(), 1)
}

// countingLanes counts the calls that remove archived tasks.
type countingLanes struct {
	dispatch.Lanes
	dropped atomic.Int64
}

func (l *countingLanes) DropArchived(ctx context.Context, id uuid.UUID, n int) error {
	l.dropped.Add(1)
	return l.Lanes.DropArchived(ctx, id, n)
}

// TestReplayWithoutRedis: if Redis is down when a replay has delivered, DropArchived only logs a line at info level.
func TestReplayWithoutRedis(t *testing.T) {
	t.Parallel()
	log := &heraldtest.Log{}
	must(dispatch.New(&away{}, slog.New(slog.NewTextHandler(log, nil)))).DropArchived(t.Context(), uuid.New(), 3)
	said := log.String()
	if strings.Count(said, "\n") != 1 || !strings.Contains(said, "level=INFO") || !strings.Contains(said, "about=Redis") {
		t.Errorf("%s", said)
	}
}
