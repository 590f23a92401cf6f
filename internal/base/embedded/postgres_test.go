package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func startPostgres(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Logger = testLogger(t)
	p, err := StartPostgres(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() { _ = p.Stop(context.Background()) })
	return p
}

func stopPostgres(t *testing.T, p *Server) {
	t.Helper()
	must(t, p.Stop(context.Background()))
	select {
	case <-p.child.done:
	default:
		t.Fatal("stopped, but not done")
	}
}

func exec1(t *testing.T, url, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	must(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	must(t, err)
}

func query(t *testing.T, url, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	must(t, err)
	defer conn.Close(ctx)
	var s string
	must(t, conn.QueryRow(ctx, sql).Scan(&s))
	return s
}

func TestPostgresKeepsData(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	dir := openTemp(t)
	p := startPostgres(t, Config{Dir: dir})
	exec1(t, p.URL(), "CREATE TABLE kept AS SELECT 'yes' AS word")
	for setting, want := range map[string]string{"fsync": "on", "listen_addresses": "", "data_checksums": "on", "server_encoding": "UTF8", "TimeZone": "GMT"} {
		equal(t, setting, query(t, p.URL(), "SHOW "+setting), want)
	}
	if pgid, err := syscall.Getpgid(p.child.cmd.Process.Pid); err != nil || pgid == syscall.Getpgrp() {
		t.Errorf("the server is in our process group (%v): Ctrl-C would reach it", err)
	}
	if info, err := os.Stat(p.sockets); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("socket folder: %v %v", info, err)
	}
	pool, err := pgxpool.New(t.Context(), p.URL())
	must(t, err)
	must(t, pool.Ping(t.Context()))
	pool.Close()

	stopPostgres(t, p)
	p = startPostgres(t, Config{Dir: dir})
	equal(t, "kept", query(t, p.URL(), "SELECT word FROM kept"), "yes")

	// A connected client does not delay the stop. A stop without time is immediate.
	for _, patience := range []time.Duration{20 * time.Second, 0} {
		conn, err := pgx.Connect(t.Context(), p.URL())
		must(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		if err := p.Stop(ctx); patience > 0 && err != nil {
			t.Errorf("stop: %v", err)
		}
		cancel()
		select {
		case <-p.child.done:
		default:
			t.Error("the server still runs")
		}
		_ = conn.Close(t.Context())
		if patience > 0 {
			p = startPostgres(t, Config{Dir: dir})
		}
	}
}

func TestPostgresEphemeral(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	cache := openTemp(t)
	for _, name := range []string{"made by initdb", "copied from the cache"} {
		t.Run(name, func(t *testing.T) {
			p := startPostgres(t, Config{Ephemeral: true, Test: true, CacheDir: cache})
			equal(t, "fsync", query(t, p.URL(), "SHOW fsync"), "off")
			stopPostgres(t, p)
			if _, err := os.Stat(p.ephemeral.dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is still there: %v", p.ephemeral.dir, err)
			}
			must(t, p.Stop(context.Background()))
			if kept, err := filepath.Glob(filepath.Join(cache, "*")); err != nil || len(kept) != 1 {
				t.Errorf("the cache has %v, %v", kept, err)
			}
		})
	}
}

// TestPostgresAsOthers runs Postgres as users that root can become: one with a passwd entry and one without.
func TestPostgresAsOthers(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	if os.Geteuid() != 0 {
		return // the other tests of this file cover users other than root
	}
	for name, uid := range map[string]uint32{"nobody": mappedID, "no passwd entry": 42_421} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := openTemp(t)
			must(t, os.Chown(dir, int(uid), int(uid)))
			for range 2 { // created, then restarted with its data
				h := startHelper(t, "postgres", dir, uid)
				equal(t, "the error", h.said.Error, "")
				exec1(t, h.said.URL, "CREATE TABLE IF NOT EXISTS kept (n int); INSERT INTO kept VALUES (1)")
				equal(t, "the user", query(t, h.said.URL, "SELECT current_user::text"), role)
				h.end()
			}
			h := startHelper(t, "postgres", dir, uid)
			if got := query(t, h.said.URL, "SELECT count(*)::text FROM kept"); got != "2" {
				t.Errorf("%s rows", got)
			}
			// After SIGKILL of the helper, the kernel ends the server.
			pid := h.said.PID
			h.kill()
			eventually(t, "the server is gone", func() bool { return hasEnded(pid) })
		})
	}
	t.Run("folder that cannot be entered", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openTemp(t), "closed")
		must(t, os.Mkdir(dir, 0o700))
		_, err := StartPostgres(t.Context(), Config{Dir: filepath.Join(dir, "data")})
		if unreachable, ok := errors.AsType[*UnreachableError](err); !ok || unreachable.At != dir {
			t.Errorf("%v", err)
		}
	})
}

func TestPostgresOfSudo(t *testing.T) {
	needPostgres(t)
	if os.Geteuid() != 0 {
		return
	}
	t.Setenv("SUDO_UID", fmt.Sprint(mappedID))
	dir := openTemp(t)
	p := startPostgres(t, Config{Dir: dir, Test: true})
	equal(t, "the account", p.acct.uid, mappedID)
	stopPostgres(t, p)
	// From then on the owner serves the data, even if another user starts the server.
	t.Setenv("SUDO_UID", "")
	if p = startPostgres(t, Config{Dir: dir, Test: true}); p.acct.uid != mappedID {
		t.Errorf("runs as %s", p.acct)
	}
}

func TestPostgresParentKilled(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	dir := openTemp(t)
	h := startHelper(t, "postgres", dir, 0)
	equal(t, "the error", h.said.Error, "")
	exec1(t, h.said.URL, "SET synchronous_commit = on; CREATE TABLE kept AS SELECT 'yes' AS word")
	pid := h.said.PID
	h.kill()
	// The next start succeeds in spite of the dying server and its files.
	p := startPostgres(t, Config{Dir: dir, Test: true})
	if !hasEnded(pid) {
		t.Errorf("the old server %d still runs", pid)
	}
	equal(t, "kept", query(t, p.URL(), "SELECT word FROM kept"), "yes")
}

func TestPostgresLeftovers(t *testing.T) {
	t.Parallel()
	parent := t
	needPostgres(t)
	dir := openTemp(t)
	p := startPostgres(t, Config{Dir: dir, Test: true})
	exec1(t, p.URL(), "SET synchronous_commit = on; CREATE TABLE kept AS SELECT 'yes' AS word")
	for name, spoil := range map[string]func(t *testing.T){
		"the postmaster was killed": func(t *testing.T) {
			must(t, syscall.Kill(p.child.cmd.Process.Pid, syscall.SIGKILL))
			<-p.child.done
			must(t, p.release(t.Context()))
			if _, err := os.Stat(filepath.Join(p.data, "postmaster.pid")); err != nil {
				t.Fatal(err)
			}
		},
		"the server was left running": func(t *testing.T) {
			leaveRunning(t, p)
		},
		"the number is another program's now": func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join(p.data, "postmaster.pid"))
			must(t, err)
			stopPostgres(t, p)
			_, rest, _ := strings.Cut(string(b), "\n")
			if err := os.WriteFile(filepath.Join(p.data, "postmaster.pid"), fmt.Appendf(nil, "%d\n%s", os.Getpid(), rest), 0o600); err != nil {
				t.Fatal(err)
			}
			must(t, os.WriteFile(filepath.Join(p.base, serverName), fmt.Append(nil, os.Getpid()), 0o600))
		},
		"initdb was killed": func(t *testing.T) {
			stopPostgres(t, p)
			must(t, os.Mkdir(p.data+".new", 0o700))
			must(t, os.WriteFile(filepath.Join(p.data+".new", "PG_VERSION"), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			old := p
			spoil(t)
			p = startPostgres(parent, Config{Dir: dir}) // also for the next case
			equal(t, "kept", query(t, p.URL(), "SELECT word FROM kept"), "yes")
			<-old.child.done
		})
	}
}

func TestPostgresOddFolders(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	for name, below := range map[string]string{
		"long":             strings.Repeat("long-name-", 12),
		"comma and quotes": `a,"b' c%20d?e#f`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The name's length does not concern initdb, its characters do.
			p := startPostgres(t, Config{Dir: filepath.Join(openTemp(t), below), Test: name == "long"})
			equal(t, "database", query(t, p.URL(), "SELECT current_database()::text"), role)
			stopPostgres(t, p)
			if _, err := os.Stat(p.sockets); p.tempSock && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is still there", p.sockets)
			}
		})
	}
}

func TestPostgresRefuses(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	t.Run("another version's data", func(t *testing.T) {
		t.Parallel()
		dir := openTemp(t)
		p := startPostgres(t, Config{Dir: dir, Test: true})
		stopPostgres(t, p)
		must(t, os.WriteFile(filepath.Join(p.data, "PG_VERSION"), []byte("12\n"), 0o600))
		_, err := StartPostgres(t.Context(), Config{Dir: dir, Test: true})
		if version, ok := errors.AsType[*VersionError](err); !ok || version.Major != 12 {
			t.Errorf("%v", err)
		}
	})
	t.Run("files that are no cluster", func(t *testing.T) {
		t.Parallel()
		dir := openTemp(t)
		must(t, os.MkdirAll(filepath.Join(dir, "postgres", "data"), 0o755))
		must(t, os.Chmod(filepath.Join(dir, "postgres"), 0o711))
		must(t, os.WriteFile(filepath.Join(dir, "postgres", "data", "mine"), nil, 0o600))
		if _, err := StartPostgres(t.Context(), Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "no Postgres cluster") {
			t.Errorf("%v", err)
		}
	})
	for name, cfg := range map[string]Config{"no folder": {}, "folder and ephemeral": {Dir: "/x", Ephemeral: true}} {
		if _, err := StartPostgres(t.Context(), cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := StartPostgres(ctx, Config{Ephemeral: true}); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

func TestPostgresEndsByItself(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	p := startPostgres(t, Config{Ephemeral: true, Test: true})
	must(t, syscall.Kill(p.child.cmd.Process.Pid, syscall.SIGQUIT))
	select {
	case <-p.child.done:
	case <-time.After(30 * time.Second):
		t.Fatal("nobody was told")
	}
	must(t, p.Stop(context.Background()))
}
