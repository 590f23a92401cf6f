package records_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestSigningKeys: of several workers that start together, one creates the first key. A rotation publishes the new key
// at once and expires the old ones later, never later than announced before. Expired keys are dropped.
func TestSigningKeys(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	list := func(want ...string) []records.SigningKey {
		t.Helper()
		keys, err := s.SigningKeys(ctx)
		if err != nil || !slices.EqualFunc(keys, want, func(k records.SigningKey, id string) bool { return k.ID == id }) {
			t.Fatalf("%+v, %v; want %v", keys, err, want)
		}
		return keys
	}
	list()
	var wg sync.WaitGroup
	added := make(chan string, 8)
	for i := range 8 {
		wg.Go(func() {
			id := string(rune('a' + i))
			done, err := s.AddFirstSigningKey(ctx, records.SigningKey{ID: id, Ciphertext: []byte("sealed " + id)})
			if err != nil {
				t.Error(err)
			}
			if done {
				added <- id
			}
		})
	}
	wg.Wait()
	close(added)
	first := <-added
	if k := list(first)[0]; string(k.Ciphertext) != "sealed "+first || k.RetiresAt != nil || k.ActivatesAt.After(k.CreatedAt) {
		t.Errorf("%+v", k)
	}
	if id, more := <-added; more {
		t.Errorf("%s too", id)
	}

	made, err := s.RotateSigningKey(ctx, records.SigningKey{ID: "n1", Ciphertext: []byte("x")}, time.Hour, 24*time.Hour)
	if err != nil || made.ActivatesAt.Sub(made.CreatedAt) != time.Hour || made.RetiresAt != nil {
		t.Fatalf("%+v, %v", made, err)
	}
	keys := list("n1", first)
	old := *keys[1].RetiresAt
	heraldtest.Equal(t, "the old one is kept for", old.Sub(made.ActivatesAt), 24*time.Hour)
	_, err = s.RotateSigningKey(ctx, records.SigningKey{ID: "n2", Ciphertext: []byte("y")}, 2*time.Hour, 48*time.Hour)
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "the old one is kept until", *list("n2", "n1", first)[2].RetiresAt, old)
	// A stolen key is removed at once. A reencryption of a key that changed in the meantime changes nothing.
	_, err = s.RotateSigningKey(ctx, records.SigningKey{ID: "n3", Ciphertext: []byte("z")}, 0, 0)
	heraldtest.Must(t, err)
	k := list("n3")[0]
	for _, want := range []string{"true <nil>", "false <nil>"} {
		heraldtest.Equal(t, "it was reencrypted", fmt.Sprint(s.ResealSigningKey(ctx, k, []byte("sealed anew"))), want)
	}
	_, err = s.RotateSigningKey(ctx, records.SigningKey{ID: "n4", Ciphertext: []byte("z")}, time.Minute, time.Minute)
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "rows", value[int64](t, s, `SELECT count(*) FROM herald.signing_keys`), 2)
	heraldtest.Equal(t, "a late first key", fmt.Sprint(s.AddFirstSigningKey(ctx, records.SigningKey{ID: "late"})), "false <nil>")
}
