package storetest_test

import (
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

// TestPooler runs the suite through a PgBouncer in transaction mode.
func TestPooler(t *testing.T) {
	storetest.Run(t, storetest.Reuse(t, func(t *testing.T) (storetest.Store, string) {
		url := heraldtest.Postgres(t, postgres.Migrate)
		return openStore(t, postgres.Config{URL: secret.New(heraldtest.StartPooler(t, url).URL), LeaderURL: secret.New(url)}, false), url
	}))
}
