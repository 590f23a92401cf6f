package main

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
)

// TestRefusesToStart checks that the worker refuses to start with invalid settings or services. One line of its output
// names the setting to change.
func TestRefusesToStart(t *testing.T) {
	t.Parallel()
	keyset := "HERALD_KEYSET=" + heraldtest.Keyset(t)
	away := []string{"DATABASE_URL=" + nowhere, "REDIS_URL=redis://:hunter2@127.0.0.1:1"}
	for name, c := range map[string]struct {
		env  func(t *testing.T) []string
		code int
		says []string // contained in one line
	}{
		"no keyset": {func(*testing.T) []string { return away }, exitMisuse,
			[]string{"HERALD_KEYSET: is not set although DATABASE_URL is", "`worker keys init`", "set HERALD_KEYSET or HERALD_KEYSET_FILE"}},
		"a schema before the first release": {func(t *testing.T) []string {
			return []string{keyset, "DATABASE_URL=" + unreleased(t), "REDIS_URL=" + heraldtest.Redis(t)}
		}, exitFailed, []string{"its schema is of a Herald before v0.1.0", "set DATABASE_URL to an empty database"}},
		"a Redis that evicts": {func(t *testing.T) []string {
			return []string{keyset, "DATABASE_URL=" + heraldtest.Postgres(t, postgres.Migrate), "REDIS_URL=" + evictingRedis(t)}
		}, exitFailed, []string{"Redis may evict keys (maxmemory-policy allkeys-lru)", "set maxmemory-policy noeviction"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := append(c.env(t), "HERALD_LISTEN=127.0.0.1:0", "HERALD_LOG_LEVEL=error")
			code, out, errs := worker(t, env)
			said := ""
			for line := range strings.Lines(errs) {
				if strings.Contains(line, c.says[0]) {
					said = line
				}
			}
			for _, want := range c.says {
				if code != c.code || !strings.Contains(said, want) {
					t.Errorf("exit code %d, want %d; no line says %q:\n%s%s", code, c.code, want, out, errs)
				}
			}
			heraldtest.Lacks(t, "the output", out+errs, "hunter2")
		})
	}
}

// unreleased returns the URL of a database with the table of migrations of a Herald before the first release.
func unreleased(t *testing.T) string {
	t.Helper()
	url := heraldtest.EmptyPostgres(t)
	c, err := pgx.Connect(t.Context(), url)
	if err == nil {
		_, err = c.Exec(t.Context(), `CREATE SCHEMA herald; CREATE TABLE herald.goose_db_version (version_id bigint)`)
	}
	if err == nil {
		err = c.Close(t.Context())
	}
	heraldtest.Must(t, err)
	return url
}

// watched is an output that signals when it contains want.
type watched struct {
	want string
	seen chan struct{}

	mu   sync.Mutex
	b    bytes.Buffer
	told bool
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.b.Write(p)
	if !w.told && strings.Contains(w.b.String(), w.want) {
		w.told = true
		close(w.seen)
	}
	return n, err
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// evictingRedis is a real server that may evict tasks.
func evictingRedis(t *testing.T) string {
	t.Helper()
	raw := heraldtest.RealRedis(t)
	ctx := heraldtest.Within(t, 10*time.Second)
	heraldtest.Must(t, heraldtest.RedisClient(t, raw).ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
	return raw
}
