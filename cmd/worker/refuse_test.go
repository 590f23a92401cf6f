package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
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
		"a lease shorter than the call": {func(*testing.T) []string { return append(away, keyset, "HERALD_LEASE=80s") }, exitMisuse,
			[]string{"HERALD_LEASE: 1m20s is shorter than", "HERALD_CALL_TIMEOUT 30s", "HERALD_LEASE_MARGIN 1m0s", "set it to 1m30s or more"}},
		"a pool smaller than the concurrency": {func(*testing.T) []string { return append(away, keyset, "HERALD_DB_POOL=16") }, exitMisuse,
			[]string{"HERALD_DB_POOL: 16 connections are too few for HERALD_CONCURRENCY 32", "set it to 36 or more, or lower the concurrency"}},
		"a pool as large as the concurrency": {func(*testing.T) []string { return append(away, keyset, "HERALD_CONCURRENCY=40") }, exitMisuse,
			[]string{"HERALD_DB_POOL: 40 connections are too few for HERALD_CONCURRENCY 40", "set it to 44 or more"}},
		"no keyset": {func(*testing.T) []string { return away }, exitMisuse,
			[]string{"HERALD_KEYSET: is not set although DATABASE_URL is", "`worker keys init`", "set HERALD_KEYSET or HERALD_KEYSET_FILE"}},
		"a retention shorter than the expiry": {func(*testing.T) []string { return append(away, keyset, "HERALD_RETENTION=240h") }, exitMisuse,
			[]string{"HERALD_RETENTION: 240h0m0s is shorter than HERALD_EXPIRY 720h0m0s", "Set it to 720h0m0s or more"}},
		"pending migrations": {func(t *testing.T) []string {
			return []string{keyset, "DATABASE_URL=" + heraldtest.EmptyPostgres(t), "REDIS_URL=" + heraldtest.Redis(t)}
		}, exitFailed, []string{"the database lacks", "0001_herald.sql", "run `worker migrate`"}},
		"a schema before the first release": {func(t *testing.T) []string {
			return []string{keyset, "DATABASE_URL=" + unreleased(t), "REDIS_URL=" + heraldtest.Redis(t)}
		}, exitFailed, []string{"its schema is of a Herald before v0.1.0", "set DATABASE_URL to an empty database"}},
		"an old Redis": {func(t *testing.T) []string {
			return []string{keyset, "DATABASE_URL=" + heraldtest.Postgres(t, store.Migrate), "REDIS_URL=" + oldRedis(t, "6.0.16")}
		}, exitFailed, []string{"Redis 6.0.16 is too old: Herald needs 6.2 or newer"}},
		"a Redis that evicts": {func(t *testing.T) []string {
			return []string{keyset, "DATABASE_URL=" + heraldtest.Postgres(t, store.Migrate), "REDIS_URL=" + evictingRedis(t)}
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
			if strings.Contains(out+errs, "hunter2") {
				t.Errorf("a password is told:\n%s", errs)
			}
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

// TestStartsOnItsOwnRedis checks that the requirements on an external Redis do not apply to the embedded one. miniredis
// does not support INFO.
func TestStartsOnItsOwnRedis(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	said := &watched{want: "delivering", seen: make(chan struct{})}
	ended := make(chan int, 1)
	env := []string{"HERALD_DATA=" + t.TempDir(), "HERALD_CACHE=" + t.TempDir(), "DATABASE_URL=" + heraldtest.Postgres(t, store.Migrate),
		"HERALD_QUEUE=embedded", "HERALD_KEYSET=" + heraldtest.Keyset(t), "HERALD_LISTEN=127.0.0.1:0"}
	go func() { ended <- run(ctx, nil, env, &bytes.Buffer{}, said) }()
	select {
	case <-said.seen:
	case code := <-ended:
		t.Fatalf("it ended with %d:\n%s", code, said)
	case <-time.After(60 * time.Second):
		t.Errorf("it does not start:\n%s", said)
	}
	stop()
	select {
	case code := <-ended:
		if code != 0 {
			t.Errorf("exit code %d after an orderly stop:\n%s", code, said)
		}
	case <-time.After(60 * time.Second):
		t.Fatalf("it does not end:\n%s", said)
	}
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
	u, err := url.Parse(raw)
	heraldtest.Must(t, err)
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: u.Path})
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	heraldtest.Must(t, c.ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
	return raw
}

// oldRedis answers PING, and INFO with this version. It refuses all other commands, as old servers refuse HELLO.
func oldRedis(t *testing.T, version string) string {
	t.Helper()
	address := heraldtest.Listen(t, func(c net.Conn) {
		answerRedis(c, "redis_version:"+version+"\r\nredis_mode:standalone\r\n")
	})
	return "redis://:hunter2@" + address
}

// answerRedis reads commands (arrays of bulk strings) until the client disconnects.
func answerRedis(c net.Conn, info string) {
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		var n int
		if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
			return
		}
		var args []string
		for range n {
			var length int
			if _, err := fmt.Fscanf(r, "$%d\r\n", &length); err != nil {
				return
			}
			b := make([]byte, length+2)
			if _, err := io.ReadFull(r, b); err != nil {
				return
			}
			args = append(args, string(b[:length]))
		}
		answer := "-ERR unknown command\r\n"
		switch strings.ToUpper(args[0]) {
		case "PING":
			answer = "+PONG\r\n"
		case "AUTH":
			answer = "+OK\r\n"
		case "INFO":
			answer = fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
		}
		if _, err := c.Write([]byte(answer)); err != nil {
			return
		}
	}
}
