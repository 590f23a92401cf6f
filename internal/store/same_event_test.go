package store

import (
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// otherEvent returns an ordinary sender's job of another event with the key of feedback(1, 1), with the tag "other".
func otherEvent(block uint64) ledger.Intake {
	j := inBlock(feedback(1, 1), block, 'b')
	j.TransactionHash, j.Tag1 = common.Hash{0xee}, "other"
	return ledger.Intake{Job: j, Source: ordinary}
}

// claimBound accepts the event of block 900, claims it and binds it.
func claimBound(t *testing.T, s *Store) *ledger.Claim {
	t.Helper()
	x := inBlock(feedback(1, 1), 900, 'a')
	c := claim(t, s, acceptOne(t, s, x))
	heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: x, Source: c.Source}))
	return c
}

// TestJobWithoutTransactionIsTheEvent: a job without a transaction was delivered while no worker verified its event. When
// the chain follower reads the event, the agent is not called again.
func TestJobWithoutTransactionIsTheEvent(t *testing.T) {
	t.Parallel()
	for name, bind := range map[string]bool{"never verified": false, "bound to its own job": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			if bind { // as Checker.Check does with HERALD_VERIFY_EVENT=off
				heraldtest.Must(t, s.ReportVerified(t.Context(), []uint64{8453}))
			}
			c := claim(t, s, acceptOne(t, s, feedback(1, 1)))
			if bind {
				heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: c.Job, Source: c.Source}))
			}
			record(t, s, c, delivered)
			heraldtest.Must(t, s.ReportVerified(t.Context(), []uint64{8453}))
			done := newChainReader(t, s).read(100, 101, true, inBlock(feedback(1, 1), 101, 'a'))
			if a := done.Answers[0]; a.Verdict != ledger.Known || a.ID != c.ID || len(done.Tasks) > 0 {
				t.Errorf("%+v, tasks %v", a, done.Tasks)
			}
		})
	}
}

// TestFollowerReadsOtherEventAfterUnverifiedCall: an agent was called for a job that no worker verified. The chain
// follower then reads another event with the key. It gets a delivery of its own, and the first one is retracted.
func TestFollowerReadsOtherEventAfterUnverifiedCall(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := claim(t, s, acceptOne(t, s, feedback(1, 1)))
	rec := record(t, s, c, waiting(-time.Second))
	heraldtest.Must(t, s.ReportVerified(t.Context(), []uint64{8453}))
	done := newChainReader(t, s).read(100, 101, true, otherEvent(101).Job)
	if a := done.Answers[0]; a.Verdict != ledger.Accepted || a.ID == c.ID || len(done.Tasks) != 2 {
		t.Errorf("%+v, tasks %v", a, done.Tasks)
	}
	if again, err := s.Claim(t.Context(), rec.Task.ID, rec.Task.N, lease); again != nil || err != nil {
		t.Errorf("the first delivery is claimed: %+v %v", again, err)
	}
}

// TestOtherEventAfterAnUnknownCall: the worker of an event died during the call, and the event is gone. A job of another
// event with the key does not get the delivery that the agent may know, but starts a review.
func TestOtherEventAfterAnUnknownCall(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	lapse(t, s, claimBound(t, s))
	c := next(t, s)
	if !c.Called || !c.InDoubt {
		t.Fatalf("%+v", c)
	}
	record(t, s, c, ledger.Outcome{Status: outcome.Cancelled, Reason: "reorg", Stage: "check", Gone: &ledger.Gone{}})
	out, _ := accept(t, s, otherEvent(901))
	if reviews, err := s.TakeReviews(t.Context(), 10); err != nil || len(reviews) != 1 || out[0].Verdict != ledger.Known {
		t.Errorf("%+v, reviews %v, %v", out[0], reviews, err)
	}
}

// TestReturnsAfterRetraction: an agent got the retraction of an event. The event is on the chain again, and a chain
// follower that never saw it reads it. It gets another id, because the agent would take the old one for a repetition.
func TestReturnsAfterRetraction(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	c := claimBound(t, s)
	c = claim(t, s, *record(t, s, c, waiting(-time.Second)).Task)
	rec := record(t, s, c, ledger.Outcome{Status: outcome.Cancelled, Reason: "reorg", Stage: "check", Gone: &ledger.Gone{}})
	record(t, s, claim(t, s, rec.Next[0]), delivered)
	a := newChainReader(t, s).read(900, 902, true, inBlock(feedback(1, 1), 902, 'b')).Answers[0]
	if a.Verdict != ledger.Accepted || a.ID == c.ID {
		t.Errorf("%+v", a)
	}
}

// TestHintDuringReview: a job arrives during the review of its key. Another review follows, which reads its position.
func TestHintDuringReview(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	c := claimBound(t, s)
	record(t, s, c, delivered)
	wrong := c.Job
	wrong.TransactionHash = common.Hash{0xdd}
	take := func(n int) []ledger.Review {
		t.Helper()
		exec(t, s, `UPDATE herald.hints SET review_at = now() WHERE review_at IS NOT NULL`)
		reviews, err := s.TakeReviews(t.Context(), 10)
		if err != nil || len(reviews) != n {
			t.Fatalf("%d reviews, want %d: %v", len(reviews), n, err)
		}
		return reviews
	}
	accept(t, s, ledger.Intake{Job: wrong, Source: other})
	first := take(1)
	if out, _ := accept(t, s, otherEvent(901)); out[0].Verdict != ledger.Known {
		t.Fatalf("%+v", out)
	}
	_, err := s.EndReview(t.Context(), first[0], nil)
	heraldtest.Must(t, err)
	second := take(1)
	if h := second[0].Hints[len(second[0].Hints)-1]; h.Refuted || h.Job.Tag1 != "other" {
		t.Errorf("%+v", h)
	}
	_, err = s.EndReview(t.Context(), second[0], nil)
	heraldtest.Must(t, err)
	take(0)
}

// TestClaimWhileOtherEventIsRead: a worker claims a delivery that was bound to an event, while the chain follower reads
// another event with its key. The worker may call the agent without another Bind, so the delivery keeps its event, and
// the other event gets a delivery of its own.
func TestClaimWhileOtherEventIsRead(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	x := inBlock(feedback(1, 1), 900, 'a')
	_, tasks := accept(t, s, ledger.Intake{Job: x, Source: ordinary})
	c := claim(t, s, tasks[0])
	heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: x, Source: ordinary}))
	record(t, s, c, ledger.Outcome{Status: outcome.Waiting, Reason: outcome.Throttled, Stage: "connect", Free: true})
	tasks, _, err := s.Due(t.Context(), 10)
	heraldtest.Must(t, err)

	tx := beginWith(t, s, `LOCK TABLE herald.hints IN SHARE MODE`) // the follower has read the delivery when it stops here
	answer := make(chan ledger.Acceptance, 1)
	go func() { answer <- newChainReader(t, s).read(100, 901, true, otherEvent(901).Job).Answers[0] }()
	awaitLockWaits(t, s, 1)
	c = claim(t, s, tasks[0])
	heraldtest.Must(t, tx.Rollback(t.Context()))
	if a := <-answer; a.Verdict != ledger.Accepted || a.ID == c.ID {
		t.Errorf("%+v", a)
	}
	record(t, s, c, delivered)
	if d := read(t, s, c.ID); !d.HasLostKey() || !strings.Contains(string(d.Job), x.TransactionHash.Hex()) {
		t.Errorf("%s %s", d.Key, d.Job)
	}
	heraldtest.Equal(t, "retractions", value[int](t, s, `SELECT count(*)::int FROM herald.history WHERE job ->> 'retracts' = $1`, c.ID.String()), 1)
}
