//go:build linux

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/procfs"

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
	if cores, err := script.Must(procfs.NewDefaultFS()).CPUInfo(); err == nil && len(cores) > 0 {
		m.cpu = cmp.Or(cores[0].ModelName, unknown)
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

// environment describes the machine and the services, on which the numbers depend.
type environment struct {
	machine
	memory   uint64 // bytes
	postgres string // version and the settings that matter most
	redis    string
}

func (b *bench) readEnvironment(ctx context.Context) environment {
	m := environment{machine: readMachine(ctx), memory: *script.Must(script.Must(procfs.NewDefaultFS()).Meminfo()).MemTotalBytes}
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
