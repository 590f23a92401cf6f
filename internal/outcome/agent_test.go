package outcome

import (
	"errors"
	"testing"
)

// TestJudge: each fact ends or holds the deliveries of an agent with its own reason, a filter first. The
// agent is not at fault for a tool that the operator does not list.
func TestJudge(t *testing.T) {
	t.Parallel()
	for want, agents := range map[Reason][]Agent{
		"":             {{}},
		Filtered:       {{Filter: "rule 1", FileDisables: true, RowDisables: true}},
		AgentDisabled:  {{FileDisables: true, RowDisables: true, Inactive: true}, {Disabled: true}, {RowDisables: true, Inactive: true}},
		AgentInactive:  {{Inactive: true, Unlisted: Tool{Name: "a"}}},
		ToolNotFound:   {{Unlisted: Tool{Name: "a"}}},
		ToolNotOffered: {{Unlisted: Tool{Name: "a", Optional: true}}},
	} {
		for _, a := range agents {
			failure, failed := errors.AsType[*Failure](a.Judge())
			if failed != (want != "") || failed && (failure.Reason != want || failure.Ours != (a.Unlisted.Name != "" && !a.Inactive)) {
				t.Errorf("%+v: %+v, want %s", a, failure, want)
			}
		}
	}
}
