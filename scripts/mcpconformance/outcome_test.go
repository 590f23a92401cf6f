package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func result(scenario, reason string, ended error, statuses ...string) outcome {
	o := outcome{key: key{"2025-11-25", scenario}, ended: ended}
	if reason != "" {
		o.may = expectation{"c", reason}
	}
	for _, s := range statuses {
		o.checks = append(o.checks, check{ID: "c", Status: s})
	}
	return o
}

func TestPassed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		o    outcome
		want bool
	}{
		"all well":              {result("a", "", nil, "SUCCESS", "INFO", "SKIPPED"), true},
		"no check, 0/0":         {result("a", "", nil), false},
		"nothing but skipped":   {result("a", "", nil, "SKIPPED"), false},
		"a failure":             {result("a", "", nil, "SUCCESS", "FAILURE"), false},
		"a warning":             {result("a", "", nil, "SUCCESS", "WARNING"), false},
		"the suite says failed": {result("a", "", errors.New("exit status 1"), "SUCCESS"), false},
	} {
		if got := tt.o.passed(); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	good, bad := result("a", "", nil, "SUCCESS"), result("b", "because", nil, "FAILURE")
	if err := verdict([]outcome{good, bad}, nil, true); err != nil {
		t.Error(err)
	}
	other := result("b", "because", errors.New("exit status 1"), "FAILURE")
	other.checks[0].ID = "another"
	for want, err := range map[string]error{
		"b failed otherwise":                verdict([]outcome{good, result("b", "because", errors.New("exit status 1"))}, nil, true),
		"otherwise than expected: not in c": verdict([]outcome{good, other, result("b", "because", nil, "WARNING")}, nil, true),
		"c failed":                          verdict([]outcome{good, result("c", "", nil, "FAILURE")}, nil, true),
		"b passes: take it out":             verdict([]outcome{result("b", "because", nil, "SUCCESS")}, nil, true),
		"no scenario was run":               verdict(nil, nil, false),
		"the suite does not have it":        verdict([]outcome{good}, map[key]expectation{{"2025-11-25", "gone"}: {"c", "because"}}, true),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := verdict([]outcome{good}, map[key]expectation{{"2025-11-25", "other"}: {"c", "because"}}, false); err != nil {
		t.Errorf("a part of the scenarios: %v", err)
	}
}

func TestScenariosOf(t *testing.T) {
	t.Parallel()
	const list = `Required for 2026-07-28 (69 scenarios, frozen):

Server scenarios (test against a server):
  - server-stateless
  - caching

Client scenarios (test against a client):
  - tools_call
  - auth/basic-cimd

Run and reported, but never scored:
  extension (2):
    - auth/dpop [client]
    - tasks-lifecycle [server]
  added-after-release (1):
    - json-schema-2020-12-preservation [client]
`
	want := []string{"tools_call", "auth/basic-cimd", "auth/dpop", "json-schema-2020-12-preservation"}
	if got := scenariosOf(list); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := scenariosOf("no such command"); got != nil {
		t.Errorf("%v", got)
	}
}

// TestReadChecks reads the checks of every file.
func TestReadChecks(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if got := readChecks(folder); got != nil {
		t.Errorf("%v", got)
	}
	for name, text := range map[string]string{"auth/a": `[{"id":"x","status":"SUCCESS"}]`, "b": `[{"id":"y","status":"FAILURE"},{"id":"z","status":"INFO"}]`} {
		if err := os.MkdirAll(filepath.Join(folder, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name, "checks.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := readChecks(folder); len(got) != 3 {
		t.Errorf("%v", got)
	}
}
