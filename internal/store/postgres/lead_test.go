package postgres

import (
	"context"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestLeadership: leadership also ends when the leader's connection dies.
func TestLeadership(t *testing.T) {
	t.Parallel()
	p := openPool(t, heraldtest.EmptyPostgres(t))
	for range 2 {
		led, err := p.Lead(t.Context(), func(ctx context.Context) error {
			exec(t, p, `SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
			return nil
		})
		if !led || err != nil {
			t.Error(led, err)
		}
	}
	if n := p.PoolStat(); n.Max != 12 {
		t.Errorf("%+v", n)
	}
}
