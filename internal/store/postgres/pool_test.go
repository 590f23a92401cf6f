package postgres

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store/pgerror"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestConnectionFailsInOneSentence: an error of a connection is one line with one cause. It contains the server's
// address, and not the password.
func TestConnectionFailsInOneSentence(t *testing.T) {
	t.Parallel()
	silent := heraldtest.Silent(t)
	for name, c := range map[string]struct {
		url  string
		want string
		is   error
	}{
		"refused, with and without TLS": {"postgres://u:hunter2@127.0.0.1:1/d", "connect to Postgres at 127.0.0.1:1: connection refused", syscall.ECONNREFUSED},
		"several hosts":                 {"postgres://u:hunter2@127.0.0.1:1,127.0.0.1:2/d", "connect to Postgres: 127.0.0.1:1 (127.0.0.1): connection refused; 127.0.0.1:2 (127.0.0.1): connection refused", syscall.ECONNREFUSED},
		"an unknown host":               {"postgres://u:hunter2@a..b:1,127.0.0.1:2/d", "connect to Postgres: DNS does not know the name a..b; 127.0.0.1:2 (127.0.0.1): connection refused", syscall.ECONNREFUSED},
		"no socket":                     {"postgres://u@/d?host=/nowhere/at/all", "connect to the Postgres socket in /nowhere/at/all: no such file or directory", syscall.ENOENT},
		"says nothing":                  {"postgres://u:hunter2@" + silent + "/d", "connect to Postgres at " + silent + ": ", context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st, err := Open(Config{URL: secret.New(c.url), ConnectTimeout: 300 * time.Millisecond})
			heraldtest.Must(t, err)
			defer st.Close()
			err = st.Ping(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), "hunter2") || !errors.Is(err, c.is) {
				t.Errorf("%v", err)
			}
			if strings.Contains(err.Error(), "context deadline exceeded") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestRefusedURL: the error for a URL that cannot be used names the wrong TLS setting, and not the password.
func TestRefusedURL(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "ca.crt")
	heraldtest.Must(t, os.WriteFile(empty, nil, 0o600))
	for url, want := range map[string]string{
		"postgres://u:hunter2@h/d?sslmode=verify-full&sslrootcert=/nowhere/ca.crt": "unable to read CA file: open /nowhere/ca.crt: no such file or directory",
		"postgres://u:hunter2@h/d?sslmode=verify-ca&sslrootcert=" + empty:          "unable to add CA to cert pool",
		"postgres://u:hunter2@h/d?sslmode=verify_full":                             "sslmode is invalid",
		"postgres://u:hunter2@h/d?service=prod&servicefile=/nowhere":               "failed to read service: failed to read service file: /nowhere",
		"postgres://u:hunter2@h/d?connect_timeout=5s":                              "connect_timeout is not a number of seconds",
		"postgres://u:hunter2@h:port/d":                                            errURL.Error(),
		"postgres://u:hunter2/%@h/d":                                               errURL.Error(),
		"postgres://u:hunter2 failed to configure TLS@h:port/d":                    errURL.Error(),
	} {
		for _, cfg := range []Config{{URL: secret.New(url)}, {URL: secret.New("postgres://h/d"), LeaderURL: secret.New(url)}} {
			if _, err := Open(cfg); err == nil || !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", url, err)
			}
		}
		if _, err := Migrations(t.Context(), secret.New(url)); err == nil || !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: migrations: %v", url, err)
		}
	}
}

// TestReadOnlySession: a session that began while the database was read-only, such as during a failover or because the
// provider's disk was full, ends with its first refused write. Otherwise the pool would keep it for an hour.
func TestReadOnlySession(t *testing.T) {
	t.Parallel()
	url := heraldtest.EmptyPostgres(t)
	operator, worker := openPool(t, url), openPool(t, url)
	exec(t, operator, "CREATE TABLE written (n integer)")
	database := "ALTER DATABASE " + operator.Conns.Config().ConnConfig.Database
	exec(t, operator, database+" SET default_transaction_read_only = on")
	const write = "INSERT INTO written VALUES (1)"
	var refusal *pgconn.PgError
	if _, err := worker.Conns.Exec(t.Context(), write); !errors.As(err, &refusal) || refusal.Code != "25006" {
		t.Fatalf("a write in a read-only database: %v", err)
	}
	heraldtest.Fails(t, "PingWritable", openPool(t, url).PingWritable(t.Context()), "default_transaction_read_only is on (set by: database)")
	err := openPool(t, url+"&target_session_attrs=read-write").Ping(t.Context())
	heraldtest.Fails(t, "Ping without a writable host", err, "it is read-only, and target_session_attrs excludes it")
	heraldtest.Equal(t, "it passes", pgerror.Away(err), true)
	heraldtest.Equal(t, "rows read meanwhile", count(t, worker, "SELECT count(*) FROM written"), 0)
	exec(t, operator, database+" RESET default_transaction_read_only")
	if _, err := worker.Conns.Exec(t.Context(), write); err == nil {
		t.Fatal("the read of a read-only session ended it") // it has not been refused a write yet
	}
	exec(t, worker, write)
}

// TestDatabaseSettings: sessions are read committed and in UTF-8, even if the database's defaults are others. The URL
// chooses the time to connect.
func TestDatabaseSettings(t *testing.T) {
	t.Parallel()
	url := heraldtest.EmptyPostgres(t)
	operator := openPool(t, url)
	for _, set := range []string{"default_transaction_isolation = serializable", "client_encoding = latin1"} {
		exec(t, operator, "ALTER DATABASE "+operator.Conns.Config().ConnConfig.Database+" SET "+set)
	}
	worker := openPool(t, url+"&connect_timeout=7")
	var level, encoding string
	heraldtest.Must(t, worker.Conns.QueryRow(t.Context(), "SELECT current_setting('transaction_isolation'), current_setting('client_encoding')").Scan(&level, &encoding))
	heraldtest.Equal(t, "isolation level and encoding", []string{level, encoding}, []string{"read committed", "UTF8"})
	heraldtest.Must(t, openPool(t, url+"&default_query_exec_mode=simple_protocol").CheckPooler(t.Context()))
	heraldtest.Equal(t, "time to connect", worker.Conns.Config().ConnConfig.ConnectTimeout, 7*time.Second)
}

// TestTooManyConnections: a role has reached its limit of connections. The error names the settings, and counts as
// temporary.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	url := heraldtest.EmptyPostgres(t)
	operator := openPool(t, url)
	is := operator.Conns.Config().ConnConfig
	role := is.Database + "_full"
	exec(t, operator, "CREATE ROLE "+role+" LOGIN CONNECTION LIMIT 0")
	defer exec(t, operator, "DROP ROLE "+role)
	err := openPool(t, strings.Replace(url, "://"+is.User+"@", "://"+role+"@", 1)).Ping(t.Context())
	heraldtest.Fails(t, "Ping", err, "too many connections for role", "lower HERALD_DB_POOL")
	heraldtest.Equal(t, "it passes", pgerror.Away(err), true)
}

// TestFullDisk: CheckWritable finds a full disk at its first call and after a statement that found it full, until the
// disk has room again. PingWritable, after which a worker starts, ignores it. The test's generate_series fails as a
// temporary file on a full disk does.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	url := heraldtest.EmptyPostgres(t)
	operator, worker := openPool(t, url), openPool(t, url)
	database := "ALTER DATABASE " + operator.Conns.Config().ConnConfig.Database
	const fail = "$$BEGIN RAISE 'No space left on device' USING ERRCODE = 'disk_full'; END$$"
	const full = "the database answers, but its disk is full: ERROR: No space left on device (SQLSTATE 53100)"
	check := func(when, want string, check func(context.Context) error) {
		t.Helper()
		if err := check(t.Context()); want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: %v", when, err)
		}
	}
	check("with room", "", worker.CheckWritable)
	exec(t, operator, "CREATE FUNCTION generate_series(int, int) RETURNS SETOF int LANGUAGE plpgsql AS "+fail)
	exec(t, operator, database+" SET search_path = public, pg_catalog")
	check("full, at the first call", full, openPool(t, url).CheckWritable)
	worker.Conns.Reset() // its sessions keep their search_path
	check("full, and no statement found it so", "", worker.CheckWritable)
	if _, err := worker.Conns.Exec(t.Context(), "DO "+fail); err == nil {
		t.Fatal("the statement did not fail")
	}
	check("full", full, worker.CheckWritable)
	check("still full", full, worker.CheckWritable)
	check("full, at a start", "", worker.PingWritable)
	exec(t, operator, "DROP FUNCTION public.generate_series")
	check("with room again", "", worker.CheckWritable)
}

func TestMain(m *testing.M) { heraldtest.Main(m) }

func openPool(t testing.TB, url string) *Pool {
	t.Helper()
	p, err := Open(Config{URL: secret.New(url), MaxConns: 12})
	heraldtest.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

func exec(t testing.TB, p *Pool, sql string) {
	t.Helper()
	if _, err := p.Conns.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// count queries one number.
func count(t testing.TB, p *Pool, sql string) (n int) {
	t.Helper()
	heraldtest.Must(t, p.Conns.QueryRow(t.Context(), sql).Scan(&n))
	return n
}
