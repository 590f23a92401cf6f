//go:build unix && !linux

package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// clearLeftover stops a Postgres that still serves the data although the process that started it is gone: these systems
// do not end a server with its parent. The caller holds the cluster's lock, so no live process owns that server.
// Postgres itself handles any other pid file.
func clearLeftover(ctx context.Context, data string, log *slog.Logger) error {
	ctx, cancel := withTimeout(ctx, stopTimeout)
	defer cancel()
	pm, err := readPostmaster(data)
	if err != nil || !pm.answersFor(ctx, data) {
		return nil
	}
	log.Info("postgres: stopping a server that a killed process left", "pid", pm.pid)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		_ = syscall.Kill(pm.pid, signal)
		wait, cancel := withTimeout(ctx, 10*time.Second)
		err = pollUntil(wait, 10*time.Millisecond, func() (bool, error) { return !isAlive(pm.pid), nil })
		cancel()
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("a Postgres left by a killed process still uses %s: process %d: %w", data, pm.pid, err)
	}
	return nil
}

// postmaster holds the first lines of postmaster.pid.
type postmaster struct {
	pid       int
	socketDir string
}

func readPostmaster(data string) (postmaster, error) {
	b, err := readSmall(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return postmaster{}, err
	}
	lines := strings.Split(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 1 || len(lines) < 5 {
		return postmaster{}, fmt.Errorf("%s/postmaster.pid is not what Postgres writes", data)
	}
	return postmaster{pid: pid, socketDir: strings.TrimSpace(lines[4])}, nil
}

// answersFor reports whether the server at the socket in the pid file serves data. It asks the server, because another
// program may have that process id by now.
func (pm postmaster) answersFor(ctx context.Context, data string) bool {
	if !filepath.IsAbs(pm.socketDir) || !isAlive(pm.pid) {
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

// namespaces is false: only Linux has user namespaces.
const namespaces = false

// processAttr returns the attributes of a child that runs as the account in its own process group. These systems have
// no parent-death signal: the next start stops leftover servers (clearLeftover).
func (a account) processAttr(syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a.isOtherUser() {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

func isZombie(int) bool { return false }

// memoryDir returns "": this system has no known folder in memory.
func memoryDir() string { return "" }

// describeFullDisk returns "": how much is free is not known here.
func describeFullDisk(string, uint64) string { return "" }
