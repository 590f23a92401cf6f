package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// TestRetractionPrecedesSuccessor: feedback was or may have been called, and another event takes its index. A
// retraction that names the feedback is sent before the new event, whether the new event's content differs or not.
func TestRetractionPrecedesSuccessor(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, state := range []string{"delivered", "waiting, called", "held, in doubt", "dead, called"} {
		for _, later := range []bool{false, true} { // the other event arrives after the first has disappeared
			for _, tag := range []string{"other", ""} {
				t.Run(state+map[bool]string{true: ", later"}[later]+" "+tag, func(t *testing.T) {
					emptyStore(t, s)
					s.StrictOrder = true
					r := newChainReader(t, s)
					first := inBlock(feedback(1, 1), 101, 'a')
					first.Tag1 = ""
					r.read(100, 101, true, first)
					exec(t, s, `UPDATE herald.deliveries SET handed_at = NULL`)
					bring(t, s, first.ID(), state)
					from := uint64(101)
					var tasks []ledger.Task
					if later {
						tasks = r.read(101, 102, true).Tasks
						from = 103
					}
					other := inBlock(feedback(1, 1), 103, 'b')
					other.Tag1, other.TransactionHash = tag, common.Hash{0xfe}
					done := r.read(from, 103, true, other)
					tasks = append(tasks, done.Tasks...)

					a := done.Answers[0]
					if a.Verdict != ledger.Accepted || a.ID == first.ID() {
						t.Fatalf("the other event: %+v", a)
					}
					if d := read(t, s, a.ID); d.Status != outcome.Waiting || d.Reason != outcome.BehindEarlier {
						t.Errorf("the other event is %s %s before the retraction ended", d.Status, d.Reason)
					}
					if len(tasks) != 1 {
						t.Fatalf("dispatched %+v", tasks)
					}
					c := claim(t, s, tasks[0])
					if c.Job.Retracts != first.ID().String() || c.Key != first.Retraction(first.ID()).Key() || c.Job.TransactionHash != first.TransactionHash {
						t.Errorf("the retraction is %s of %s", c.Key, c.Job.Retracts)
					}
					rec, err := s.Record(t.Context(), c, ledger.Outcome{Status: outcome.Delivered, Stage: "call", Called: true, AgentOK: true})
					if err != nil || len(rec.Next) != 1 || rec.Next[0].ID != a.ID {
						t.Errorf("after the retraction: %+v, %v", rec.Next, err)
					}
					if n := value[int](t, s, `SELECT count(*)::int FROM herald.deliveries WHERE key LIKE '%#Retraction@%'`); n != 1 {
						t.Errorf("%d retractions", n)
					}
				})
			}
		}
	}
}

// TestBlockFlaps: nodes with two branches answer in turn, so that a block disappears and returns at each reading. The
// chain is read on. The event is retracted in the end, also if its block disappeared as often as it may be retracted.
func TestBlockFlaps(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, called := range map[string]bool{"no retraction is called": false, "each retraction is called": true} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			r := newChainReader(t, s)
			event := inBlock(feedback(1, 1), 101, 'a')
			id, block := r.read(100, 101, true, event).Answers[0].ID, uint64(102)
			for n := range maxRetractions + 2 {
				bring(t, s, id, "delivered")
				done := r.read(101, block, true)
				if len(done.Vanished) != 1 || (done.Vanished[0].Retraction != uuid.Nil) != (!called || n < maxRetractions) {
					t.Fatalf("round %d: %+v", n, done.Vanished)
				}
				if retraction := done.Vanished[0].Retraction; called && retraction != uuid.Nil {
					key := event.Retraction(id).Key()
					if n > 0 {
						key += fmt.Sprint(".", n+1)
					}
					if d := read(t, s, retraction); d.Key != key || d.ID != job.IDOf(key) || d.Status != outcome.Queued {
						t.Errorf("round %d: %s is %s", n, d.Key, d.Status)
					}
					bring(t, s, retraction, "delivered")
				}
				back := r.read(101, block+1, true, event).Answers[0]
				if isNew := called && n < maxRetractions; (back.Verdict == ledger.Accepted) != isNew || (back.ID != id) != isNew {
					t.Fatalf("round %d: the event that came back: %+v", n, back)
				}
				id, block = back.ID, block+2
			}
			bring(t, s, id, "delivered")
			if done := r.read(101, block, true); !called && read(t, s, done.Vanished[0].Retraction).Status != outcome.Queued {
				t.Errorf("%+v", done.Vanished)
			}
		})
	}
}

// TestReturnDuringRetraction: an event returns while a worker checks the retraction of its delivery, and gets a new one.
// The check may have read the chain before, so the retraction is checked again, and is not withdrawn.
func TestReturnDuringRetraction(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := newChainReader(t, s)
	event := inBlock(feedback(1, 1), 101, 'a')
	r.read(100, 101, true, event)
	bring(t, s, event.ID(), "delivered")
	c := claim(t, s, r.read(101, 102, true).Tasks[0])
	if a := r.read(101, 103, true, event).Answers[0]; a.Verdict != ledger.Accepted || a.ID == event.ID() {
		t.Errorf("%+v", a)
	}
	minedAgain := ledger.Outcome{Status: outcome.Skipped, Reason: outcome.MinedAgain, Stage: "check", Undecided: true}
	rec := record(t, s, c, minedAgain)
	if !rec.Rechecked || len(rec.Next) != 1 || rec.Next[0].ID != c.ID {
		t.Fatalf("%+v", rec)
	}
	if d, err := s.Delivery(t.Context(), event.ID()); err != nil || !d.HasLostKey() {
		t.Errorf("%+v, %v", d, err)
	}
	if rec := record(t, s, claim(t, s, rec.Next[0]), minedAgain); rec.Rechecked {
		t.Errorf("again: %+v", rec)
	}
}

// TestReturnWhileRetractionIsClaimed: an event returns while a worker claims the retraction of its delivery. The agent
// may be called with the retraction, so the event gets a new delivery.
func TestReturnWhileRetractionIsClaimed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := newChainReader(t, s)
	event := inBlock(feedback(1, 1), 101, 'a')
	r.read(100, 101, true, event)
	bring(t, s, event.ID(), "delivered")
	task := r.read(101, 102, true).Tasks[0]
	tx, err := s.Conns.Begin(t.Context())
	heraldtest.Must(t, err)
	rows, err := tx.Query(t.Context(), statements.Text("claim"), claimArgs([]uuid.UUID{task.ID}, []int{task.N}, lease, nil)...)
	heraldtest.Must(t, err)
	claims := 0
	heraldtest.Must(t, readClaims(rows, func(*ledger.Claim, error) { claims++ }))
	heraldtest.Equal(t, "claims", claims, 1)

	answer := make(chan ledger.Acceptance, 1)
	go func() { answer <- r.read(101, 103, true, event).Answers[0] }()
	awaitLockWaits(t, s, 1)
	heraldtest.Must(t, tx.Commit(t.Context()))
	if a := <-answer; a.Verdict != ledger.Accepted || a.ID == event.ID() {
		t.Errorf("%+v", a)
	}
}

// TestLateSuccessIsRetracted: a delivery that was cancelled by force, or died with its last lease, while its call
// succeeded counts as called. It is retracted when its event disappears.
func TestLateSuccessIsRetracted(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, end := range map[string]func(t *testing.T, s *Store, id uuid.UUID){
		"cancelled by force": func(t *testing.T, s *Store, id uuid.UUID) {
			if n, _, _, err := s.Cancel(t.Context(), []uuid.UUID{id}, true); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		},
		"its last lease ran out": func(t *testing.T, s *Store, id uuid.UUID) {
			exec(t, s, `UPDATE herald.deliveries SET lease_until = now() - interval '1 second'`)
			if n, dead, err := s.ExpireLeases(t.Context(), 10, 1); n != 1 || dead != 1 || err != nil {
				t.Fatal(n, dead, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			r := newChainReader(t, s)
			event := inBlock(feedback(1, 1), 101, 'a')
			c := claim(t, s, r.read(100, 101, true, event).Tasks[0])
			end(t, s, event.ID())
			if _, err := s.Record(t.Context(), c, ledger.Outcome{Status: outcome.Delivered, Stage: "call", Called: true, AgentOK: true}); !errors.Is(err, ledger.ErrFenced) {
				t.Fatalf("the late success: %v", err)
			}
			if done := r.read(101, 102, true); len(done.Vanished) != 1 || !done.Vanished[0].Called || done.Vanished[0].Retraction == uuid.Nil {
				t.Errorf("%+v", done.Vanished)
			}
		})
	}
}

// TestRetractionAfterARefusedOne: an indexer's retraction names the feedback's delivery, because a check confirmed it.
// The next check refuses it, because the feedback is back in another block. If the feedback is gone again, the delivery
// gets a retraction of its own: the agent has none.
func TestRetractionAfterARefusedOne(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	c := claimBound(t, s)
	next := record(t, s, c, waiting(-time.Second)).Task
	sent := c.Job.Retraction(uuid.Nil)
	sent.Retracts, sent.TransactionHash = "", common.Hash{}
	named := sent
	named.Retracts = c.ID.String()
	_, tasks := accept(t, s, ledger.Intake{Job: sent, Source: ordinary})
	r := claim(t, s, tasks[0])
	heraldtest.Must(t, s.Bind(t.Context(), r, ledger.Binding{Job: named, Source: ordinary}))
	record(t, s, r, ledger.Outcome{Status: outcome.Rejected, Reason: outcome.EventNotFound, Stage: "check"})

	gone := ledger.Outcome{Status: outcome.Cancelled, Reason: outcome.Reorg, Stage: "check", Gone: &ledger.Gone{}}
	heraldtest.Equal(t, "retractions to send", len(record(t, s, claim(t, s, *next), gone).Next), 1)
}
