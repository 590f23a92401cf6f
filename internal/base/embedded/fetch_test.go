package embedded

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const planDebian12 = `Reading package lists...
The following packages will be upgraded:
  libpq-dev libpq5
Inst postgresql-client-common (248+deb12u2 Debian-Security:12/oldstable-security [all])
Inst libllvm14 (1:14.0.6-12 Debian:12.11/oldstable [amd64])
Inst libjson-perl (4.10000-1 Debian:12.11/oldstable [all])
Inst libpq-dev [15.18-0+deb12u1] (15.20-0+deb12u1 Debian-Security:12/oldstable-security [amd64]) []
Inst libpq5 [15.18-0+deb12u1] (15.20-0+deb12u1 Debian-Security:12/oldstable-security [amd64])
Inst libkeyutils1:amd64 (1.6.3-2 Debian:12.11/oldstable [amd64])
Inst postgresql-client-15 (15.20-0+deb12u1 Debian-Security:12/oldstable-security [amd64])
Inst ssl-cert (1.1.2 Debian:12.11/oldstable [all])
Inst postgresql-15 (15.20-0+deb12u1 Debian-Security:12/oldstable-security [amd64])
Conf postgresql-15 (15.20-0+deb12u1 Debian-Security:12/oldstable-security [amd64])
`

func TestAptPlan(t *testing.T) {
	t.Parallel()
	chosen, server, err := choosePackages(readPlan(planDebian12))
	must(t, err)
	want := []debPackage{{"libpq5", "15.20-0+deb12u1"}, {"libkeyutils1:amd64", "1.6.3-2"}, {"postgresql-client-15", "15.20-0+deb12u1"}, {"postgresql-15", "15.20-0+deb12u1"}}
	equal(t, "chosen", chosen, want)
	equal(t, "the server", server, want[3])
	name := bundleName(server, chosen)
	slices.Reverse(chosen)
	if again := bundleName(server, chosen); name != again || !strings.HasPrefix(name, "postgresql-15_15.20-0+deb12u1_") {
		t.Errorf("names %s and %s", name, again)
	}
	if name := bundleName(debPackage{"redis-server", "5:7.0.15-1~deb12u10"}, nil); strings.ContainsAny(name, ":/") {
		t.Errorf("name %s cannot be in a library path", name)
	}
	for plan, problem := range map[string]string{
		"":                              "no server package",
		"Inst libpq5 (1 D:1 [amd64])\n": "no server package",
		"Inst postgresql-13 (13.1 D:1 [amd64])\n":                                 "older than 15",
		"Inst libc6 [2.35] (2.36 D:1 [amd64])\nInst postgresql-15 (15 D [amd64])": "newer libc6",
	} {
		if _, _, err := choosePackages(readPlan(plan)); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v", plan, err)
		}
	}
}

func TestWithoutFamily(t *testing.T) {
	t.Parallel()
	status := "Package: bash\nStatus: install ok installed\n\nPackage: postgresql\nStatus: x\n\nPackage: postgresql-15\nDescription: a\n b\n\nPackage: postgres-like\nStatus: y\n"
	got := string(withoutFamily([]byte(status), "postgresql"))
	if got != "Package: bash\nStatus: install ok installed\n\nPackage: postgres-like\nStatus: y\n\n" {
		t.Errorf("%q", got)
	}
}

func TestToolEnvironment(t *testing.T) {
	t.Parallel()
	got := toolEnvironment([]string{"PATH=/bin", "HERALD_KEYSET=secret", "DATABASE_URL=secret", "APT_CONFIG=a", "https_proxy=p", "PATHS=x"})
	if want := []string{"LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "PATH=/bin", "APT_CONFIG=a", "https_proxy=p"}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if got := withoutCredentials("E: http://user:pass@mirror/x failed"); strings.Contains(got, "pass") {
		t.Error(got)
	}
}

func TestFindersOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, v := range []string{"9", "15", "16", "15.20-0+deb12u1", "15.3-1"} {
		must(t, os.MkdirAll(filepath.Join(dir, v, "bin"), 0o755))
	}
	var got []string
	for _, p := range globNewest(filepath.Join(dir, "*/bin")) {
		got = append(got, filepath.Base(filepath.Dir(p)))
	}
	equal(t, "the versions", got, []string{"16", "15.20-0+deb12u1", "15.3-1", "15", "9"})
	// A program in the cache that another user wrote is not run.
	if os.Geteuid() == 0 {
		path := filepath.Join(dir, "postgres")
		must(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
		must(t, os.Chown(path, 12345, 12345))
		self := account{}
		if err := (location{dir: dir, bundle: true}).checkUsable(path, self); err == nil || !strings.Contains(err.Error(), "belongs to uid 12345") {
			t.Errorf("%v", err)
		}
	}
}

// TestFetch downloads real packages. It runs only if HERALD_TEST_FETCH is set.
func TestFetch(t *testing.T) {
	if os.Getenv("HERALD_TEST_FETCH") == "" {
		t.Log("HERALD_TEST_FETCH is not set: nothing was downloaded")
		return
	}
	t.Run("packages, twice at once", func(t *testing.T) {
		cache := openTemp(t)
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				began := time.Now()
				if err := fetchMissing(t, cache); err != nil {
					t.Error(err)
				}
				t.Logf("one took %v", time.Since(began))
			})
		}
		both.Wait()
		runFetched(t, cache)
	})
	t.Run("empty package lists", func(t *testing.T) {
		if _, err := findApt(); err != nil {
			return
		}
		conf := filepath.Join(t.TempDir(), "apt.conf")
		must(t, os.WriteFile(conf, []byte(`Dir::State::lists "`+t.TempDir()+`";`), 0o644))
		t.Setenv("APT_CONFIG", conf)
		cache := openTemp(t)
		must(t, Fetch(t.Context(), Config{CacheDir: cache, Again: true, Logger: testLogger(t)}))
		runFetched(t, cache)
	})
	if os.Geteuid() == 0 {
		t.Run("as nobody", func(t *testing.T) {
			cache := openTemp(t)
			must(t, os.Chown(cache, mappedID, mappedID))
			h := startHelper(t, "fetch", cache, mappedID)
			equal(t, "the error", h.said.Error, "")
			h.end()
			found, err := filepath.Glob(filepath.Join(cache, bundlesName, "*"))
			if err != nil || len(found) < 2 {
				t.Errorf("%v %v", found, err)
			}
		})
	}
}

// fetchMissing runs Fetch as on a machine without its own programs, so that only the cache counts.
func fetchMissing(t *testing.T, cache string) error {
	acct, err := pickAccount(-1)
	if err != nil {
		return err
	}
	f := &fetcher{cache: cache, acct: acct, log: testLogger(t)}
	if err := f.prepareCache(); err != nil {
		return err
	}
	lock, err := f.lockCache(t.Context())
	if err != nil {
		return err
	}
	defer lock.Release()
	if found, err := filepath.Glob(filepath.Join(cache, bundlesName, "*")); err != nil || len(found) > 0 {
		return err
	}
	return errors.Join(f.fetchPostgres(t.Context()), f.fetchRedis(t.Context()))
}

// runFetched starts the fetched programs from the cache.
func runFetched(t *testing.T, cache string) {
	t.Helper()
	acct, err := pickAccount(-1)
	must(t, err)
	log := slog.New(slog.DiscardHandler)
	ctx := context.Background()
	installed, err := postgresKind().probeLocation(ctx, postgresKind().listBundled(cache)[0], acct, log)
	must(t, err)
	base := openTemp(t)
	p := &Server{name: "postgres", acct: acct, base: base, data: filepath.Join(base, "data"), installed: installed,
		ask: syscall.SIGQUIT, insist: syscall.SIGQUIT, logger: testLogger(t)}
	cfg := Config{Test: true}
	must(t, p.initCluster(ctx, cfg))
	p.sockets, p.tempSock, err = socketFolder(base, acct)
	must(t, err)
	err = p.startServer(ctx, cfg)
	defer func() {
		if err := p.release(ctx); err != nil {
			t.Error(err)
		}
	}()
	must(t, err)
	t.Log(query(t, p.URL(), "SELECT version()"))
	for _, p := range redisKind().listBundled(cache) {
		out, err := askVersion(ctx, p.programPath(), p.libs, acct, log)
		if err != nil {
			t.Error(err)
		}
		t.Log(out)
	}
}
