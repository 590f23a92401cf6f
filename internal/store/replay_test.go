package store

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

func ids1(id uuid.UUID) []uuid.UUID { return []uuid.UUID{id} }

// ending returns an outcome that leaves the delivery with the given status.
func ending(status outcome.Status, why outcome.Reason) ledger.Outcome {
	return ledger.Outcome{Status: status, Reason: why, Stage: "call", Called: true, Error: "because", Delay: time.Hour}
}

// TestReplayLeaves: a delivery without a valid job, and one that the agent received, are left unchanged, with the
// reason. storetest tests the others.
func TestReplayLeaves(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for i, tt := range []struct {
		o     ledger.Outcome
		job   string // the stored job; empty: unchanged
		force bool
		left  string // why it is not replayed; empty: it is replayed
	}{
		{o: delivered, force: true},
		{o: delivered, left: "it is delivered: replaying it calls the agent again and needs force"},
		{o: ending(outcome.Rejected, "invalid_job")},
		{o: ending(outcome.Rejected, "invalid_job"), job: "NULL", left: "it never was a valid job: enqueue a corrected one"},
		{o: ending(outcome.Dead, "timeout"), job: "NULL", left: "its job was dropped by retention: there is nothing left to deliver"},
		{o: delivered, job: "NULL", force: true, left: "its job was dropped by retention: there is nothing left to deliver"},
	} {
		task := acceptOne(t, s, feedback(100+i, 1))
		record(t, s, claim(t, s, task), tt.o)
		if tt.job != "" {
			exec(t, s, `UPDATE herald.deliveries SET job = `+tt.job+` WHERE id = $1`, task.ID)
		}
		before := read(t, s, task.ID)
		moved, left, tasks, err := s.Replay(t.Context(), ids1(task.ID), tt.force)
		if err != nil || left[task.ID] != tt.left || moved != 1-len(left) || len(toRun(tasks)) != moved {
			t.Errorf("moved %d, left %q, tasks %+v, %v", moved, left, tasks, err)
		}
		if d := read(t, s, task.ID); tt.left != "" && (d.Status != before.Status || d.Dispatch != before.Dispatch || d.UpdatedAt != before.UpdatedAt) {
			t.Errorf("%+v was changed to %+v", before, d)
		}
	}
	if moved, left, more, err := s.Replay(t.Context(), nil, true); moved != 0 || len(left) != 0 || more != nil || err != nil {
		t.Error(moved, left, more, err)
	}
	if _, _, _, err := s.Replay(t.Context(), make([]uuid.UUID, maxMove+1), true); err == nil {
		t.Error("501 at once were taken")
	}
}

// TestReplaySettlesDoubt: attempts before a replay are not in doubt after it, so that a policy does not hold the
// delivery again.
func TestReplaySettlesDoubt(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	crashed(t, s, 1)
	c := next(t, s)
	record(t, s, c, ledger.Outcome{Status: outcome.Held, Reason: "held_unknown", Stage: "claim"})
	_, _, tasks, err := s.Replay(t.Context(), ids1(c.ID), false)
	if err != nil || len(toRun(tasks)) != 1 {
		t.Fatal(tasks, err)
	}
	c = claim(t, s, tasks[0])
	if !c.Unfinished || c.InDoubt || !c.Replay || c.Budget != 1 || c.Attempt != 3 {
		t.Errorf("%+v", c)
	}
	lapse(t, s, c)
	if c = next(t, s); !c.Unfinished || !c.InDoubt || c.Budget != 2 {
		t.Errorf("%+v", c)
	}
}

// TestCancelInADeadlock: an operator's Cancel and a transaction that has locked other agents lock two deliveries in
// different orders. Postgres ends the Cancel's transaction, and the Cancel tries again.
func TestCancelInADeadlock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	out, _ := accept(t, s, feedbacks(42, 1, 2)...)
	ids := []uuid.UUID{out[0].ID, out[1].ID}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	tx := beginWith(t, s, `SET LOCAL deadlock_timeout = '10s'`) // the Cancel notices the deadlock first
	lock := func(id uuid.UUID) error {
		_, err := tx.Exec(t.Context(), `SELECT FROM herald.history WHERE id = $1 FOR UPDATE`, id)
		return err
	}
	heraldtest.Must(t, lock(ids[1]))
	cancelled := make(chan error, 1)
	go func() {
		moved, _, _, err := s.Cancel(t.Context(), ids, false)
		heraldtest.Equal(t, "cancelled", moved, 2)
		cancelled <- err
	}()
	awaitLockWaits(t, s, 1)
	heraldtest.Must(t, lock(ids[0]))
	heraldtest.Must(t, tx.Rollback(t.Context()))
	heraldtest.Must(t, <-cancelled)
}
