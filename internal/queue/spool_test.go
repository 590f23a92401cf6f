package queue

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

func TestSpooledOutcomes(t *testing.T) {
	t.Parallel()
	q := open(t)
	ctx := heraldtest.Within(t, 10*time.Second)
	id, other := uuid.New(), uuid.New()
	look := func(id uuid.UUID, want string) {
		t.Helper()
		if b, err := q.SpooledOutcome(ctx, id); err != nil || string(b) != want || (b == nil) != (want == "") {
			t.Errorf("%q, %v; want %q", b, err, want)
		}
	}
	look(id, "")
	for _, v := range []string{"first", "second"} {
		heraldtest.Must(t, q.SpoolOutcome(ctx, id, []byte(v)))
		look(id, v)
	}
	look(other, "")
	if ttl := q.rdb.TTL(ctx, resultKey+id.String()).Val(); ttl < 23*time.Hour || ttl > 24*time.Hour {
		t.Errorf("kept for %s", ttl)
	}
	heraldtest.Must(t, q.DropOutcome(ctx, id))
	look(id, "")
}

func TestSpooledRenewals(t *testing.T) {
	t.Parallel()
	q := open(t)
	ctx := heraldtest.Within(t, 10*time.Second)
	look := func(key, want string) {
		t.Helper()
		if b, err := q.SpooledRenewal(ctx, key); err != nil || string(b) != want || (b == nil) != (want == "") {
			t.Errorf("%q, %v; want %q", b, err, want)
		}
	}
	look("a", "")
	for _, v := range []string{"first", "second"} {
		heraldtest.Must(t, q.SpoolRenewal(ctx, "a", []byte(v)))
		look("a", v)
	}
	look("b", "")
	if ttl := q.rdb.TTL(ctx, renewalKey+"a").Val(); ttl < 29*24*time.Hour || ttl > 30*24*time.Hour {
		t.Errorf("kept for %s", ttl)
	}
	heraldtest.Must(t, q.DropRenewal(ctx, "a"))
	look("a", "")
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := q.SpooledRenewal(gone, "a"); err == nil {
		t.Error("without Redis nothing is known, and it says that there is nothing")
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
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = mute.Close() })
	q, err := Open(Config{URL: secret.New("redis://" + mute.Addr().String())})
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = q.Close() })
	c, err := q.Client(50 * time.Millisecond)
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	ctx := heraldtest.Within(t, 5*time.Second)
	if err := c.Get(ctx, "x").Err(); err == nil || ctx.Err() != nil {
		t.Errorf("%v, %v: a Redis that says nothing was waited for", err, ctx.Err())
	}
}

func TestPostponedTask(t *testing.T) {
	t.Parallel()
	q := open(t)
	for ahead, want := range map[time.Duration]Location{5 * time.Second: Pending, time.Minute: Postponed} {
		task := Task{DeliveryID: uuid.New(), N: 2, Kind: kind, Lane: Retry, At: time.Now().Add(ahead)}
		enqueue(t, q, task)
		heraldtest.Equal(t, fmt.Sprintf("in %s", ahead), locateTask(t, q, task), want)
	}
}
