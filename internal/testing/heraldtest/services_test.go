package heraldtest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	if os.Getenv("HERALDTEST_WITHOUT_MAIN") != "" {
		os.Exit(m.Run())
	}
	Main(m)
}

var migrations atomic.Int32

// migrate does not close its pool in time, as a careless migration would.
func migrate(ctx context.Context, url secret.Secret) (int32, error) {
	n := migrations.Add(1)
	pool, err := pgxpool.New(ctx, url.Reveal())
	if err != nil {
		return n, err
	}
	_, err = pool.Exec(ctx, "CREATE TABLE things (n int); INSERT INTO things VALUES (1)")
	go pool.Close()
	return n, err
}

func count(t *testing.T, url string) int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	Must(t, err)
	defer conn.Close(t.Context())
	var n int
	Must(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM things").Scan(&n))
	if _, err := conn.Exec(t.Context(), "INSERT INTO things VALUES (2)"); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOwnDatabases(t *testing.T) {
	EmptyPostgres(t) // initdb runs before the clock starts
	for _, name := range []string{"a", "b", "c", "d"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			url := Postgres(t, migrate)
			t.Logf("took %v", time.Since(began))
			if n := count(t, url); n != 1 {
				t.Errorf("%d rows: somebody else was here", n)
			}
			if n := count(t, Postgres(t, migrate)); n != 1 {
				t.Errorf("%d rows in the second", n)
			}
		})
	}
	t.Cleanup(func() {
		if n := migrations.Load(); n != 1 {
			t.Errorf("migrated %d times", n)
		}
	})
}

func TestDroppedWithOpenConnections(t *testing.T) {
	var url string
	t.Run("inner", func(t *testing.T) {
		url = EmptyPostgres(t)
		conn, err := pgx.Connect(context.Background(), url)
		Must(t, err)
		defer func() { go conn.Close(context.Background()) }()
	})
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		_ = conn.Close(t.Context())
		t.Error("the database is still there")
	}
}

// TestRedisIsEmptied checks that the next test on a server finds no keys, scripts or eviction of an earlier one.
func TestRedisIsEmptied(t *testing.T) {
	var first string // the URL of the first test's server
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			url, script := RealRedis(t), redis.NewScript("return 7")
			c := RedisClient(t, url)
			if n, err := c.DBSize(t.Context()).Result(); err != nil || n != 0 {
				t.Errorf("%d keys, %v", n, err)
			}
			if err := script.EvalSha(t.Context(), c, nil).Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
				t.Errorf("a script of another test: %v", err)
			}
			if name == "second" && url != first {
				t.Error("a new server, though one is idle")
			}
			policy, err := c.ConfigGet(t.Context(), "maxmemory-policy").Result()
			Must(t, err)
			Equal(t, "the policy", policy["maxmemory-policy"], "noeviction")
			if err := errors.Join(c.Set(t.Context(), "k", "v", 0).Err(), script.Load(t.Context(), c).Err()); err != nil {
				t.Error(err)
			}
			Must(t, c.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
			first = url
		})
	}
}

// TestFixturesRequireMain: a package whose TestMain would leak the server fails with an error that says so.
func TestFixturesRequireMain(t *testing.T) {
	binary, err := os.Executable()
	Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run=^TestDroppedWithOpenConnections$")
	cmd.Env = append(os.Environ(), "HERALDTEST_WITHOUT_MAIN=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "must call heraldtest.Main") {
		t.Errorf("%v\n%s", err, out)
	}
}
