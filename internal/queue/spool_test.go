package queue

import (
	"context"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestSpool: the newest outcome of a delivery is kept for a day, and the newest renewal of a login for 30 days.
func TestSpool(t *testing.T) {
	t.Parallel()
	q := open(t)
	ctx := heraldtest.Within(t, 10*time.Second)
	for name, c := range map[string]struct {
		spool Spool
		key   string
		kept  time.Duration
	}{
		"outcome": {q.Outcomes(), "herald:result:a", 24 * time.Hour},
		"renewal": {q.Renewals(), "herald:renewal:a", 30 * 24 * time.Hour},
	} {
		holds := func(key string, want []byte) {
			t.Helper()
			b, err := c.spool.Get(ctx, key)
			heraldtest.Must(t, err)
			heraldtest.Equal(t, name, b, want)
		}
		holds("a", nil)
		for _, v := range []string{"first", "second"} {
			heraldtest.Must(t, c.spool.Put(ctx, "a", []byte(v)))
			holds("a", []byte(v))
		}
		heraldtest.Must(t, c.spool.PutMissing(ctx, "a", []byte("third")))
		holds("a", []byte("second"))
		holds("b", nil)
		heraldtest.Must(t, c.spool.Delete(ctx, "a"))
		heraldtest.Must(t, c.spool.PutMissing(ctx, "a", []byte("fourth")))
		holds("a", []byte("fourth"))
		if ttl := q.rdb.TTL(ctx, c.key).Val(); ttl < c.kept-time.Hour || ttl > c.kept {
			t.Errorf("%s: kept for %s", name, ttl)
		}
		heraldtest.Must(t, c.spool.Delete(ctx, "a"))
		holds("a", nil)
		gone, cancel := context.WithCancel(ctx)
		cancel()
		_, err := c.spool.Get(gone, "a")
		heraldtest.Fails(t, name+" without Redis", err)
	}
}

func TestMarkerHoldsStartTime(t *testing.T) {
	t.Parallel()
	q := open(t)
	ctx := heraldtest.Within(t, 10*time.Second)
	at := func(now, want time.Time) {
		t.Helper()
		if got, err := q.Marker(ctx, now); err != nil || !got.Equal(want) {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	first := time.Date(2026, 11, 21, 7, 0, 0, 123456000, time.UTC)
	at(first, first)
	at(first.Add(time.Hour), first)
	q.rdb.FlushAll(ctx)
	at(first.Add(2*time.Hour), first.Add(2*time.Hour))
	q.rdb.Set(ctx, markerKey, "somebody else's", 0)
	at(first, time.Time{})
}

func TestClientDoesNotWait(t *testing.T) {
	t.Parallel()
	q := openAt(t, "redis://"+heraldtest.Silent(t))
	c := q.Client(50 * time.Millisecond)
	t.Cleanup(func() { _ = c.Close() })
	ctx := heraldtest.Within(t, 5*time.Second)
	if err := c.Get(ctx, "x").Err(); err == nil || ctx.Err() != nil {
		t.Errorf("%v, %v: a Redis that says nothing was waited for", err, ctx.Err())
	}
}
