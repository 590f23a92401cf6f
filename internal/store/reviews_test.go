package store

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// TestReviews: a job that differs from the event of a delivered row makes one review due. Each round postpones it until
// it ends. An event that is still there leaves the delivery unchanged. Another event takes over its key.
func TestReviews(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	for name, replaced := range map[string]bool{"the same event": false, "another event": true} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			event := inBlock(feedback(42, 1), 900, 'a')
			c := claim(t, s, acceptOne(t, s, event))
			if err := s.Bind(t.Context(), c, ledger.Binding{Job: event}); err != nil {
				t.Fatal(err)
			}
			record(t, s, c, delivered)
			next := inBlock(feedback(42, 1), 901, 'b')
			next.TransactionHash, next.Tag1 = common.Hash{0xee}, "other"
			accept(t, s, ledger.Intake{Job: next, Source: ordinary}, forged(positioned(1, 3, "a", other)))

			list, err := s.TakeReviews(t.Context(), 10)
			if err != nil || len(list) != 1 || list[0].ID != c.ID || !list[0].Job.SameEvent(event) || len(list[0].Hints) != 2 || !list[0].Recent {
				t.Fatalf("%+v, %v", list, err)
			}
			exec(t, s, `UPDATE herald.hints
				SET review_at = review_at - interval '1 hour', created_at = created_at - interval '1 hour'`)
			if list, err = s.TakeReviews(t.Context(), 10); err != nil || len(list) != 1 || list[0].Recent {
				t.Fatalf("an hour later: %+v, %v", list, err)
			}
			if again, err := s.TakeReviews(t.Context(), 10); err != nil || len(again) > 0 {
				t.Errorf("another worker takes %+v, %v", again, err)
			}
			var found *job.Job
			if replaced {
				found = &next
			}
			tasks, err := s.EndReview(t.Context(), list[0], found)
			if err != nil || len(tasks) > 0 != replaced {
				t.Fatalf("%+v, %v", tasks, err)
			}
			now, err := s.DeliveryByKey(t.Context(), event.Key())
			if err != nil || (now.ID != c.ID) != replaced || read(t, s, c.ID).Status != outcome.Delivered {
				t.Errorf("the key has %+v, %v", now, err)
			}
			exec(t, s, `UPDATE herald.hints SET review_at = now() - interval '1 hour' WHERE review_at IS NOT NULL`)
			if left, err := s.TakeReviews(t.Context(), 10); err != nil || len(left) > 0 {
				t.Errorf("after the end: %+v, %v", left, err)
			}
		})
	}
}

// TestReturnOfACalledEvent: the chain has no follower. An event was gone after its agent was called, and has returned.
// Each repeated job requests one review, which queues the event again, with the action of its sender. It gets a new id
// if the agent may know the retraction, because the agent would take the old one for a repetition.
func TestReturnOfACalledEvent(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	minedAgain := ledger.Outcome{Status: outcome.Skipped, Reason: outcome.MinedAgain, Stage: "check"}
	for name, tt := range map[string]struct {
		retraction []ledger.Outcome // of its attempts; the review is made after each
		newID      bool
	}{
		"the agent got the retraction":           {[]ledger.Outcome{delivered}, true},
		"the retraction was not called":          {[]ledger.Outcome{minedAgain}, false},
		"the retraction may have been processed": {[]ledger.Outcome{waiting(-time.Second), minedAgain}, true},
	} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			first := claimBound(t, s)
			first = claim(t, s, *record(t, s, first, waiting(-time.Second)).Task)
			retraction := record(t, s, first, ledger.Outcome{Status: outcome.Cancelled, Reason: outcome.Reorg, Stage: "check", Gone: &ledger.Gone{}}).Next[0]
			back := inBlock(feedback(1, 1), 902, 'b')
			back.Action.ToolName = "the default tool"
			for i, o := range tt.retraction {
				rec := record(t, s, claim(t, s, retraction), o)
				for range 2 {
					if out, _ := accept(t, s, ledger.Intake{Job: first.Job, Source: ordinary}); out[0].Verdict != ledger.Known || out[0].ID != first.ID {
						t.Fatalf("%+v", out[0])
					}
				}
				exec(t, s, `UPDATE herald.hints SET review_at = now() WHERE review_at IS NOT NULL`)
				list, err := s.TakeReviews(t.Context(), 10)
				if err != nil || len(list) != 1 || !list[0].Recent {
					t.Fatalf("%+v, %v", list, err)
				}
				tasks, err := s.EndReview(t.Context(), list[0], &back)
				if hasEnded := i == len(tt.retraction)-1; err != nil || len(tasks) > 0 != hasEnded {
					t.Fatalf("after attempt %d of the retraction: %+v, %v", i+1, tasks, err)
				}
				if rec.Task != nil {
					retraction = *rec.Task
				}
			}
			now, err := s.DeliveryByKey(t.Context(), back.Key())
			var stored job.Job
			heraldtest.Must(t, errors.Join(err, json.Unmarshal(now.Job, &stored)))
			if now.Status != outcome.Queued || (now.ID != first.ID) != tt.newID || stored.BlockNumber != 902 || stored.ActionSum() != first.Job.ActionSum() {
				t.Errorf("%+v, job %+v", now, stored)
			}
			if n := countHints(t, s); n != 1 {
				t.Errorf("%d hints", n)
			}
		})
	}
}

// TestRepeatedJobDuringReturn: a job of an event that had left the chain arrives again during a review, which did not
// find the event yet. Another review follows.
func TestRepeatedJobDuringReturn(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	c := claimBound(t, s)
	c = claim(t, s, *record(t, s, c, waiting(-time.Second)).Task)
	record(t, s, c, ledger.Outcome{Status: outcome.Cancelled, Reason: outcome.Reorg, Stage: "check", Gone: &ledger.Gone{}})
	accept(t, s, ledger.Intake{Job: c.Job, Source: ordinary})
	for _, jobs := range []int{2, 0} { // that arrive during the review
		list, err := s.TakeReviews(t.Context(), 10)
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		for range jobs {
			accept(t, s, ledger.Intake{Job: c.Job, Source: ordinary})
		}
		_, err = s.EndReview(t.Context(), list[0], nil)
		heraldtest.Must(t, err)
	}
	if list, err := s.TakeReviews(t.Context(), 10); err != nil || len(list) > 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
