package maintenance

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// longQueue is a ledger and a Redis in which many tasks are overdue and none is lost. Each look-up takes 100 ms.
type longQueue struct {
	ReconcilerLedger
	Dispatcher
	tasks []ledger.Task
	found map[uuid.UUID]int
	now   time.Time
	slow  time.Duration // how long Overdue takes
}

func (l *longQueue) Lead(ctx context.Context, do func(context.Context) error) (bool, error) {
	return true, do(ctx)
}

func (l *longQueue) Clock(context.Context) (now, started time.Time, err error) {
	return l.now, time.Time{}, nil
}

func (l *longQueue) ExpireLeases(context.Context, int, int) (n, dead int, err error) {
	return 0, 0, nil
}

func (l *longQueue) Release(context.Context, []uint64, bool, int) ([]ledger.Task, error) {
	return nil, nil
}

func (l *longQueue) Due(context.Context, int) ([]ledger.Task, bool, error) { return nil, false, nil }

func (l *longQueue) IgnoreOrder(context.Context, int) ([]ledger.Task, error) { return nil, nil }

func (l *longQueue) Backlog(context.Context, int) ([]ledger.Task, error) { return nil, nil }

func (l *longQueue) Overdue(_ context.Context, _ time.Duration, after uuid.UUID,
	limit int) (page []ledger.Task, err error) {
	l.now = l.now.Add(l.slow)
	for _, t := range l.tasks {
		if bytes.Compare(t.ID[:], after[:]) > 0 && len(page) < limit {
			page = append(page, t)
		}
	}
	return page, nil
}

func (l *longQueue) Dispatch(_ context.Context, tasks []ledger.Task) int { return len(tasks) }

func (l *longQueue) RedisMarker(context.Context, time.Time) (time.Time, error) {
	return time.Time{}, nil
}

func (l *longQueue) FindTask(t ledger.Task) (queue.Location, error) {
	l.now = l.now.Add(100 * time.Millisecond)
	l.found[t.ID]++
	return queue.Pending, nil
}

// TestRoundsOfALongQueue: many tasks are overdue, because the queue is long. A round looks up some of them and ends, so
// that it releases the leader lock. The next rounds look up the others.
func TestRoundsOfALongQueue(t *testing.T) {
	t.Parallel()
	l := &longQueue{found: map[uuid.UUID]int{}, now: time.Now()}
	for i := range 120 {
		var task ledger.Task
		binary.BigEndian.PutUint32(task.ID[:], uint32(i+1))
		l.tasks = append(l.tasks, task)
	}
	r, err := NewReconciler(ReconcilerConfig{Ledger: l, Dispatcher: l, Attempts: 4, Batch: 1, Interval: 5 * time.Second,
		Now: func() time.Time { return l.now }})
	heraldtest.Must(t, err)
	for round, want := range []int{50, 100, 120, 120} {
		began := l.now
		heraldtest.Must(t, r.Round(t.Context()))
		if took := l.now.Sub(began); took > 5*time.Second {
			t.Errorf("round %d took %s", round+1, took)
		}
		heraldtest.Equal(t, "deliveries that were looked up", len(l.found), want)
	}
}

// TestRoundsWhileTheListIsSlow: a round looks up tasks even if Postgres needs longer than the interval to list them.
func TestRoundsWhileTheListIsSlow(t *testing.T) {
	t.Parallel()
	l := &longQueue{found: map[uuid.UUID]int{}, now: time.Now(), slow: 6 * time.Second,
		tasks: []ledger.Task{{ID: uuid.Max}}}
	r, err := NewReconciler(ReconcilerConfig{Ledger: l, Dispatcher: l, Attempts: 4,
		Now: func() time.Time { return l.now }})
	heraldtest.Must(t, err)
	heraldtest.Must(t, r.Round(t.Context()))
	heraldtest.Equal(t, "deliveries that were looked up", len(l.found), 1)
}

// jumpyLedger is a ledger of a Postgres whose clock is ahead of this process' clock.
type jumpyLedger struct {
	longQueue
	ahead   time.Duration
	started time.Time // by Postgres' clock
	expired int       // calls of ExpireLeases
	claims  int       // that a delivery may have, according to the last call
	dead    int       // deliveries whose last lease expired
	fails   error     // ends the transaction of ExpireLeases
}

func (l *jumpyLedger) Clock(context.Context) (now, started time.Time, err error) {
	return l.now.Add(l.ahead), l.started, nil
}

func (l *jumpyLedger) ExpireLeases(_ context.Context, _, claims int) (n, dead int, err error) {
	l.expired, l.claims = l.expired+1, claims
	return 0, l.dead, l.fails
}

// TestDeadAfterOneMoreClaim: after the last attempt, one more claim may find its outcome in Redis. Then the delivery is
// dead, the log says so, and the metric counts it.
func TestDeadAfterOneMoreClaim(t *testing.T) {
	t.Parallel()
	log, l := &heraldtest.Log{}, &jumpyLedger{longQueue: longQueue{now: time.Now()}, dead: 2}
	counted := map[outcome.Reason]int{}
	r, err := NewReconciler(ReconcilerConfig{Ledger: l, Dispatcher: l, Attempts: 4, Grace: -1, Logger: log.Logger(slog.LevelWarn),
		CountDead: func(why outcome.Reason, n int) { counted[why] += n }})
	heraldtest.Must(t, err)
	heraldtest.Must(t, r.Round(t.Context()))
	heraldtest.Equal(t, "claims", l.claims, 5)
	heraldtest.Contains(t, "the log", log.String(), "deliveries are dead", "count=2")
	l.fails = errors.New("the commit failed")
	heraldtest.Fails(t, "a transaction that failed", r.Round(t.Context()))
	heraldtest.Equal(t, "counted deaths", counted, map[outcome.Reason]int{outcome.Unknown: 2})
}

// TestRoundsAfterAJumpOfTheClock: leases expire at once if the clock of Postgres jumps ahead. Their workers run, so the
// reconciler ends no lease before they could record their outcomes, even if no other process uses the database. A clock
// that differs, goes back or is slowly read is no jump.
func TestRoundsAfterAJumpOfTheClock(t *testing.T) {
	t.Parallel()
	l := &jumpyLedger{longQueue: longQueue{now: time.Now()}, ahead: time.Hour}
	r, err := NewReconciler(ReconcilerConfig{Ledger: l, Dispatcher: l, Attempts: 4, Grace: -1,
		Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return l.now }})
	heraldtest.Must(t, err)
	for _, round := range []struct {
		when        string
		after, jump time.Duration
		expires     int
	}{
		{"first", 0, 0, 1},
		{"slow answer", 5 * time.Second, 2 * time.Second, 1},
		{"set back", 5 * time.Second, -time.Hour, 1},
		{"jump", 5 * time.Second, 3 * time.Second, 0},
		{"soon after the jump", 59 * time.Second, 0, 0},
		{"a minute after the jump", time.Second, 0, 1},
	} {
		l.now, l.ahead, l.expired = l.now.Add(round.after), l.ahead+round.jump, 0
		heraldtest.Must(t, r.Round(t.Context()))
		heraldtest.Equal(t, "expiries of leases, "+round.when, l.expired, round.expires)
	}
}

// TestRoundsAfterTheClockIsSetBack: Postgres starts with a clock that is hours ahead, as of a machine without the right
// time, and the clock is set back. The reconciler does not wait for hours until the time of the start.
func TestRoundsAfterTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	l := &jumpyLedger{longQueue: longQueue{now: time.Now()}, ahead: 3 * time.Hour}
	l.started = l.now.Add(l.ahead)
	for grace, want := range map[time.Duration]int{-1: 2, time.Minute: 1} {
		r, err := NewReconciler(ReconcilerConfig{Ledger: l, Dispatcher: l, Attempts: 4, Grace: grace,
			Now: func() time.Time { return l.now }})
		heraldtest.Must(t, err)
		l.ahead, l.expired = 3*time.Hour, 0
		heraldtest.Must(t, r.Round(t.Context()))
		l.ahead = 0
		heraldtest.Must(t, r.Round(t.Context()))
		heraldtest.Equal(t, "expiries of leases, grace "+grace.String(), l.expired, want)
	}
}
