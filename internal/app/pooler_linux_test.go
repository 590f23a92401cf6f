package app

import (
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/operator/doctor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestBehindPooler: a worker delivers through a PgBouncer in transaction mode, before and after it was
// killed. The worker does not start while the pooler's sessions lack settings, and names the statements that give them.
// Without HERALD_LEADER_DATABASE_URL its readiness names that setting.
func TestBehindPooler(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	database := heraldtest.Postgres(t, postgres.Migrate)
	pooler := heraldtest.StartPooler(t, database)
	env := append(chainEnv(net, net.URL()), "DATABASE_URL="+pooler.URL, "REDIS_URL="+heraldtest.Redis(t), "HERALD_KEYSET="+heraldtest.Keyset(t))

	lost := run(t, false, env...)
	heraldtest.Contains(t, "/readyz", lost.untilWaitingFor("postgres")["postgres"], "set HERALD_LEADER_DATABASE_URL")
	heraldtest.Must(t, lost.stop())
	env = append(env, "HERALD_LEADER_DATABASE_URL="+database)
	err := run(t, false, env...).wait()
	if err == nil {
		t.Fatal("the worker starts without the settings")
	}
	_, commands, _ := strings.Cut(err.Error(), "console: ")
	heraldtest.Exec(t, database, commands)
	pooler.Kill()
	pooler.Start()

	w := run(t, false, env...).up()
	a := openAgent(t)
	delivered(t, w.Store, accept(t, w, feedback(t, net, a.URL)))
	for _, f := range doctor.Diagnose(t.Context(), w.Operator) {
		if !f.OK && (f.Check == "postgres" || f.Check == "migrations") {
			t.Errorf("doctor: %s: %s", f.Check, f.Text)
		}
	}
	pooler.Kill()
	pooler.Start()
	line := feedback(t, net, a.URL)
	heraldtest.Await(t, "a job is accepted, after the closed connections have been used", func() bool {
		got, err := w.Intake.Submit(t.Context(), [][]byte{line}, ledger.Source{Name: ledger.SourceCommand, Trust: ledger.TrustDirect})
		if err == nil {
			delivered(t, w.Store, got[0].ID)
		}
		return err == nil
	})
}
