package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPostgresNeedsNoNetwork checks that a start does not download Postgres if the machine has it, even if Fetch is
// set.
func TestPostgresNeedsNoNetwork(t *testing.T) {
	bin, asked := t.TempDir(), filepath.Join(t.TempDir(), "asked")
	for _, name := range []string{"apt-get"} {
		script := "#!/bin/sh\necho \"$0 $*\" >>" + asked + "\nexit 100\n"
		must(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755))
	}
	needPostgres(t)
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	stopPostgres(t, startPostgres(t, Config{Ephemeral: true, Test: true, Fetch: true}))
	if said, err := os.ReadFile(asked); err == nil {
		t.Errorf("it ran %s", said)
	}
}

// TestNoBinariesHint checks that the error names remedies that work: docker-compose.yml publishes the port of neither
// Postgres nor Redis, and DATABASE_URL without REDIS_URL is refused.
func TestNoBinariesHint(t *testing.T) {
	t.Parallel()
	said := (&NoBinariesError{Passed: []string{"/opt/pg has version 9"}, Fetch: errors.New("no network")}).Error()
	for _, want := range []string{"/opt/pg has version 9", "no network", "install Postgres 15", "DATABASE_URL and REDIS_URL", "docs/operator/start.md"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q: %s", want, said)
		}
	}
	if strings.Contains(said, "compose up -d postgres") {
		t.Errorf("compose publishes no ports: %s", said)
	}
}
