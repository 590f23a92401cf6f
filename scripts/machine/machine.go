// Package machine reads what the figures of a benchmark depend on: the processor, the kernel, Go and the commit. What
// Postgres, Redis or Node.js run there is for the benchmarks that use them.
package machine

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

const unknown = "unknown"

// Machine describes where and when a benchmark began. What could not be read is "unknown": the report is of use without it.
type Machine struct {
	Cores               int
	CPU, Kernel, Commit string
	Go                  string // without the prefix "go"
	Began               time.Time
}

// Read describes this machine, now.
func Read(ctx context.Context) Machine {
	m := Machine{Cores: runtime.NumCPU(), Go: strings.TrimPrefix(runtime.Version(), "go"), Commit: ReadCommit(ctx),
		CPU: unknown, Kernel: unknown, Began: time.Now().UTC()}
	if cpu, err := ReadField("/proc/cpuinfo", "model name"); err == nil {
		m.CPU = cpu
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(release))
	}
	return m
}

// ReadCommit names what is measured; a tree with changes is not a commit.
func ReadCommit(ctx context.Context) string {
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

// ReadField returns the first value of that name in one of /proc's files; "unknown" if there is none.
func ReadField(path, name string) (string, error) {
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
	return unknown, lines.Err()
}
