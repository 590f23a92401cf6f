package doctest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestVulnIsNeverSilentlyGreen: scripts/vuln exits with 0 only if govulncheck searched a database and found nothing. A
// script replaces govulncheck. It answers -version as 1.8 does, with a date only if it has a database, and exits with
// the given status.
func TestVulnIsNeverSilentlyGreen(t *testing.T) {
	t.Parallel()
	const reachable = "Go: go1\nScanner: govulncheck@v1\nDB: file:///db\nDB updated: 2026-11-01 00:00:00 +0000 UTC\n"
	for name, c := range map[string]struct {
		version, scan string // shell
		status        int
		says          string
	}{
		"nothing known":  {"printf '" + reachable + "'", "exit 0", 0, "updated: 2026-11-01"},
		"a finding":      {"printf '" + reachable + "'", "echo GO-2026-9999; exit 3", 3, "GO-2026-9999"},
		"no network":     {"printf 'Go: go1\nScanner: govulncheck@v1\nDB: https://vuln.go.dev\n\n'", "exit 0", 4, "skipped: nothing was looked for: the database "},
		"no such copy":   {"echo 'creating client: stat /db: no such file or directory'; exit 1", "exit 0", 4, "skipped: nothing was looked for: creating client"},
		"no program":     {"echo 'go: 403 Forbidden' >&2; exit 1", "exit 0", 4, "skipped: nothing was looked for: go: 403"},
		"it breaks":      {"printf '" + reachable + "'", "exit 1", 1, "failed: govulncheck ended with status 1"},
		"it panics":      {"printf '" + reachable + "'", "exit 2", 1, "failed: "},
		"its own status": {"printf 'DB updated: \n' >&2; exit 1", "exit 7", 1, "failed: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := filepath.Join(t.TempDir(), "govulncheck")
			text := "#!/bin/sh\ncase \"$*\" in *-version*) " + c.version + ";; *) " + c.scan + ";; esac\n"
			heraldtest.Must(t, os.WriteFile(stub, []byte(text), 0o600))
			cmd := exec.CommandContext(t.Context(), "../../../scripts/vuln", "./...")
			cmd.Env = append(os.Environ(), "GOVULNCHECK=sh "+stub, "GOVULNDB=")
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != c.status || !strings.Contains(string(out), c.says) {
				t.Errorf("status %d, want %d: %s", got, c.status, out)
			}
		})
	}
}
