package records_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestAPITokens: a token is good with its own hash until it expires or is revoked. Each use is noted at most once a
// minute.
func TestAPITokens(t *testing.T) {
	t.Parallel()
	s, ctx := newStore(t), t.Context()
	past := time.Now().Add(-time.Second)
	for _, token := range []records.APIToken{{ID: "t1", Name: "indexer\x00", Scopes: []string{"enqueue"}, Hash: []byte("h1")},
		{ID: "t2", Name: "over", Scopes: []string{"read"}, Hash: []byte("h2"), ExpiresAt: &past}} {
		heraldtest.Must(t, s.AddAPIToken(ctx, token))
	}
	if err := s.AddAPIToken(ctx, records.APIToken{ID: "t1", Name: "again", Scopes: []string{"read"}, Hash: []byte("h3")}); err == nil {
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
	good("t1", "h2", store.ErrNotFound)
	good("t2", "h2", store.ErrNotFound)
	if used := lastUse(); used != nil {
		t.Errorf("a refused use is noted: %s", used)
	}
	good("t1", "h1", nil)
	first := lastUse()
	if good("t1", "h1", nil); first == nil || !lastUse().Equal(*first) {
		t.Errorf("noted at %s, and again", first)
	}
	for _, want := range []error{nil, store.ErrNotFound} {
		if err := s.RevokeAPIToken(ctx, "t1"); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	good("t1", "h1", store.ErrNotFound)
	list, err := s.APITokens(ctx)
	if err != nil || len(list) != 2 || list[0].ID != "t2" || list[1].RevokedAt == nil || list[1].LastUsedAt == nil {
		t.Errorf("%+v, %v", list, err)
	}
}
