package heraldtest_test

import (
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
)

// TestPooler: a query passes, also through a pooler that was killed and started again, and the statements of one
// connection run in the session that is free.
func TestPooler(t *testing.T) {
	p := heraldtest.StartPooler(t, heraldtest.EmptyPostgres(t))
	ask := func(c *pgx.Conn) (pid int) {
		if err := c.QueryRow(t.Context(), "SELECT pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	connect := func() *pgx.Conn {
		c, err := pgx.Connect(t.Context(), p.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(t.Context()) })
		return c
	}
	if one, other := ask(connect()), ask(connect()); one != other {
		t.Errorf("two connections that take turns have the sessions %d and %d", one, other)
	}
	p.Kill()
	p.Start()
	ask(connect())
}
