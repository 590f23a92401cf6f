package store

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// chainReader advances a cursor over blocks that a test defines.
type chainReader struct {
	*testing.T
	s *Store
	c cursor.Cursor

	settled uint64 // Advance.Settled, at most the last block that was read
}

func newChainReader(t *testing.T, s *Store) *chainReader {
	t.Helper()
	c, err := s.OpenCursor(t.Context(), cursor.Key{ChainID: 8453, Contracts: emitterOf(feedback(1, 1))}, 100, nil)
	heraldtest.Must(t, err)
	return &chainReader{T: t, s: s, c: c}
}

// inBlock puts a job into a block of a branch, in the transaction derived from its agent and index.
func inBlock(j job.Job, number uint64, branch byte) job.Job {
	index := uint(3)
	j.BlockNumber, j.BlockHash, j.Timestamp = number, common.Hash{branch, byte(number)}, int64(number)
	j.TransactionHash, j.LogIndex = common.Hash{0xff, byte(j.AgentID.Uint64()), byte(j.FeedbackIndex)}, &index
	return j
}

// read advances the cursor over the blocks from to to, which contain these jobs.
func (r *chainReader) read(from, to uint64, atHead bool, jobs ...job.Job) Advanced {
	r.Helper()
	a := Advance{From: from, To: to, Head: to, AtHead: atHead, Anchors: []cursor.Anchor{{Number: to}}, Settled: min(r.settled, to)}
	for _, j := range jobs {
		a.Intakes = append(a.Intakes, ledger.Intake{Job: j})
	}
	done, err := r.s.AdvanceCursors(r.Context(), []*cursor.Cursor{&r.c}, a)
	if err != nil {
		r.Fatal(err)
	}
	return done
}

// loses reads blocks which show that the chain has lost the event of one job.
func (r *chainReader) loses(from, to uint64, j job.Job) {
	r.Helper()
	if done := r.read(from, to, true); len(done.Vanished) != 1 || done.Vanished[0].ID != j.ID() {
		r.Errorf("%+v", done.Vanished)
	}
}

// bring sets a delivery to the named state.
func bring(t *testing.T, s *Store, id uuid.UUID, state string) {
	t.Helper()
	for name, set := range map[string]string{
		"queued":              `status = 'queued'`,
		"waiting":             `status = 'waiting', reason = 'not_confirmed', next_attempt_at = now()`,
		"waiting, called":     `status = 'waiting', reason = 'agent_unavailable', next_attempt_at = now(), called = true`,
		"held":                `status = 'held', reason = 'auth_required'`,
		"held, in doubt":      `status = 'held', reason = 'outcome_unknown'`,
		"running":             `status = 'running', claim_no = nextval('herald.claim_no'), lease_until = now() + interval '1 minute'`,
		"delivered":           `status = 'delivered', called = true, finished_at = now()`,
		"dead, called":        `status = 'dead', called = true, finished_at = now()`,
		"rejected":            `status = 'rejected', reason = 'tool_not_found', finished_at = now()`,
		"rejected, not found": `status = 'rejected', reason = 'event_not_found', finished_at = now()`,
		"cancelled":           `status = 'cancelled', reason = 'operator', finished_at = now()`,
	} {
		if name == state {
			exec(t, s, `UPDATE herald.deliveries SET `+set+` WHERE id = $1`, id)
			if state == "held, in doubt" {
				exec(t, s, `INSERT INTO herald.attempts (delivery_id, number, started_at, stage) VALUES ($1, 1, now(), 'call')`, id)
			}
			return
		}
	}
	t.Fatalf("no state %q", state)
}

// TestReorgOfUnreadBlock: a check finds the event of a job in a block that the follower has not read. If the block that it
// then reads lacks the event, a delivery that was called is retracted. Otherwise a later reorg finds the delivery.
func TestReorgOfUnreadBlock(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	for name, settled := range map[string]uint64{"with confirmations": 0, "blocks are final when they are read": 200} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			r := newChainReader(t, s)
			r.settled = settled
			goes, stays, open := inBlock(feedback(1, 1), 101, 'a'), inBlock(feedback(2, 1), 101, 'a'), inBlock(feedback(3, 1), 101, 'a')
			for _, j := range []job.Job{goes, stays, open} {
				c := claim(t, s, acceptOne(t, s, j))
				heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: j, Source: c.Source}))
				if j.AgentID.Int64() < 3 {
					record(t, s, c, delivered)
				}
			}
			if done := r.read(100, 100, true); len(done.Vanished) > 0 {
				t.Errorf("ended before its block was read: %+v", done.Vanished)
			}
			done := r.read(101, 101, true, inBlock(feedback(2, 1), 101, 'b'))
			if len(done.Vanished) != 1 || done.Vanished[0].ID != goes.ID() || done.Vanished[0].Retraction == uuid.Nil {
				t.Errorf("%+v", done.Vanished)
			}
			if d := read(t, s, open.ID()); d.Status != outcome.Running {
				t.Errorf("the one that was not called is %s %s: its check decides", d.Status, d.Reason)
			}
			if done := r.read(102, 102, true); len(done.Vanished) > 0 {
				t.Errorf("%+v", done.Vanished)
			}
			want := 0
			if settled == 0 {
				want = 1
			}
			if done := r.read(101, 103, true); len(done.Vanished) != want || want == 1 && done.Vanished[0].ID != stays.ID() {
				t.Errorf("after the later reorg: %+v", done.Vanished)
			}
		})
	}
}

// TestReorgEnds: a reorg removes a delivery's event. A delivery that was not called is cancelled. One that was or may
// have been called gets a retraction. A running one is left until it ends.
func TestReorgEnds(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, tt := range []struct {
		state      string
		status     outcome.Status
		retraction bool
	}{
		{"queued", outcome.Cancelled, false},
		{"waiting", outcome.Cancelled, false},
		{"waiting, called", outcome.Cancelled, true},
		{"held", outcome.Cancelled, false},
		{"held, in doubt", outcome.Cancelled, true},
		{"running", outcome.Running, false},
		{"delivered", outcome.Delivered, true},
		{"dead, called", outcome.Dead, true},
		{"rejected", outcome.Rejected, false},
		{"rejected, not found", outcome.Cancelled, false},
		{"cancelled", outcome.Cancelled, false},
	} {
		t.Run(tt.state, func(t *testing.T) {
			emptyStore(t, s)
			r := newChainReader(t, s)
			stays, goes := inBlock(feedback(1, 1), 100, 'a'), inBlock(feedback(1, 2), 101, 'a')
			r.read(100, 101, true, stays, goes)
			bring(t, s, goes.ID(), tt.state)
			if done := r.read(101, 101, false); len(done.Vanished) != 0 {
				t.Errorf("ended before the chain was read to its head: %+v", done.Vanished)
			}

			done := r.read(102, 102, true)
			d := read(t, s, goes.ID())
			if d.Status != tt.status {
				t.Errorf("it is %s %s", d.Status, d.Reason)
			}
			if kept := read(t, s, stays.ID()); kept.Status != outcome.Queued {
				t.Errorf("what was not replaced is %s", kept.Status)
			}
			if tt.state == "running" {
				if len(done.Vanished) != 0 {
					t.Errorf("a running one ended: %+v", done.Vanished)
				}
				bring(t, s, goes.ID(), "delivered")
				done, tt.retraction = r.read(103, 103, true), true
			}
			if len(done.Vanished) != 1 || done.Vanished[0].ID != goes.ID() || done.Vanished[0].Called != tt.retraction {
				t.Fatalf("vanished %+v", done.Vanished)
			}
			if id := done.Vanished[0].Retraction; tt.retraction {
				retraction := read(t, s, id)
				if retraction.Key != goes.Retraction(goes.ID()).Key() || retraction.Kind != "FeedbackRevoked" || retraction.Status != outcome.Queued {
					t.Errorf("the retraction is %s %s %s", retraction.Key, retraction.Kind, retraction.Status)
				}
				if len(done.Tasks) != 1 || done.Tasks[0].ID != id {
					t.Errorf("tasks %+v", done.Tasks)
				}
			} else if id != uuid.Nil {
				t.Errorf("a retraction of what was not called: %s", id)
			}
			if tt.status == outcome.Cancelled && tt.state != "cancelled" && totals(t, s, 1)["cancelled"] != 1 {
				t.Errorf("totals %v", totals(t, s, 1))
			}
			if again := r.read(104, 104, true); len(again.Vanished) != 0 {
				t.Errorf("ended twice: %+v", again.Vanished)
			}
			if n := value[int](t, s, `SELECT reorgs::int FROM herald.chain_cursors`); n != 1 || r.c.Reorgs != 1 {
				t.Errorf("%d reorgs, %d known", n, r.c.Reorgs)
			}
		})
	}
}

// TestReorgOfFiltered: a reorg removes the event of a delivery that a filter ended at acceptance. No retraction is sent. If
// the event returns, or moves to another block, it is judged anew. Another event with the key gets its own delivery.
func TestReorgOfFiltered(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := newChainReader(t, s)
	const why = "rule 1 of the default policy skips the event"
	readOne := func(from, to uint64, filter string, jobs ...job.Job) Advanced {
		t.Helper()
		a := Advance{From: from, To: to, Head: to, AtHead: true, Anchors: []cursor.Anchor{{Number: to}}}
		for _, j := range jobs {
			a.Intakes = append(a.Intakes, ledger.Intake{Job: j, Filtered: filter})
		}
		done, err := s.AdvanceCursors(t.Context(), []*cursor.Cursor{&r.c}, a)
		heraldtest.Must(t, err)
		return done
	}
	is := func(j job.Job, status outcome.Status, reason outcome.Reason) {
		t.Helper()
		if d := read(t, s, j.ID()); d.Status != status || d.Reason != reason || d.Attempts != 0 {
			t.Errorf("%s is %s %s after %d attempts", d.Key, d.Status, d.Reason, d.Attempts)
		}
	}
	goes, moves, permitted, replaced := inBlock(feedback(1, 1), 101, 'a'), inBlock(feedback(2, 1), 101, 'a'), inBlock(feedback(3, 1), 101, 'a'), inBlock(feedback(4, 1), 101, 'a')
	all := []job.Job{goes, moves, permitted, replaced}
	done := readOne(100, 101, why, all...)
	for i, j := range all {
		is(j, outcome.Skipped, outcome.Filtered)
		if a := done.Answers[i]; a.Verdict != ledger.Accepted || a.Status != outcome.Skipped {
			t.Errorf("%+v", a)
		}
	}
	if d := read(t, s, goes.ID()); d.Error != why || len(done.Tasks) != 0 || totals(t, s, 1)["skipped"] != 1 {
		t.Errorf("%+v, tasks %v, totals %v", d, done.Tasks, totals(t, s, 1))
	}

	other := inBlock(feedback(4, 1), 101, 'b')
	other.Tag1, other.TransactionHash = "other", common.Hash{0xfe}
	done = readOne(101, 101, why, inBlock(feedback(2, 1), 101, 'b'), other)
	is(goes, outcome.Cancelled, outcome.Reorg)
	is(moves, outcome.Skipped, outcome.Filtered)
	is(replaced, outcome.Cancelled, outcome.Reorg)
	if d, err := s.DeliveryByKey(t.Context(), replaced.Key()); err != nil || d.ID == replaced.ID() || d.Reason != outcome.Filtered {
		t.Errorf("%+v, %v", d, err)
	}
	if len(done.Tasks) != 0 || slices.ContainsFunc(done.Vanished, func(v ledger.Vanished) bool { return v.Called || v.Retraction != uuid.Nil }) {
		t.Errorf("%+v", done)
	}
	readOne(102, 102, "", inBlock(feedback(1, 1), 102, 'b'), inBlock(feedback(3, 1), 102, 'b'))
	is(goes, outcome.Queued, "")
	is(permitted, outcome.Queued, "")
	readOne(102, 103, "", inBlock(feedback(2, 1), 103, 'c'))
	is(moves, outcome.Queued, "")
}

// TestReorgMoves: a delivery whose event is also on the new branch keeps its id and gets the event's new position, in
// any state.
func TestReorgMoves(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, state := range []string{"queued", "waiting", "waiting, called", "held", "running", "delivered", "rejected"} {
		t.Run(state, func(t *testing.T) {
			emptyStore(t, s)
			r := newChainReader(t, s)
			first := inBlock(feedback(1, 1), 101, 'a')
			first.Action.TimeoutMs = 7000 // set by a producer
			accept(t, s, ledger.Intake{Job: first})
			r.read(100, 101, true, inBlock(feedback(1, 1), 101, 'a'))
			bring(t, s, first.ID(), state)
			moved := inBlock(feedback(1, 1), 102, 'b')
			done := r.read(101, 102, true, moved)
			if done.Answers[0].ID != first.ID() || len(done.Vanished) != 0 {
				t.Fatalf("%+v", done)
			}
			var got job.Job
			d := read(t, s, first.ID())
			heraldtest.Must(t, json.Unmarshal(d.Job, &got))
			if got.EventSum() != moved.EventSum() || got.Timestamp != 102 || got.Action.TimeoutMs != 7000 {
				t.Errorf("the job is %+v", got)
			}
			if r.read(103, 103, true); read(t, s, first.ID()).Status != d.Status {
				t.Errorf("it was %s and ended as %s", d.Status, read(t, s, first.ID()).Status)
			}
		})
	}
}

// TestReorgGivesKeyAway: a reorg removes an event, and another event uses its index. If the agent was not called, the
// delivery gets the other event. If it was, or the delivery has ended, the other event gets a delivery of its own.
func TestReorgGivesKeyAway(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for state, own := range map[string]bool{"queued": false, "waiting": false, "held": false, "rejected, not found": false,
		"waiting, called": true, "running": true, "delivered": true, "rejected": true, "cancelled": true} {
		for _, ended := range []bool{false, true} {
			t.Run(state+map[bool]string{true: ", ended"}[ended], func(t *testing.T) {
				emptyStore(t, s)
				r := newChainReader(t, s)
				first := inBlock(feedback(1, 1), 101, 'a')
				r.read(100, 101, true, first)
				bring(t, s, first.ID(), state)
				from := uint64(101)
				if ended {
					r.read(101, 102, true)
					from = 103
				}
				other := inBlock(feedback(1, 1), 103, 'b')
				other.Tag1, other.TransactionHash = "other", common.Hash{0xfe}
				done := r.read(from, 103, true, other)
				a := done.Answers[0]
				d := read(t, s, first.ID())
				if !own {
					var got job.Job
					if err := json.Unmarshal(d.Job, &got); err != nil || a.ID != first.ID() || got.EventSum() != other.EventSum() || d.Status.Final() {
						t.Errorf("%+v, %s with %+v", a, d.Status, got)
					}
					return
				}
				if a.Verdict != ledger.Accepted || a.ID == first.ID() || a.Key != other.Key() {
					t.Fatalf("%+v", a)
				}
				if d.Key != first.Key()+"~"+first.ID().String() || !d.Status.Final() && state != "running" {
					t.Errorf("the first one is %s, with the key %s", d.Status, d.Key)
				}
				if d, err := s.DeliveryByKey(t.Context(), first.Key()); err != nil || d.ID != a.ID {
					t.Errorf("the key is held by %s, %v", d.ID, err)
				}
				if again := r.read(104, 104, true, other); again.Answers[0].Verdict != ledger.Known || again.Answers[0].ID != a.ID {
					t.Errorf("once more: %+v", again.Answers[0])
				}
			})
		}
	}
}

// TestBindAfterALostKey: while a worker checks a delivery, a reorg gives its key to another event. The worker cannot bind
// the delivery to that event, because the agent would receive it twice.
func TestBindAfterALostKey(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := newChainReader(t, s)
	first, other := inBlock(feedback(1, 1), 101, 'a'), inBlock(feedback(1, 1), 102, 'b')
	other.Tag1, other.TransactionHash = "other", common.Hash{0xfe}
	c := claim(t, s, r.read(100, 101, true, first).Tasks[0])
	r.read(101, 102, true, other)
	if err := s.Bind(t.Context(), c, ledger.Binding{Job: other, Source: c.Source}); !errors.Is(err, ledger.ErrNewHint) {
		t.Fatalf("the delivery was bound: %v", err)
	}
	rec := record(t, s, c, ledger.Outcome{Status: outcome.Waiting, Reason: outcome.NotConfirmed, Delay: time.Hour, Task: true, Free: true, Undecided: true, Stage: "check"})
	if !rec.Rechecked || !claim(t, s, rec.Next[0]).HasLostKey() {
		t.Errorf("%+v", rec)
	}
}

// TestReorgReturns: an event that returns after its delivery ended is delivered again. It gets a new id if the agent
// may have received a retraction; otherwise the delivery continues as if the event had never disappeared.
func TestReorgReturns(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, tt := range []struct {
		state      string
		retraction string // state of the retraction when the event returns; empty: none
		verdict    ledger.Verdict
		same       bool           // the delivery keeps its id
		withdrawn  bool           // the retraction is skipped, because the agent cannot have received it
		status     outcome.Status // of the delivery in the answer
	}{
		{"queued", "", ledger.Accepted, true, false, outcome.Queued},
		{"rejected", "", ledger.Known, true, false, outcome.Rejected},
		{"rejected, not found", "", ledger.Accepted, true, false, outcome.Queued},
		{"cancelled", "", ledger.Known, true, false, outcome.Cancelled},
		{"delivered", "waiting", ledger.Known, true, true, outcome.Delivered},
		{"delivered", "rejected, not found", ledger.Known, true, false, outcome.Delivered},
		{"delivered", "running", ledger.Accepted, false, false, outcome.Queued},
		{"delivered", "waiting, called", ledger.Accepted, false, false, outcome.Queued},
		{"delivered", "delivered", ledger.Accepted, false, false, outcome.Queued},
		{"waiting, called", "queued", ledger.Accepted, true, true, outcome.Queued},
		{"waiting, called", "delivered", ledger.Accepted, false, false, outcome.Queued},
		{"held, in doubt", "queued", ledger.Accepted, true, true, outcome.Queued},
		{"held, in doubt", "delivered", ledger.Accepted, false, false, outcome.Queued},
	} {
		t.Run(tt.state+"/"+tt.retraction, func(t *testing.T) {
			emptyStore(t, s)
			r := newChainReader(t, s)
			first := inBlock(feedback(1, 1), 101, 'a')
			r.read(100, 101, true, first)
			bring(t, s, first.ID(), tt.state)
			done := r.read(101, 102, true)
			if made := done.Vanished[0].Retraction != uuid.Nil; made != (tt.retraction != "") {
				t.Fatalf("%+v", done.Vanished)
			}
			var before ledger.Delivery
			if tt.retraction != "" {
				bring(t, s, done.Vanished[0].Retraction, tt.retraction)
				before = read(t, s, done.Vanished[0].Retraction)
			}
			back := inBlock(feedback(1, 1), 103, 'b')
			a := r.read(103, 103, true, back).Answers[0]
			if a.Verdict != tt.verdict || a.Key != back.Key() || (a.ID == first.ID()) != tt.same || a.Status != tt.status {
				t.Errorf("%+v", a)
			}
			if d := read(t, s, a.ID); d.Status != tt.status {
				t.Errorf("it is %s %s", d.Status, d.Reason)
			}
			if tt.retraction != "" {
				d := read(t, s, done.Vanished[0].Retraction)
				if tt.withdrawn {
					before.Status, before.Reason = outcome.Skipped, outcome.MinedAgain
				}
				if d.Status != before.Status || d.Reason != before.Reason || tt.withdrawn && totals(t, s, 1)["skipped"] != 1 {
					t.Errorf("the retraction is %s %s; totals %v", d.Status, d.Reason, totals(t, s, 1))
				}
			}
			if again := r.read(104, 104, true); len(again.Vanished) != 0 {
				t.Errorf("%+v", again.Vanished)
			}
		})
	}
}

// TestSettledEventsAreFoundAgain: settled blocks may be read again, together with replaced blocks above them. Their
// events count as present on the chain.
func TestSettledEventsAreFoundAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := newChainReader(t, s)
	stays, goes := inBlock(feedback(1, 1), 101, 'a'), inBlock(feedback(1, 2), 105, 'a')
	r.read(100, 105, true, stays, goes)
	again := Advance{From: 100, To: 106, Head: 106, Settled: 103, AtHead: true, Intakes: []ledger.Intake{{Job: stays}}}
	done, err := s.AdvanceCursors(t.Context(), []*cursor.Cursor{&r.c}, again)
	heraldtest.Must(t, err)
	if len(done.Vanished) != 1 || done.Vanished[0].ID != goes.ID() || read(t, s, stays.ID()).Status != outcome.Queued {
		t.Errorf("%+v, the other one is %s", done.Vanished, read(t, s, stays.ID()).Status)
	}
}

// TestSettledEvents: no events are remembered of blocks that no reorg is expected to replace.
func TestSettledEvents(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := newChainReader(t, s)
	left := func() int { return value[int](t, s, `SELECT count(*)::int FROM herald.chain_events`) }
	a := Advance{From: 100, To: 105, Head: 105, Settled: 102}
	for i := range 6 {
		a.Intakes = append(a.Intakes, ledger.Intake{Job: inBlock(feedback(1, i+1), uint64(100+i), 'a')})
	}
	if _, err := s.AdvanceCursors(t.Context(), []*cursor.Cursor{&r.c}, a); err != nil {
		t.Fatal(err)
	}
	if n := left(); n != 3 {
		t.Errorf("%d of blocks 103 to 105 are remembered", n)
	}
	if _, err := s.AdvanceCursors(t.Context(), []*cursor.Cursor{&r.c}, Advance{From: 106, To: 106, Head: 106, Settled: 104}); err != nil {
		t.Fatal(err)
	}
	if n := left(); n != 1 {
		t.Errorf("%d of block 105 are remembered", n)
	}
	c, err := s.OpenCursor(t.Context(), r.c.Key, 0, nil)
	if err != nil || c.Settled != 104 || c.Next != 107 {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestReorgAgainstClaims: a worker claims a delivery while a reorg moves its event, and checks the chain at the old
// position. This does not end the delivery: its event is checked again at the new position.
func TestReorgAgainstClaims(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := newChainReader(t, s)
	next, old := uint64(101), 0
	for round := range 40 {
		first := inBlock(feedback(round, 1), next, 'a')
		task := r.read(next, next, true, first).Tasks[0]
		exec(t, s, `UPDATE herald.deliveries SET called = $2 WHERE id = $1`, task.ID, round%2 == 0)
		moved := inBlock(feedback(round, 1), next+1, 'b')
		var c *ledger.Claim
		if round < 4 {
			c = claim(t, s, task)
			r.read(next, next+1, true, moved)
		} else {
			claimed := make(chan *ledger.Claim, 1)
			go func() {
				c, err := s.Claim(t.Context(), task.ID, task.N, time.Minute)
				if err != nil {
					t.Error(err)
				}
				claimed <- c
			}()
			r.read(next, next+1, true, moved)
			if c = <-claimed; c == nil {
				t.Fatal("the delivery was not claimed")
			}
		}
		if c.Job.EventSum() != moved.EventSum() {
			old++
			o := ledger.Outcome{Status: outcome.Rejected, Reason: outcome.EventNotFound, Stage: "check", Undecided: true}
			if rec := record(t, s, c, o); !rec.Rechecked || len(rec.Next) != 1 || claim(t, s, rec.Next[0]).Job.EventSum() != moved.EventSum() {
				t.Errorf("round %d: %+v", round, rec)
			}
		}
		next += 2
	}
	if old < 4 {
		t.Errorf("%d claims had the old place", old)
	}
	// If the event is not at the new position either, the delivery is rejected.
	last := inBlock(feedback(99, 1), next, 'a')
	c := claim(t, s, r.read(next, next, true, last).Tasks[0])
	record(t, s, c, ledger.Outcome{Status: outcome.Rejected, Reason: outcome.EventNotFound, Stage: "check", Undecided: true})
	if d := read(t, s, last.ID()); d.Status != outcome.Rejected {
		t.Errorf("%s %s", d.Status, d.Reason)
	}
	exec(t, s, `UPDATE herald.deliveries SET called = true WHERE id = $1`, last.ID())
	if a := r.read(next, next+1, true, inBlock(feedback(99, 1), next+1, 'b')).Answers[0]; a.Verdict != ledger.Accepted || a.ID != last.ID() {
		t.Errorf("read again at another place: %+v", a)
	}
}

// TestOrphanedBlock: while blocks that a reorg replaced are not all read again, the cursor has the newest one with an
// event, for another process that continues.
func TestOrphanedBlock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := newChainReader(t, s)
	first, second := inBlock(feedback(1, 1), 101, 'a'), inBlock(feedback(2, 1), 103, 'a')
	r.read(100, 104, true, first, second)
	for _, tt := range []struct {
		read func()
		want uint64
	}{{func() {}, 0}, {func() { r.read(101, 101, false, first) }, 103}, {func() { r.read(102, 103, false) }, 103},
		{func() { r.read(104, 105, true) }, 0}} {
		tt.read()
		c, err := s.OpenCursor(t.Context(), r.c.Key, 100, nil)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "the newest orphaned block", c.Orphaned, tt.want)
	}
}
