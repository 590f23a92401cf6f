// Package machine reads the properties of a machine on which a benchmark's results depend: the processor, the kernel,
// the version of Go, and the commit. Benchmarks that use Postgres, Redis or Node.js read their versions themselves.
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

// Machine describes where and when a benchmark began. A property that could not be read is "unknown", because the
// report is useful without it.
type Machine struct {
	Cores               int
	CPU, Kernel, Commit string
	Go                  string // without the prefix "go"
	Began               time.Time
}

// Read describes this machine at the current time.
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

// ReadCommit returns the current commit, and states whether the tree has uncommitted changes.
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

// ReadField returns the first value with the given name in a file of /proc, or "unknown" if the file lacks the name.
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
