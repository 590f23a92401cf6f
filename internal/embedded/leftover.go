package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// postmaster is what the first lines of postmaster.pid say.
type postmaster struct {
	pid       int
	port      string
	socketDir string
}

func readPostmaster(data string) (postmaster, error) {
	b, err := readSmall(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return postmaster{}, err
	}
	lines := strings.Split(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 1 {
		return postmaster{}, fmt.Errorf("%s/postmaster.pid is not what Postgres writes", data)
	}
	pm := postmaster{pid: pid}
	if len(lines) >= 5 {
		pm.port, pm.socketDir = strings.TrimSpace(lines[3]), strings.TrimSpace(lines[4])
	}
	return pm, nil
}

// stopLeftover ends a Postgres that serves the data although the process that started it is gone. The caller holds the
// cluster's lock, so nobody alive owns that server. It is not reused: it would run with the old process's settings, and
// nothing would end it with this process.
func stopLeftover(ctx context.Context, data string, log *slog.Logger) error {
	ctx, cancel := withTimeout(ctx, stopTimeout)
	defer cancel()
	pm, err := readPostmaster(data)
	noFile := errors.Is(err, fs.ErrNotExist)
	pids, known := workingIn(data, "postgres")
	if !known {
		if err != nil || !pm.answersFor(ctx, data) {
			return nil // Postgres itself refuses to start if that is wrong
		}
		pids = []int{pm.pid}
	}
	if len(pids) > 0 {
		log.Info("postgres: stopping a server that a killed process left", "pid", pm.pid, "processes", len(pids))
		if err := endAll(ctx, data, pm.pid, pids); err != nil {
			return fmt.Errorf("a Postgres left by a killed process still uses %s: %w", data, err)
		}
	}
	if pm.socketDir != "" && strings.HasPrefix(filepath.Base(pm.socketDir), socketPrefix) {
		removeSockets(pm.socketDir)
	}
	// Nothing runs on the data any more. A pid file that stayed would stop the start if another program of this user has
	// the number by now, as happens in containers. Where processes cannot be listed the file is Postgres' to judge.
	if known && !noFile {
		if err := os.Remove(filepath.Join(data, "postmaster.pid")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an old postmaster.pid: %w", err)
		}
	}
	return nil
}

// endAll asks the postmaster for a fast shutdown, then insists. Backends without a postmaster end by themselves.
func endAll(ctx context.Context, data string, postmaster int, pids []int) error {
	left := func() (bool, error) {
		now, known := workingIn(data, "postgres")
		if !known {
			if alive(postmaster) {
				now = []int{postmaster}
			}
		}
		pids = now
		return len(now) == 0, nil
	}
	for _, step := range []struct {
		sig  syscall.Signal
		wait time.Duration
		all  bool
	}{{syscall.SIGINT, 10 * time.Second, false}, {syscall.SIGQUIT, 5 * time.Second, true}, {syscall.SIGKILL, 5 * time.Second, true}} {
		for _, pid := range pids {
			if step.all || pid == postmaster {
				_ = syscall.Kill(pid, step.sig)
			}
		}
		waited, cancel := withTimeout(ctx, step.wait)
		err := poll(waited, 10*time.Millisecond, left)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("processes %v do not end", pids)
}

// answersFor asks the server at the socket that the pid file names which data it serves, where processes cannot be listed.
func (pm postmaster) answersFor(ctx context.Context, data string) bool {
	if !filepath.IsAbs(pm.socketDir) || !alive(pm.pid) {
		return false
	}
	ctx, cancel := withTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, socketURL(pm.socketDir, "postgres"))
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	var served string
	if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&served); err != nil {
		return false
	}
	real, err := filepath.EvalSymlinks(data)
	return err == nil && (served == real || served == data)
}

// removeSockets removes a socket folder that a killed process left in a shared temporary folder: only our kind of files.
func removeSockets(dir string) {
	for _, name := range []string{".s.PGSQL.5432", ".s.PGSQL.5432.lock"} {
		_ = os.Remove(filepath.Join(dir, name))
	}
	_ = os.Remove(dir)
}
