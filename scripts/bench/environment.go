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
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentherald/herald/scripts/script"
)

const unknown = "unknown"

// machine describes where and when a benchmark began. A property that could not be read is "unknown", because the
// report is useful without it.
type machine struct {
	cores               int
	cpu, kernel, commit string
	goVersion           string // without the prefix "go"
	began               time.Time
}

func readMachine(ctx context.Context) machine {
	m := machine{cores: runtime.NumCPU(), goVersion: strings.TrimPrefix(runtime.Version(), "go"), commit: readCommit(ctx),
		cpu: unknown, kernel: unknown, began: time.Now().UTC()}
	if cpu, err := readField("/proc/cpuinfo", "model name"); err == nil {
		m.cpu = cpu
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.kernel = strings.TrimSpace(string(release))
	}
	return m
}

// measured is the line of a report about the commit and the time.
func (m machine) measured() string {
	return fmt.Sprintf("- Herald at commit %s, %s, %s of measuring", m.commit, m.began.Format("2006-01-02 15:04 UTC"),
		time.Since(m.began).Round(time.Second))
}

// readCommit returns the current commit, and states whether the tree has uncommitted changes.
func readCommit(ctx context.Context) string {
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

// readField returns the first value with the given name in a file of /proc, or "unknown" if the file lacks the name.
func readField(path, name string) (string, error) {
	f := script.Must(os.Open(path))
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), nil
		}
	}
	return unknown, lines.Err()
}

// environment describes the machine and the services, on which the numbers depend.
type environment struct {
	machine
	memory   int64  // bytes
	postgres string // version and the settings that matter most
	redis    string
}

func (b *bench) readEnvironment(ctx context.Context) environment {
	total := script.Must(readField("/proc/meminfo", "MemTotal"))
	m := environment{machine: readMachine(ctx), memory: script.Must(strconv.ParseInt(strings.TrimSuffix(total, " kB"), 10, 64)) << 10}
	script.Check(b.site.SQL(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT format('%s (fsync %s, synchronous_commit %s, shared_buffers %s)', current_setting('server_version'),
			current_setting('fsync'), current_setting('synchronous_commit'), current_setting('shared_buffers'))`).Scan(&m.postgres)
	}))
	info := b.site.Redis.Client().InfoMap(ctx, "server", "persistence")
	script.Check(info.Err())
	aof := "no append-only file"
	if info.Item("Persistence", "aof_enabled") == "1" {
		aof = "append-only file, flushed every second"
	}
	m.redis = info.Item("Server", "redis_version") + " (" + aof + ")"
	return m
}
