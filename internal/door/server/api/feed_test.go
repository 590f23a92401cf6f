package api

import (
	"log/slog"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
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
