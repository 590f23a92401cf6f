package postgres

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// openPooled returns a pool on a pooler's URL, whose LeaderURL is leader.
func openPooled(t testing.TB, pooler, leader string, conns int32) *Pool {
	t.Helper()
	p, err := Open(Config{URL: secret.New(pooler), LeaderURL: secret.New(leader), MaxConns: conns})
	heraldtest.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

// TestCheckPooler: the check names the statements that give the pooler's sessions their settings, and passes after
// them. It refuses an address of the leader that leads through a pooler or to another database. It refuses a pooler that
// no address of the leader accompanies, also if the pooler drops the settings of a connection instead of refusing them,
// and a pooler in session mode that drops them.
func TestCheckPooler(t *testing.T) {
	t.Parallel()
	url := heraldtest.Postgres(t, Migrate)
	p := heraldtest.StartPooler(t, url)
	s := openPooled(t, p.URL, url, 2)
	err := s.CheckPooler(t.Context())
	if err == nil {
		t.Fatal("the sessions have no settings, and the check passes")
	}
	_, commands, _ := strings.Cut(err.Error(), "console: ")
	direct := openPool(t, url)
	given := strings.SplitAfter(commands, "; ")
	if len(given) != len(s.needed)-2 { // the tests' Postgres runs without jit, and read committed
		t.Errorf("%d statements: %v", len(given), err)
	}
	for _, sql := range given {
		exec(t, direct, sql)
	}
	p.Kill() // ends its sessions, as RECONNECT does
	p.Start()
	s = openPooled(t, p.URL, url, 2)
	if err := s.CheckPooler(t.Context()); err != nil {
		t.Error(err)
	}
	if led, err := s.Lead(t.Context(), func(ctx context.Context) error {
		if led, err := direct.Lead(ctx, func(context.Context) error { return nil }); led || err != nil {
			t.Errorf("two lead: %v", err)
		}
		return nil
	}); !led || err != nil {
		t.Errorf("led: %v, %v", led, err)
	}

	const drops = "ignore_startup_parameters=statement_timeout,idle_in_transaction_session_timeout,plan_cache_mode," +
		"enable_seqscan,enable_bitmapscan,jit,default_transaction_isolation"
	lenient := heraldtest.StartPooler(t, url, drops)
	session := heraldtest.StartPooler(t, heraldtest.EmptyPostgres(t), drops, "pool_mode=session")
	for name, c := range map[string]struct{ pooler, leader, says string }{
		"a pooler":                       {p.URL, p.URL, "unsupported startup parameter: "},
		"a pooler, explained":            {p.URL, p.URL, "set HERALD_LEADER_DATABASE_URL to the address of Postgres itself"},
		"a pooler that drops parameters": {p.URL, lenient.URL, "through a pooler in transaction mode"},
		"another database":               {p.URL, heraldtest.EmptyPostgres(t), "leads to another database"},
		"sessions without settings":      {session.URL, "", "its sessions lack settings: run these statements in Postgres"},
		"no address of the leader":       {lenient.URL, "", "it leads through a pooler in transaction mode: set HERALD_LEADER_DATABASE_URL"},
	} {
		if err := openPooled(t, c.pooler, c.leader, 2).CheckPooler(t.Context()); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := direct.CheckPooler(t.Context()); err != nil {
		t.Errorf("Postgres itself: %v", err)
	}
}

// TestPreparedThroughPooler: the check refuses a URL that chooses prepared statements for a PgBouncer older than 1.21,
// which loses them. Newer ones keep them.
func TestPreparedThroughPooler(t *testing.T) {
	t.Parallel()
	url := heraldtest.Postgres(t, Migrate)
	applySettings(t, openPool(t, url))
	s := openPooled(t, heraldtest.StartPooler(t, url).URL+"&default_query_exec_mode=cache_statement", url, 2)
	if err := s.CheckPooler(t.Context()); err != nil && !strings.Contains(err.Error(), "take default_query_exec_mode out of the URL") {
		t.Error(err)
	}
}

// applySettings gives later sessions of the database the settings that a direct session gets when it is opened.
func applySettings(t testing.TB, p *Pool) {
	t.Helper()
	for name, value := range sessionSettings(30 * time.Second) {
		exec(t, p, `DO $do$ BEGIN EXECUTE format('ALTER ROLE %I IN DATABASE %I SET %I = %L', session_user, current_database(), '`+name+`', '`+value+`'); END $do$`)
	}
}
