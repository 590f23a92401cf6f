package store

import (
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

var (
	refuted = ledger.Outcome{Status: outcome.Rejected, Reason: "event_not_found", Stage: "check", Undecided: true}
	pending = ledger.Outcome{Status: outcome.Waiting, Reason: "not_confirmed", Stage: "check", Delay: time.Hour, Task: true, Free: true, Undecided: true}
)

// newVerifiedStore returns a store whose workers verify the events of the test's chain.
func newVerifiedStore(t *testing.T) *Store {
	t.Helper()
	s := newStore(t)
	heraldtest.Must(t, s.ReportVerified(t.Context(), []uint64{8453}))
	return s
}

// positioned returns a feedback of agent 42 in the given transaction, from a sender, with the tool that its action calls.
func positioned(index int, transaction byte, tool string, from ledger.Source) ledger.Intake {
	j := feedback(42, index)
	j.Action.ToolName = tool
	if transaction > 0 {
		j.TransactionHash = common.Hash{transaction}
	}
	return ledger.Intake{Job: j, Source: from}
}

func forged(in ledger.Intake) ledger.Intake {
	in.Job.Value = big.NewInt(1)
	return in
}

var (
	command  = ledger.Source{Name: ledger.SourceCommand, Trust: ledger.TrustDirect}
	redis    = ledger.Source{Name: ledger.SourceRedis, Trust: ledger.TrustOrdinary}
	ordinary = ledger.SourceToken("a", ledger.TrustOrdinary)
	other    = ledger.SourceToken("b", ledger.TrustOrdinary)
)

func countHints(t testing.TB, s *Store) int {
	t.Helper()
	return value[int](t, s, `SELECT count(*)::int FROM herald.hints`)
}

// TestHintsOfAKey checks the answer to a job for a known key, and how many hints the key has then.
func TestHintsOfAKey(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	called := func(c *ledger.Claim) {
		heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: c.Job, Source: c.Source}))
		record(t, s, c, waiting(time.Hour))
	}
	missed := func(c *ledger.Claim) { record(t, s, c, refuted) }
	for i, tt := range []struct {
		name  string
		first ledger.Intake
		move  func(*ledger.Claim) // nil: the delivery stays queued
		then  []ledger.Intake
		want  ledger.Verdict // for the last one
		kept  int
	}{
		{"the same", positioned(0, 1, "a", command), nil, []ledger.Intake{positioned(0, 1, "a", command)}, ledger.Known, 0},
		{"another position", positioned(0, 1, "a", command), nil, []ledger.Intake{positioned(0, 2, "a", command)}, ledger.Known, 2},
		{"no position", positioned(0, 1, "a", command), nil, []ledger.Intake{positioned(0, 0, "a", command)}, ledger.Known, 2},
		{"another content", positioned(0, 1, "a", command), nil, []ledger.Intake{forged(positioned(0, 1, "a", command))}, ledger.Known, 2},
		{"another action of an equal", positioned(0, 1, "a", command), nil, []ledger.Intake{positioned(0, 1, "b", command)}, ledger.Conflict, 0},
		{"another action and position of an equal", positioned(0, 1, "a", command), nil, []ledger.Intake{positioned(0, 2, "b", command)}, ledger.Known, 2},
		{"another action and no position of an equal", positioned(0, 1, "a", command), nil, []ledger.Intake{positioned(0, 0, "b", command)}, ledger.Conflict, 2},
		{"another action of an equal, after one without position", positioned(0, 0, "a", command), nil, []ledger.Intake{positioned(0, 2, "b", command)}, ledger.Conflict, 2},
		{"another action of a better one", positioned(0, 1, "a", ordinary), nil, []ledger.Intake{positioned(0, 1, "b", command)}, ledger.Known, 2},
		{"another action of a lesser one", positioned(0, 1, "a", command), nil, []ledger.Intake{positioned(0, 1, "b", ordinary)}, ledger.Known, 0},
		{"two of one token", positioned(0, 1, "a", command), nil,
			[]ledger.Intake{positioned(0, 2, "a", ordinary), positioned(0, 3, "a", ordinary), positioned(0, 4, "a", ordinary)}, ledger.Known, 3},
		{"the first one counts", positioned(0, 1, "a", ordinary), nil, []ledger.Intake{positioned(0, 2, "a", ordinary), positioned(0, 3, "a", ordinary)}, ledger.Known, 2},
		{"two of Redis", positioned(0, 1, "a", redis), nil, []ledger.Intake{positioned(0, 2, "a", redis), positioned(0, 3, "a", redis)}, ledger.Known, 2},
		{"two of each token", positioned(0, 1, "a", ordinary), nil,
			[]ledger.Intake{positioned(0, 2, "a", ordinary), positioned(0, 3, "a", other), positioned(0, 4, "a", other), positioned(0, 5, "a", other)}, ledger.Known, 4},
		{"eight", positioned(0, 1, "a", command), nil, manyPositions(2, 12, command), ledger.Known, 8},
		{"refuted ones make room", positioned(0, 1, "a", command), missed, manyPositions(2, 12, command), ledger.Known, 8},
		{"refuted, the same", positioned(0, 1, "a", command), missed, []ledger.Intake{positioned(0, 1, "a", command)}, ledger.Known, 0},
		{"refuted, another position", positioned(0, 1, "a", command), missed, []ledger.Intake{positioned(0, 2, "a", command)}, ledger.Accepted, 2},
		{"called, the same", positioned(0, 1, "a", command), called, []ledger.Intake{positioned(0, 1, "a", command)}, ledger.Known, 0},
		{"called, no position", positioned(0, 1, "a", command), called, []ledger.Intake{positioned(0, 0, "a", command)}, ledger.Known, 0},
		{"called, another position", positioned(0, 1, "a", command), called, []ledger.Intake{positioned(0, 2, "a", command)}, ledger.Known, 2},
		{"called, another action", positioned(0, 1, "a", command), called, []ledger.Intake{positioned(0, 1, "b", command)}, ledger.Conflict, 0},
	} {
		as := func(in ledger.Intake) ledger.Intake { in.Job.FeedbackIndex = uint64(i + 1); return in }
		exec(t, s, `DELETE FROM herald.hints`)
		exec(t, s, `UPDATE herald.deliveries SET status = 'cancelled', reason = 'operator', finished_at = now(), handed_at = NULL WHERE finished_at IS NULL`)
		_, tasks := accept(t, s, as(tt.first))
		if tt.move != nil {
			tt.move(claim(t, s, tasks[0]))
		}
		var last ledger.Acceptance
		for _, in := range tt.then {
			out, _ := accept(t, s, as(in))
			last = out[0]
		}
		if last.Verdict != tt.want || (last.Field == "action") != (tt.want == ledger.Conflict) {
			t.Errorf("%s: %+v", tt.name, last)
		}
		heraldtest.Equal(t, tt.name+": hints", countHints(t, s), tt.kept)
	}
}

func manyPositions(from, to byte, source ledger.Source) (list []ledger.Intake) {
	for n := from; n <= to; n++ {
		list = append(list, positioned(0, n, "a", source))
	}
	return list
}

// TestActionAfterAReorg: a job names another transaction than the event of a delivered delivery, and has another action.
// That is no conflict: when a reorg replaces the event by that of the job, the job's action is used.
func TestActionAfterAReorg(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	r := newChainReader(t, s)
	first, second := positioned(1, 1, "a", ordinary), positioned(1, 2, "b", other)
	_, tasks := accept(t, s, first)
	c := claim(t, s, tasks[0])
	heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: first.Job, Source: ordinary}))
	record(t, s, c, delivered)
	if out, _ := accept(t, s, second); out[0].Verdict != ledger.Known || len(out[0].Differs) != 1 {
		t.Errorf("%+v", out[0])
	}
	event := second.Job
	event.Action.ToolName = "default"
	next := read(t, s, r.read(100, 1000, true, event).Answers[0].ID)
	if next.ID == c.ID || !strings.Contains(string(next.Job), `"toolName": "b"`) {
		t.Errorf("%s", next.Job)
	}
}

// TestHintEndsAWait: a delivery waits for the event at one position, and a job names another one. It is checked at once.
// storetest has the hints that arrive during a check.
func TestHintEndsAWait(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	_, tasks := accept(t, s, positioned(1, 1, "a", command))
	record(t, s, claim(t, s, tasks[0]), pending)
	if _, again := accept(t, s, positioned(1, 2, "a", command)); len(again) != 1 || again[0].N != tasks[0].N+1 {
		t.Errorf("%+v", again)
	}
}

// TestFollowerBinds: the follower reads the event of a delivery whose job is false. The delivery gets the event, and its
// first job stays as a hint. A check that began before does not bind its result.
func TestFollowerBinds(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	r := newChainReader(t, s)
	false1 := forged(positioned(1, 1, "a", ordinary))
	false1.Job.IdentityRegistry = common.HexToAddress("0xaa")
	_, tasks := accept(t, s, false1)
	c := claim(t, s, tasks[0])
	event := inBlock(feedback(42, 1), 100, 'a')
	answer := r.read(100, 100, true, event).Answers[0]
	if answer.Verdict != ledger.Known || answer.ID != c.ID {
		t.Fatalf("%+v", answer)
	}
	if err := s.Bind(t.Context(), c, ledger.Binding{Job: c.Job}); !errors.Is(err, ledger.ErrNewHint) {
		t.Errorf("an older check binds its result: %v", err)
	}
	rec := record(t, s, c, refuted)
	backlog, err := s.Backlog(t.Context(), 10)
	if err != nil || !rec.Rechecked || len(backlog)+len(rec.Next) != 1 {
		t.Fatal(rec, backlog, err)
	}
	c = claim(t, s, append(backlog, rec.Next...)[0])
	hints, err := s.Hints(t.Context(), c)
	if err != nil || !c.Bound || !c.Job.SameEvent(event) || c.Agent() != ledger.AgentOf(event) || c.Source.Trust != ledger.TrustChain || len(hints) != 1 ||
		hints[0].Source != ordinary {
		t.Errorf("%+v, %+v, %v", c, hints, err)
	}
}

// TestReadResponseStaysNext: a response waits because two others to its agent are dispatched. It is the next one after
// them, although the chain follower reads its event while it waits.
func TestReadResponseStaysNext(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	r := newChainReader(t, s)
	var sent []ledger.Intake
	var events []job.Job
	for i := range 3 {
		event := inBlock(feedback(1, i+1), 101, 'a')
		event.Kind, event.Responder = job.KindResponseAppended, common.HexToAddress("0x77")
		events = append(events, event)
		event.BlockNumber, event.BlockHash = 0, common.Hash{}
		sent = append(sent, ledger.Intake{Job: event})
	}
	_, tasks := accept(t, s, sent...)
	r.read(100, 101, true, events...)
	if next := record(t, s, claim(t, s, tasks[0]), delivered).Next; len(tasks) != 2 || len(next) != 1 || next[0].ID != events[2].ID() {
		d := read(t, s, events[2].ID())
		t.Errorf("dispatched %d, then %+v; the third is %s %s", len(tasks), next, d.Status, d.Reason)
	}
}

// TestBindMovesTheAgent: the event is of another agent than the job named. The delivery joins that agent's backlog.
func TestBindMovesTheAgent(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	validation := func(agent int64, validator byte) job.Job {
		j := inBlock(feedback(1, 1), 900, 'a')
		j.Kind, j.AgentID, j.ValidatorAddress, j.RequestHash = job.KindValidationResponse, big.NewInt(agent), common.Address{validator}, common.Hash{9}
		j.TransactionHash = common.Hash{8}
		return j
	}
	c := claim(t, s, acceptOne(t, s, validation(7, 1)))
	event := validation(42, 2)
	if err := s.Bind(t.Context(), c, ledger.Binding{Job: event}); err != nil || c.Agent() != ledger.AgentOf(event) {
		t.Fatalf("%+v, %v", c.Agent(), err)
	}
	o := pending
	o.Rerouted = true
	rec := record(t, s, c, o)
	if !rec.Rechecked || len(rec.Next) != 1 {
		t.Fatalf("%+v", rec)
	}
	if c = claim(t, s, rec.Next[0]); !c.Bound || c.Agent() != ledger.AgentOf(event) {
		t.Errorf("%+v", c)
	}
	row := value[string](t, s, `SELECT concat(agent_id, ' ', order_key) FROM herald.deliveries WHERE id = $1`, c.ID)
	if want := "42 " + event.OrderKey(); row != want {
		t.Errorf("%s, want %s", row, want)
	}
}

// TestCalledRowIsBound: a check finds another event, or none, under the key of a delivery whose agent was called. The
// delivery ends and is retracted, and the other event gets a delivery of its own behind the retraction.
func TestCalledRowIsBound(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	for name, replaced := range map[string]bool{"another event": true, "no event": false} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			s.StrictOrder = true
			event := inBlock(feedback(42, 1), 900, 'a')
			c := claim(t, s, acceptOne(t, s, event))
			heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: event}))
			rec := record(t, s, c, waiting(-time.Second))
			c = claim(t, s, *rec.Task)
			if !c.Called || !c.Bound {
				t.Fatalf("%+v", c)
			}
			gone := ledger.Outcome{Status: outcome.Cancelled, Reason: "reorg", Stage: "check", Gone: &ledger.Gone{}}
			next := inBlock(feedback(42, 1), 901, 'b')
			next.TransactionHash, next.Tag1 = common.Hash{0xee}, "other"
			if replaced {
				gone.Gone.Next = &next
			}
			rec = record(t, s, c, gone)
			d := read(t, s, c.ID)
			if d.Status != outcome.Cancelled || d.Reason != "reorg" || len(rec.Next) == 0 {
				t.Fatalf("%+v, %+v", d, rec)
			}
			var retraction job.Job
			if err := json.Unmarshal(read(t, s, rec.Next[0].ID).Job, &retraction); err != nil || retraction.Retracts != c.ID.String() ||
				retraction.TransactionHash != event.TransactionHash {
				t.Errorf("%+v, %v", retraction, err)
			}
			now, err := s.DeliveryByKey(t.Context(), event.Key())
			if err != nil || (now.ID != c.ID) != replaced {
				t.Fatalf("the key has %+v, %v", now, err)
			}
			if replaced && (now.Status != outcome.Waiting || now.Reason != "behind_earlier" || d.Key != event.Key()+"~"+c.ID.String()) {
				t.Errorf("%s %s; the old one has the key %s", now.Status, now.Reason, d.Key)
			}
		})
	}
}

// TestUnverifiedJobIsTheContent: without verification, the first job is the content, and a job that differs is a conflict
// that names the field.
func TestUnverifiedJobIsTheContent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := claim(t, s, acceptOne(t, s, positioned(1, 1, "a", command).Job))
	for field, in := range map[string]ledger.Intake{"value": forged(positioned(1, 1, "a", command)), "action": positioned(1, 1, "b", command)} {
		if out, _ := accept(t, s, in); out[0].Verdict != ledger.Conflict || out[0].Field != field {
			t.Errorf("%s: %+v", field, out[0])
		}
	}
	if out, _ := accept(t, s, positioned(1, 2, "a", command)); out[0].Verdict != ledger.Known || countHints(t, s) != 0 || c.Verified {
		t.Errorf("another position: %+v, %d hints", out[0], countHints(t, s))
	}
}

// TestVerifiedIsStored: the fact that a chain is verified outlasts its worker. A worker that does not verify the chain
// deletes it once no other worker reports it.
func TestVerifiedIsStored(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	verified := func(index int) bool { return read(t, s, acceptOne(t, s, feedback(1, index)).ID).Verified }
	if err := s.ReportVerified(t.Context(), nil); err != nil || !verified(1) {
		t.Errorf("another worker reported it a moment ago: %v", err)
	}
	exec(t, s, `UPDATE herald.verified_chains SET seen_at = now() - interval '1 day'`)
	if !verified(2) {
		t.Error("no worker runs, and the chain is not verified")
	}
	if err := s.ReportVerified(t.Context(), []uint64{1}); err != nil || verified(3) {
		t.Errorf("the only worker does not verify the chain: %v", err)
	}
}
