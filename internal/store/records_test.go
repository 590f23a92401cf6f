package store

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
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
			if err != nil || len(list) != 1 || list[0].ID != c.ID || !list[0].Job.SameEvent(event) || len(list[0].Hints) != 2 {
				t.Fatalf("%+v, %v", list, err)
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

// TestWorkers: a worker is listed with its last record until it is removed or silent for WorkerGone. Records of a day
// ago are deleted.
func TestWorkers(t *testing.T) {
	t.Parallel()
	s, ctx := newStore(t), t.Context()
	a := Worker{ID: uuid.New(), Host: "a", Keys: []uint32{1, math.MaxUint32}, SealsWith: math.MaxUint32}
	b := Worker{ID: uuid.New(), Host: "b", Keys: []uint32{}}
	list := func(want ...Worker) {
		t.Helper()
		got, err := s.Workers(ctx)
		if err != nil {
			t.Fatal(err)
		}
		heraldtest.Equal(t, "the running workers", got, want)
	}
	report := func(w Worker) {
		t.Helper()
		if err := s.ReportWorker(ctx, w); err != nil {
			t.Fatal(err)
		}
	}
	report(b)
	report(Worker{ID: a.ID, Host: "before", Keys: []uint32{7}})
	report(a)
	list(a, b)
	if !a.HasKey(math.MaxUint32) || a.HasKey(7) {
		t.Errorf("the keys of %+v", a)
	}
	exec(t, s, `UPDATE herald.workers SET seen_at = now() - interval '25 hours' WHERE id = $1`, b.ID)
	list(a)
	report(a)
	if n := value[int64](t, s, `SELECT count(*) FROM herald.workers`); n != 1 {
		t.Errorf("%d records", n)
	}
	if err := s.RemoveWorker(ctx, a.ID); err != nil {
		t.Fatal(err)
	}
	list()
}

// TestAPITokens: a token is good with its own hash until it expires or is revoked. Each use is noted at most once a
// minute.
func TestAPITokens(t *testing.T) {
	t.Parallel()
	s, ctx := newStore(t), t.Context()
	past := time.Now().Add(-time.Second)
	for _, token := range []APIToken{{ID: "t1", Name: "indexer\x00", Scopes: []string{"enqueue"}, Hash: []byte("h1")},
		{ID: "t2", Name: "over", Scopes: []string{"read"}, Hash: []byte("h2"), ExpiresAt: &past}} {
		if err := s.AddAPIToken(ctx, token); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AddAPIToken(ctx, APIToken{ID: "t1", Name: "again", Scopes: []string{"read"}, Hash: []byte("h3")}); err == nil {
		t.Error("an id is used twice")
	}
	lastUse := func() *time.Time {
		return value[*time.Time](t, s, `SELECT last_used_at FROM herald.api_tokens WHERE id = 't1'`)
	}
	good := func(id, hash string, want error) {
		t.Helper()
		if token, err := s.GoodAPIToken(ctx, id, []byte(hash)); !errors.Is(err, want) || err == nil && (token.ID != id || !slices.Equal(token.Scopes, []string{"enqueue"})) {
			t.Errorf("%s with %s: %+v, %v", id, hash, token, err)
		}
	}
	good("t1", "h2", ErrNotFound)
	good("t2", "h2", ErrNotFound)
	if used := lastUse(); used != nil {
		t.Errorf("a refused use is noted: %s", used)
	}
	good("t1", "h1", nil)
	first := lastUse()
	if good("t1", "h1", nil); first == nil || !lastUse().Equal(*first) {
		t.Errorf("noted at %s, and again", first)
	}
	for _, want := range []error{nil, ErrNotFound} {
		if err := s.RevokeAPIToken(ctx, "t1"); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	good("t1", "h1", ErrNotFound)
	list, err := s.APITokens(ctx)
	if err != nil || len(list) != 2 || list[0].ID != "t2" || list[1].RevokedAt == nil || list[1].LastUsedAt == nil {
		t.Errorf("%+v, %v", list, err)
	}
}
