package backend

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestRunFileWithoutPasswords checks that run.json does not contain the passwords of external services, and that
// commands still find the embedded services by it.
func TestRunFileWithoutPasswords(t *testing.T) {
	t.Parallel()
	const own, other = "postgres://herald:hunter2secret@db.example:5433/herald?sslmode=disable", "postgres://herald:hunter2secret@db.example/other"
	const ownRedis = "redis://:hunter2secret@redis.example:6379/0"
	keys := "HERALD_KEYSET=" + heraldtest.Keyset(t)
	for name, tt := range map[string]struct {
		backend   Backend
		env       []string
		want      string // contained in run.json
		database  string // that the command uses; empty: refused
		redis     string
		embedded  bool
		complaint string
	}{
		"its own database": {Backend{DatabaseURL: secret.New(own), RedisURL: secret.New("redis-socket:///x"), EmbeddedRedis: true},
			[]string{"DATABASE_URL=" + own, "HERALD_QUEUE=embedded", keys}, "herald@db.example:5433/herald", own, "redis-socket:///x", true, ""},
		"another database": {Backend{DatabaseURL: secret.New(own), RedisURL: secret.New("redis-socket:///x"), EmbeddedRedis: true},
			[]string{"DATABASE_URL=" + other, "HERALD_QUEUE=embedded", keys}, "redis-socket:///x", other, "", false, ""},
		"a command without it": {Backend{DatabaseURL: secret.New(own), RedisURL: secret.New("redis-socket:///x"), EmbeddedRedis: true},
			nil, "redis-socket:///x", "", "", false, "set DATABASE_URL to the same one (herald@db.example:5433/herald)"},
		"its own Redis": {Backend{DatabaseURL: secret.New("postgres:///herald?host=/x"), RedisURL: secret.New(ownRedis), EmbeddedDatabase: true},
			[]string{"REDIS_URL=" + ownRedis}, "postgres:///herald?host=/x", "postgres:///herald?host=/x", ownRedis, false, ""},
		"nothing of its own": {Backend{DatabaseURL: secret.New("postgres:///herald?host=/x"), RedisURL: secret.New("redis-socket:///x"), EmbeddedDatabase: true, EmbeddedRedis: true},
			nil, "postgres:///herald?host=/x", "postgres:///herald?host=/x", "redis-socket:///x", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			lock, err := embedded.LockDir(dir)
			heraldtest.Must(t, err)
			defer func() { _ = lock.Release() }()
			tt.backend.DataDir = dir
			forget, err := tt.backend.PublishRunFile("127.0.0.1:8080")
			heraldtest.Must(t, err)
			defer forget()
			text, err := os.ReadFile(filepath.Join(dir, "run.json"))
			if err != nil || strings.Contains(string(text), "hunter2") || !strings.Contains(string(text), tt.want) {
				t.Errorf("%s, %v", text, err)
			}
			b, err := Attach(t.Context(), load(t, append(tt.env, "HERALD_DATA="+dir)...), 60*time.Second, slog.New(slog.DiscardHandler))
			if tt.complaint != "" {
				heraldtest.Fails(t, "Attach", err, tt.complaint)
				return
			}
			heraldtest.Must(t, err)
			if b.DatabaseURL.Reveal() != tt.database || b.RedisURL.Reveal() != tt.redis || b.EmbeddedRedis != tt.embedded {
				t.Errorf("%s, %s, embedded Redis: %t", b.DatabaseURL.Reveal(), b.RedisURL.Reveal(), b.EmbeddedRedis)
			}
		})
	}
}

// TestIsRefusal checks that only errors that waiting does not fix are final.
func TestIsRefusal(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"28000": true, "28P01": true, "3D000": true, "42501": true, "42704": true,
		"53200": false, "53300": false, "57P01": false, "57P02": false, "57P03": false, "08P01": false, "XX000": false, "42P01": false, "": false,
	} {
		heraldtest.Equal(t, code, isRefusal(fmt.Errorf("ping: %w", &pgconn.PgError{Code: code})), want)
	}
	if isRefusal(nil) || isRefusal(errors.New("28P01")) {
		t.Error("what no server said is a refusal")
	}
}
