package npm

import (
	"encoding/json"
	"slices"
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
