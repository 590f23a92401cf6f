package report

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestJSON(t *testing.T) {
	t.Parallel()
	got, err := JSON(map[string]string{"a": "\u202e\u0085\x1b\x7f<é>"})
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "JSON that is safe on a terminal", got, "{\n  \"a\": \"\\u202e\\u0085\\u001b\\u007f<é>\"\n}\n")
}

func TestHashWords(t *testing.T) {
	t.Parallel()
	for v, want := range map[erc8004.Verdict]string{erc8004.SHA256: "sha256: SHA-256 of", erc8004.JCS: "jcs: keccak256 of another form", "": ""} {
		if got := describeHash(v); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q", v, got)
		}
	}
}

func TestToolWords(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":   "",
		"[]": "none",
		`[{"name":"a","schema":true},{"name":"b","schema":false}]`: "2: a, b (without a schema)",
		`{"truncated":true}`: `{"truncated":true}`,
		"[" + strings.TrimSuffix(strings.Repeat(`{"name":"a","schema":true},`, 12), ",") + "]": "12: " + strings.TrimSuffix(strings.Repeat("a, ", 10), ", ") + " and 2 more",
	} {
		heraldtest.Equal(t, raw, Tools(json.RawMessage(raw)), want)
	}
	for raw, want := range map[string]string{"": "", `{"Name":"a","Version":""}`: "a", `{"name":"a","version":"1"}`: "a 1", `[1]`: "[1]"} {
		heraldtest.Equal(t, raw, Server(json.RawMessage(raw)), want)
	}
}
