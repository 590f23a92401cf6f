package tokens

import (
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestDescribeAsked checks that the question shows the scope and the resource. It omits the paths of addresses in the
// servers file, because they may contain secrets.
func TestDescribeAsked(t *testing.T) {
	t.Parallel()
	many := strings.TrimSpace(strings.Repeat("feedback:write:all ", 40))
	for want, s := range map[string]tokenSource{
		"without a scope": {},
		"with scope a b, for resource https://agent.example/mcp":  {Scope: "a b", Resource: "https://agent.example/mcp"},
		"without a scope, for resource https://agent.example":     {Resource: "https://agent.example/" + "secret-4c6f7264", Listed: true},
		"with scope a·[2J, for resource https://agent.example/·x": {Scope: "a\x1b[2J", Resource: "https://agent.example/\u009bx"},
	} {
		heraldtest.Equal(t, "describeAsked(s)", describeAsked(s), want)
	}
	if got := listScopes(many + " admin"); len(got) > 330 || !strings.HasSuffix(got, "feedback:write:all and 26 more") {
		t.Errorf("%q", got)
	}
	heraldtest.Equal(t, "one long scope", listScopes(strings.Repeat("x", 500)), "and 1 more")
}
