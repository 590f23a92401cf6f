//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// machine is what the numbers depend on.
type machine struct {
	cores    int
	cpu      string
	memory   int64 // bytes
	kernel   string
	goes     string
	postgres string // version and the settings that cost most
	redis    string
	commit   string
	began    time.Time
}

func (b *bench) machine(ctx context.Context) (m machine, err error) {
	m = machine{cores: runtime.NumCPU(), goes: runtime.Version(), began: time.Now().UTC(), commit: commit(ctx)}
	if m.cpu, err = field("/proc/cpuinfo", "model name"); err != nil {
		return m, err
	}
	total, err := field("/proc/meminfo", "MemTotal")
	if err != nil {
		return m, err
	}
	kib, err := strconv.ParseInt(strings.TrimSuffix(total, " kB"), 10, 64)
	if err != nil {
		return m, fmt.Errorf("/proc/meminfo: %w", err)
	}
	m.memory = kib << 10
	var u syscall.Utsname
	if err := syscall.Uname(&u); err != nil {
		return m, err
	}
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		m.kernel += string(rune(c))
	}
	err = b.site.SQL(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var version, fsync, commits, buffers string
		err := c.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'), current_setting('shared_buffers')`).
			Scan(&version, &fsync, &commits, &buffers)
		m.postgres = fmt.Sprintf("%s (fsync %s, synchronous_commit %s, shared_buffers %s)", version, fsync, commits, buffers)
		return err
	})
	if err != nil {
		return m, err
	}
	info, err := b.site.Redis.Client().Info(ctx, "server", "persistence").Result()
	if err != nil {
		return m, err
	}
	aof := "no append-only file"
	if infoField(info, "aof_enabled") == "1" {
		aof = "append-only file, flushed every second"
	}
	m.redis = infoField(info, "redis_version") + " (" + aof + ")"
	return m, nil
}

// field is the first value of that name in one of /proc's files.
func field(path, name string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), nil
		}
	}
	return "unknown", lines.Err()
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// commit says what was measured; a tree with changes is not a commit.
func commit(ctx context.Context) string {
	hash, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "no git history"
	}
	text := strings.TrimSpace(string(hash))
	if changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output(); err != nil || len(changed) > 0 {
		text += " and changes that are not committed"
	}
	return text
}
