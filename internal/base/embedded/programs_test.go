package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFindPrograms checks that on a machine without any programs, each is reported as missing, and nothing is created
// or fetched.
func TestFindPrograms(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Dir(dir), dir} { // the servers' account must be able to enter
		must(t, os.Chmod(path, 0o755))
	}
	here := FindPrograms(t.Context(), dir, "")
	if errors.Is(here.NoRedis, ErrNoRedis) || here.NoPostgres != nil {
		t.Logf("not all of it is on this machine: %+v", here)
	}
	dirs, redis, system := postgresDirs, redisDirs, systemCacheDir
	t.Cleanup(func() { postgresDirs, redisDirs, systemCacheDir = dirs, redis, system })
	postgresDirs, redisDirs, systemCacheDir = nil, nil, filepath.Join(dir, "none")
	t.Setenv("PATH", "")
	got := FindPrograms(t.Context(), dir, filepath.Join(dir, "empty"))
	if _, ok := errors.AsType[*NoBinariesError](got.NoPostgres); !ok || !errors.Is(got.NoRedis, ErrNoRedis) || got.Postgres+got.Redis != "" {
		t.Errorf("%+v", got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("something was made: %v %v", left, err)
	}

	// The error names a program that is too old.
	old := filepath.Join(dir, "redis-server")
	must(t, os.WriteFile(old, []byte("#!/bin/sh\necho Redis server v=5.0.7 sha=0\n"), 0o755))
	redisDirs = []string{dir}
	got = FindPrograms(t.Context(), dir, filepath.Join(dir, "empty"))
	if !errors.Is(got.NoRedis, ErrNoRedis) || !strings.Contains(got.NoRedis.Error(), old) {
		t.Errorf("%+v", got)
	}

	// It names a program whose loader is missing, such as one of Debian on Alpine.
	bin := filepath.Join(dir, "bin")
	must(t, os.Mkdir(bin, 0o755))
	postgresDirs, redisDirs = []string{bin}, []string{bin}
	for _, name := range []string{"redis-server", "postgres", "initdb"} {
		must(t, os.WriteFile(filepath.Join(bin, name), []byte("#!"+dir+"/none\n"), 0o755))
	}
	got = FindPrograms(t.Context(), dir, filepath.Join(dir, "empty"))
	for _, err := range []error{got.NoRedis, got.NoPostgres} {
		if err == nil || !strings.Contains(err.Error(), "does not run here") {
			t.Errorf("a program without its loader: %v", err)
		}
	}
}

// TestFindProgramsInVain checks that a data folder which the servers' user cannot reach is found before a start fails
// there. The folder itself need not exist.
func TestFindProgramsInVain(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the servers run as this user")
	}
	dir := openTemp(t)
	must(t, os.Chmod(dir, 0o700))
	for _, data := range []string{dir, filepath.Join(dir, "not", "there")} {
		got := FindPrograms(t.Context(), data, "")
		if unreachable, ok := errors.AsType[*UnreachableError](got.NoPostgres); !ok || unreachable.At != dir {
			t.Errorf("%s: %+v", data, got)
		}
	}
}
