package records_test

import (
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestAPITokens: the list has the hash and the end of each token. A use is noted at most once a minute, and not of an
// expired token.
func TestAPITokens(t *testing.T) {
	t.Parallel()
	s, ctx := newStore(t), t.Context()
	past := time.Now().Add(-time.Second)
	for _, token := range []records.APIToken{{ID: "t1", Name: "indexer\x00", Scopes: []string{"enqueue"}, Hash: []byte("h1")},
		{ID: "t2", Name: "over", Scopes: []string{"read"}, Hash: []byte("h2"), ExpiresAt: &past}} {
		heraldtest.Must(t, s.AddAPIToken(ctx, token))
	}
	again := records.APIToken{ID: "t1", Name: "again", Scopes: []string{"read"}, Hash: []byte("h3")}
	heraldtest.Fails(t, "an id that is used", s.AddAPIToken(ctx, again))
	lastUse := func() *time.Time {
		return value[*time.Time](t, s, `SELECT last_used_at FROM herald.api_tokens WHERE id = 't1'`)
	}
	use := func(id string) { heraldtest.Must(t, s.NoteUse(ctx, id)) }
	use("t2")
	use("t1")
	first := lastUse()
	if use("t1"); first == nil || !lastUse().Equal(*first) {
		t.Errorf("noted at %s, and again", first)
	}
	heraldtest.Must(t, s.RevokeAPIToken(ctx, "t1"))
	heraldtest.Fails(t, "the second time", s.RevokeAPIToken(ctx, "t1"), ledger.ErrNotFound)
	list, err := s.APITokens(ctx)
	if err != nil || len(list) != 2 || list[0].ID != "t2" || list[0].LastUsedAt != nil || list[1].RevokedAt == nil ||
		list[1].LastUsedAt == nil || !slices.Equal(list[1].Scopes, []string{"enqueue"}) || string(list[1].Hash) != "h1" {
		t.Errorf("%+v, %v", list, err)
	}
}
