package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

// TestListenerHoldsFewEvents: a listener that reads slowly keeps few events in memory, and not the array with those of
// all listeners, which the feed replaces several times a second. It receives all events nevertheless.
func TestListenerHoldsFewEvents(t *testing.T) {
	t.Parallel()
	f := newFeed(nil, time.Second, slog.Default())
	f.following = true
	all := make([]records.DeliveryEvent, feedSize)
	for i := range all {
		all[i].Cursor = records.EventCursor{Xid: 7, ID: int64(i + 1)}
	}
	f.add(all)
	received := 0
	for at := (records.EventCursor{}); ; {
		news, _, err := f.next(t.Context(), at)
		heraldtest.Must(t, err)
		if len(news) == 0 {
			break
		}
		if len(news) > listenerBatch || &news[0] == &f.events[received] {
			t.Fatalf("a listener holds %d events, or those of all listeners; at most %d are wanted", len(news), listenerBatch)
		}
		for _, e := range news {
			received++
			heraldtest.Equal(t, "the next event", e.Cursor.ID, int64(received))
			at = e.Cursor
		}
	}
	heraldtest.Equal(t, "received events", received, feedSize)
}

// TestPostgresLosesEvents: after Postgres lost the newest transactions, it gives their ids to new ones. Listeners that
// stay connected get a gap and then the new events. Otherwise they would get none until the ids reach their position.
func TestPostgresLosesEvents(t *testing.T) {
	t.Parallel()
	st := storetest.Open(t, heraldtest.Postgres(t, postgres.Migrate), 0)
	a := &API{feed: newFeed(records.New(st), time.Second, slog.Default())}
	defer a.feed.join()()
	heraldtest.Must(t, a.feed.readNext(t.Context()))
	losses, at := a.feed.countLosses()
	heraldtest.Must(t, a.feed.readNext(t.Context()))
	if n, end := a.feed.countLosses(); n != losses || end != at {
		t.Fatalf("%d losses at %s, although nothing was lost", n, end)
	}

	at.Xid += 1_000_000 // of transactions that Postgres has lost
	a.feed.since = at
	for range 2 { // the feed finds the loss, and then the new end
		heraldtest.Must(t, a.feed.readNext(t.Context()))
	}
	if n, end := a.feed.countLosses(); n != losses+1 || end.Xid >= at.Xid {
		t.Fatalf("%d losses at %s", n, end)
	}
	_, end := a.feed.countLosses()
	a.feed.add([]records.DeliveryEvent{{Cursor: records.EventCursor{Xid: end.Xid + 1}, Kind: "new"}})
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	w := &writer{httptest.NewRecorder(), `"kind":"new"`, stop}
	a.followEvents(ctx, &eventStream{w: w, control: http.NewResponseController(w)}, eventFilter{}, at, 0, losses)
	heraldtest.Contains(t, "the stream", w.Body.String(), "event: gap", "id: "+end.String(), w.last)
}

// writer calls stop after it has written the text last.
type writer struct {
	*httptest.ResponseRecorder
	last string
	stop func()
}

func (w *writer) Write(b []byte) (int, error) {
	if strings.Contains(string(b), w.last) {
		w.stop()
	}
	return w.ResponseRecorder.Write(b)
}
