//go:build chaos

package trial

import (
	"context"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestChaosPooler kills the PgBouncer in transaction mode through which the workers use Postgres, during calls, and
// starts it again.
func TestChaosPooler(t *testing.T) {
	var pooler *heraldtest.Pooler
	outage{name: "PgBouncer killed, back after 10 s", away: 10 * time.Second, recovery: 3 * time.Minute,
		prepare: func(r *row) {
			for _, setting := range []string{"statement_timeout = '30s'", "idle_in_transaction_session_timeout = '10s'",
				"plan_cache_mode = force_generic_plan", "enable_seqscan = off", "enable_bitmapscan = off",
				"jit = off"} {
				r.must(r.Exec(r.ctx, "ALTER ROLE CURRENT_USER IN DATABASE "+r.Database+" SET "+setting))
			}
			pooler = heraldtest.StartPooler(r, r.address)
			r.Env = append(r.Env, "DATABASE_URL="+pooler.URL, "HERALD_LEADER_DATABASE_URL="+r.address)
			r.grownUp() // otherwise the reconciler would expire no lease because Postgres is young
		},
		fault: func(*Site) (begin, end step) {
			return func(context.Context) error { pooler.Kill(); return nil },
				func(context.Context) error { pooler.Start(); return nil }
		},
	}.run(t)
}
