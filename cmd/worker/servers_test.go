package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestDoctorReadsTheServersFile checks that the doctor reads the servers file as the worker does, and reports its
// faults.
func TestDoctorReadsTheServersFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "servers.json")
	data := "HERALD_DATA=" + openFolder(t)
	for content, want := range map[string]string{
		`{"servers": {"8453:42": {"url": "https://a.example"}, "1:1": {"enabled": false}}}`: "ok    servers        HERALD_SERVERS_FILE names 2 agents",
		"{\"servers\": {\n\"8453:42\": {\"url\": \"${HERALD_TEST_UNSET}\"}}}":               `FAIL  servers        ` + path + `:2: servers["8453:42"].url: names ${HERALD_TEST_UNSET}, which is not set`,
	} {
		heraldtest.Must(t, os.WriteFile(path, []byte(content), 0o600))
		code := map[bool]int{true: 0, false: exitFailed}[strings.HasPrefix(want, "ok")]
		checkWorker(t, []string{data, "HERALD_SERVERS_FILE=" + path}, code, want, "doctor")
	}
}
