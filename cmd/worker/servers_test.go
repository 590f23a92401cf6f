package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/servers"
)

// The doctor reads the servers file as the worker would, and says where it is wrong.
func TestDoctorReadsTheServersFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "servers.json")
	data := "HERALD_DATA=" + t.TempDir()
	for content, want := range map[string]string{
		`{"servers": {"8453:42": {"url": "https://a.example"}, "1:1": {"enabled": false}}}`: "ok    servers        HERALD_SERVERS_FILE names 2 agents",
		"{\"servers\": {\n\"8453:42\": {\"url\": \"${HERALD_TEST_UNSET}\"}}}":               `FAIL  servers        ` + path + `:2: servers["8453:42"].url: names ${HERALD_TEST_UNSET}, which is not set`,
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := worker(t, []string{data, "HERALD_SERVERS_FILE=" + path}, "doctor")
		if !strings.Contains(out, want) || (code == 0) != strings.HasPrefix(want, "ok") {
			t.Errorf("%d, want %s:\n%s%s", code, want, out, errs)
		}
	}
}

// agent resolve --check goes by the servers file where that says how the agent is called, as deliveries do.
func TestCheckGoesByTheServersFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "servers.json")
	content := `{"servers": {"8453:1": {"url": "https://a.example"}, "8453:2": {"url": "https://a.example", "enabled": false}, "8453:3": {"onUnknown": "hold"}}}`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := servers.Load(path, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		agent    string // "": not in the file
		resolved bool
		want     error
	}{
		{"1", false, nil}, {"1", true, nil}, {"2", true, errUndeliverable}, {"3", false, errUndeliverable}, {"3", true, nil},
		{"", false, errUndeliverable}, {"", true, nil},
	} {
		var listed *servers.Server
		if s, ok := file.Lookup(8453, c.agent); ok {
			listed = &s
		}
		if err := checkResolved(agentResolution{Resolved: c.resolved}, listed, nil); err != c.want {
			t.Errorf("agent %q, resolved %v: %v, want %v", c.agent, c.resolved, err, c.want)
		}
	}
	if err := checkResolved(agentResolution{}, nil, errNotNow); err != errNotNow {
		t.Error(err)
	}
}
