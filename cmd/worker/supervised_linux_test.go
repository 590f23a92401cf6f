package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestProbeLeavesNoDaemon checks that a process in a new session, started by an agent's command, ends together with the
// command.
func TestProbeLeavesNoDaemon(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pids, file := filepath.Join(dir, "pids"), filepath.Join(dir, "servers.json")
	script := fmt.Sprintf("setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $! >>%s", pids)
	text := fmt.Sprintf(`{"servers": {"8453:42": {"command": "/bin/sh", "args": ["-c", %q]}}}`, script)
	heraldtest.Must(t, os.WriteFile(file, []byte(text), 0o600))
	code, out, errs := worker(t, []string{"HERALD_SERVERS_FILE=" + file}, "agent", "probe", "8453:42")
	started, err := os.ReadFile(pids)
	if err != nil || code == 0 {
		t.Fatalf("the command was not run: %v, %d\n%s%s", err, code, out, errs)
	}
	for _, word := range strings.Fields(string(started)) {
		pid, err := strconv.Atoi(word)
		heraldtest.Must(t, err)
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !strings.Contains(string(stat), ") Z ") {
			t.Errorf("process %d is left: %s", pid, stat)
		} else if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
}
