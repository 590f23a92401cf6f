package storetest_test

import (
	"testing"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/storetest"
)

// TestPooler runs the suite through a PgBouncer in transaction mode.
func TestPooler(t *testing.T) {
	storetest.Run(t, func(t *testing.T) (storetest.Store, storetest.Clock) {
		url := heraldtest.Postgres(t, store.Migrate)
		s, err := store.Open(store.Config{URL: secret.New(heraldtest.StartPooler(t, url).URL), LeaderURL: secret.New(url), MaxConns: 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s, storetest.Aging(t, url)
	})
}
