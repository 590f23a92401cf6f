package npm

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestManifestTakesExactVersionsOnly(t *testing.T) {
	t.Parallel()
	m, err := manifestOf([]string{"express@5.3.0", "@modelcontextprotocol/conformance@0.2.0-alpha.12"})
	heraldtest.Must(t, err)
	var got struct{ Dependencies map[string]string }
	heraldtest.Must(t, json.Unmarshal(m, &got))
	if got.Dependencies["express"] != "5.3.0" || got.Dependencies["@modelcontextprotocol/conformance"] != "0.2.0-alpha.12" {
		t.Errorf("%s", m)
	}
	for _, p := range []string{"", "express", "express@", "express@^5.0.0", "express@5", "express@latest", "@a@1.0.0", "../x@1.0.0",
		"a/b@1.0.0", "express@5.3.0 --global", "--global", "git+ssh://a@1.0.0", "Express@5.3.0", "x@1.0.0\n"} {
		if _, err := manifestOf([]string{p}); err == nil {
			t.Errorf("%q was taken", p)
		}
	}
}

// TestInstallOnce: an installed package is not installed again, and a failed installation leaves no files behind.
func TestInstallOnce(t *testing.T) {
	home := t.TempDir()
	bin := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	t.Setenv("HOME", home)
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	fake := func(script string) {
		t.Helper()
		heraldtest.Must(t, os.WriteFile(filepath.Join(bin, "npm"), []byte("#!/bin/sh\n"+script), 0o755))
	}
	fake("echo no such package >&2; exit 1\n")
	if _, err := Install(t.Context(), "a@1.0.0"); err == nil || !strings.Contains(err.Error(), "no such package") {
		t.Errorf("a failed installation: %v", err)
	}
	fake("mkdir -p node_modules/a && echo here > node_modules/a/x\n")
	f, err := Install(t.Context(), "a@1.0.0")
	heraldtest.Must(t, err)
	if b, err := os.ReadFile(f.Path("a", "x")); err != nil || string(b) != "here\n" {
		t.Errorf("%q %v", b, err)
	}
	fake("exit 1\n")
	again, err := Install(t.Context(), "a@1.0.0")
	if err != nil || again != f {
		t.Errorf("%q %v, want %q", again, err, f)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(string(f)), "installing-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Install(ctx, "b@1.0.0"); err == nil {
		t.Error("installed although nobody waits any more")
	}
}

func TestMajor(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int{"v22.23.3\n": 22, "v20.1.0": 20, "": 0, "node": 0} {
		if got := major(in); got != want {
			t.Errorf("%q: %d, want %d", in, got, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy")
	t.Setenv("npm_config_registry", "x")
	t.Setenv("NODE_OPTIONS", "--inspect")
	t.Setenv("HERALD_TEST_KEPT", "1")
	env := Environment("PORT=1")
	for _, gone := range []string{"HTTPS_PROXY=http://proxy", "npm_config_registry=x", "NODE_OPTIONS=--inspect"} {
		if slices.Contains(env, gone) {
			t.Errorf("%s is still there", gone)
		}
	}
	if !slices.Contains(env, "PORT=1") || !slices.Contains(env, "HERALD_TEST_KEPT=1") {
		t.Errorf("%v", env)
	}
}
