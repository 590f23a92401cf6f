package store

import (
	"testing"

	"github.com/agentherald/herald/internal/job"
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
			if err := s.Bind(t.Context(), c, Binding{Job: event}); err != nil {
				t.Fatal(err)
			}
			record(t, s, c, delivered)
			next := inBlock(feedback(42, 1), 901, 'b')
			next.TransactionHash, next.Tag1 = common.Hash{0xee}, "other"
			accept(t, s, Intake{Job: next, Source: ordinary}, forged(positioned(1, 3, "a", other)))

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
			if err != nil || (now.ID != c.ID) != replaced || read(t, s, c.ID).Status != Delivered {
				t.Errorf("the key has %+v, %v", now, err)
			}
			exec(t, s, `UPDATE herald.hints SET review_at = now() - interval '1 hour' WHERE review_at IS NOT NULL`)
			if left, err := s.TakeReviews(t.Context(), 10); err != nil || len(left) > 0 {
				t.Errorf("after the end: %+v, %v", left, err)
			}
		})
	}
}
