package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// TestAdvanceCursors: jobs and cursor are committed together or not at all, also for more jobs than one Accept allows. A
// caller with a stale cursor changes nothing.
func TestAdvanceCursors(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	key := cursor.Key{ChainID: 8453, Contracts: emitterOf(feedback(1, 1))}
	c, err := s.OpenCursor(t.Context(), key, 7, nil)
	if err != nil || c.Start != 7 || c.Next != 7 || len(c.Anchors) != 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	stale, next := c, c
	anchors := []cursor.Anchor{{Number: 19, Hash: common.Hash{19}}}
	in := make([]ledger.Intake, 2*ledger.MaxAccept+3)
	for i := range in {
		in[i] = ledger.Intake{Job: feedback(i%5, i+1)}
	}
	in[3] = ledger.Intake{Job: feedback(9, 4), Refused: "it makes no job", Key: "invalid:4"}

	done, err := s.AdvanceCursors(t.Context(), []*cursor.Cursor{&next}, Advance{From: 7, To: 19, Head: 30, Anchors: anchors, Intakes: in})
	out, tasks := done.Answers, done.Tasks
	if err != nil || len(out) != len(in) || len(tasks) != 5*ledger.MaxDispatchedPerAgent {
		t.Fatalf("%d answers, %d tasks, %v", len(out), len(tasks), err)
	}
	for i, a := range out {
		if want := map[bool]outcome.Status{true: outcome.Rejected, false: outcome.Queued}[i == 3]; a.Verdict != ledger.Accepted || a.Status != want {
			t.Fatalf("%d: %+v", i, a)
		}
	}
	read, err := s.OpenCursor(t.Context(), key, 1000, nil)
	heraldtest.Must(t, err)
	if read.Moves != 1 || read.Next != next.Next || read.Head != next.Head || !slices.Equal(read.Anchors, next.Anchors) {
		t.Errorf("%+v, want %+v", read, next)
	}

	if _, err := s.AdvanceCursors(t.Context(), []*cursor.Cursor{&stale}, Advance{From: 7, To: 19, Intakes: []ledger.Intake{{Job: feedback(1, 5000)}}}); !errors.Is(err, cursor.ErrMoved) {
		t.Errorf("from where the cursor was: %v", err)
	}
	exec(t, s, `ALTER TABLE herald.history ADD CONSTRAINT refused CHECK (agent_id <> 77)`)
	if _, err := s.AdvanceCursors(t.Context(), []*cursor.Cursor{&read}, Advance{From: 20, To: 39, Intakes: []ledger.Intake{{Job: feedback(1, 5001)}, {Job: feedback(77, 1)}}}); err == nil {
		t.Error("a row that Postgres refuses was accepted")
	}
	heraldtest.Equal(t, "rows", value[int](t, s, `SELECT count(*)::int FROM herald.deliveries`), len(in))
	if again, err := s.OpenCursor(t.Context(), key, 1, nil); err != nil || again.Next != 20 {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestNoteStall: a cursor keeps the reason of a stall, and the checks of its blocks, until it advances.
func TestNoteStall(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	key := cursor.Key{ChainID: 8453, Contracts: emitterOf(feedback(1, 1))}
	c, err := s.OpenCursor(t.Context(), key, 7, nil)
	if err != nil || c.Checks != nil {
		t.Fatalf("%+v, %v", c, err)
	}
	since := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	for _, at := range []*time.Time{&since, nil, &since} {
		heraldtest.Must(t, s.NoteStall(t.Context(), key, at, "the node answered error -32014: no"))
		list, err := s.Cursors(t.Context(), 8453)
		if err != nil || len(list) != 1 || (list[0].StalledSince == nil) != (at == nil) ||
			at != nil && (!list[0].StalledSince.Equal(since) || list[0].StalledWhy != "the node answered error -32014: no") {
			t.Errorf("%+v, %v", list, err)
		}
	}
	checks := json.RawMessage(`{"complete": 9, "unchecked": 3}`)
	if _, err := s.AdvanceCursors(t.Context(), []*cursor.Cursor{&c}, Advance{From: 7, To: 12, Head: 12, Checks: checks}); err != nil {
		t.Fatal(err)
	}
	list, err := s.Cursors(t.Context(), 8453)
	if err != nil || len(list) != 1 || list[0].StalledSince != nil || string(list[0].Checks) != string(checks) {
		t.Errorf("%+v, %v", list, err)
	}
	if again, err := s.OpenCursor(t.Context(), key, 7, nil); err != nil || string(again.Checks) != string(checks) {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestBindDoesNotWaitForAReading: the follower reads the blocks of a reorg, and has changed the remembered event of a
// delivery in a transaction that still has to lock the delivery's agent. A worker that binds this delivery has locked
// the agent. It must not wait for the follower's transaction: the two would deadlock.
func TestBindDoesNotWaitForAReading(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	for name, inBlockOf := range map[string]uint64{"in a block that was read": 101, "in a block that was not read": 103} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			r := newChainReader(t, s)
			r.read(100, 101, true)
			task := acceptOne(t, s, inBlock(feedback(1, 1), inBlockOf, 'a'))
			if inBlockOf == 101 {
				r.read(101, 101, true, inBlock(feedback(1, 1), 101, 'a'))
			}
			c := claim(t, s, task)
			heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: c.Job, Source: c.Source}))
			heraldtest.Equal(t, "remembered events", value[int](t, s, `SELECT count(*)::int FROM herald.chain_events`), 1)

			reading := beginWith(t, s, `UPDATE herald.chain_events SET state = 'orphaned'`)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			err := s.Bind(ctx, c, ledger.Binding{Job: inBlock(feedback(1, 1), 104, 'b'), Source: c.Source})
			heraldtest.Must(t, reading.Rollback(t.Context()))
			heraldtest.Must(t, err)
		})
	}
}

// TestFormerCursorRemembersNothing: no worker watches the contract of a cursor that was not moved for a week. So Bind
// stores no event for it, because no worker would delete this event.
func TestFormerCursorRemembersNothing(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	newChainReader(t, s)
	for _, days := range []int{6, 8} {
		exec(t, s, `UPDATE herald.chain_cursors SET updated_at = now() - make_interval(days => $1)`, days)
		j := inBlock(feedback(days, 1), 101, 'a')
		c := claim(t, s, acceptOne(t, s, j))
		heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: j, Source: c.Source}))
		heraldtest.Equal(t, fmt.Sprintf("remembered events, with a cursor of %d days ago", days),
			value[int](t, s, `SELECT count(*)::int FROM herald.chain_events`), 1)
	}
}
