package store_test

import (
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

// TestSuiteInGroups runs the conformance suite with each first claim and each plain record in the largest group of
// others.
func TestSuiteInGroups(t *testing.T) {
	t.Parallel()
	open := storetest.Reuse(t, func(t *testing.T) (*store.Store, string) {
		url := heraldtest.Postgres(t, postgres.Migrate)
		s, err := store.Open(postgres.Config{URL: secret.New(url), MaxConns: 4})
		heraldtest.Must(t, err)
		t.Cleanup(s.Close)
		store.ForceGroups(t, s, 64)
		return s, url
	})
	storetest.Run(t, func(t *testing.T) (storetest.Store, storetest.Clock) {
		s, clock := open(t)
		store.InsertOthers(t, s)
		return storetest.JoinRecords(s), clock
	})
}
