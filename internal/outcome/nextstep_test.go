package outcome

import (
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"os/exec"
	"strings"
	"testing"
)

// TestEveryReasonHasANextStep: for each reason, the operator gets a next step, or the answer that there is nothing to
// do. The text contains no part that fill should have replaced.
func TestEveryReasonHasANextStep(t *testing.T) {
	t.Parallel()
	known := Subject{Delivery: "5b0e1111-2222-5333-8444-555566667777", ChainID: 8453, Agent: "8453:110",
		Endpoint: "https://agent.example/mcp", Tool: "agent.receiveFeedback"}
	over, listed := known, known
	over.Over, listed.Listed = true, true
	for _, r := range Reasons() {
		for name, s := range map[string]Subject{"known": known, "over": over, "listed": listed, "unknown": {}} {
			got := NextStep(r, s)
			if got == "" || strings.ContainsAny(got, "{|}@") || strings.Contains(got, "  ") || strings.HasSuffix(got, ".") {
				t.Errorf("%s, %s: %q", r, name, got)
			}
			if waits := strings.HasPrefix(got, "nothing to do: it "); r.Ending() == Waiting && !s.Over && !waits {
				t.Errorf("%s waits, but the next step is %q", r, got)
			}
			if strings.Contains(got, "replay ") != (strings.Contains(got, known.Delivery)) {
				t.Errorf("%s, %s names no delivery to replay: %q", r, name, got)
			}
		}
	}
	if got := NextStep("", known) + NextStep("other", known); got != "" {
		t.Errorf("an unknown reason has the next step %q", got)
	}
}

func TestNextStepNamesKnownValues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		r    Reason
		s    Subject
		want string
	}{
		"another registry": {AgentDisabled, Subject{ChainID: 31337, Agent: "31337:7 --registry 0x5F"},
			"worker agent enable 31337:7 --registry 0x5F"},
		"a replay in another registry": {ToolError, Subject{ChainID: 8453, Agent: "8453:7 --registry 0x5F", Registry: "0x5F"},
			"worker delivery replay --agent 8453:7 --registry 0x5F --reason tool_error --yes"},
		"a replay in the known registry": {ToolError, Subject{ChainID: 8453, Agent: "8453:7", Registry: "0x80"},
			"worker delivery replay --agent 8453:7 --registry 0x80 --reason tool_error --yes"},
		"no registry":  {AgentDisabled, Subject{ChainID: 8453, Agent: "8453:7"}, "worker agent enable 8453:7"},
		"in the file":  {AuthRequired, Subject{ChainID: 8453, Agent: "8453:7", Listed: true}, "HERALD_SERVERS_FILE"},
		"by the file":  {AgentDisabled, Subject{ChainID: 8453, Agent: "8453:7", Listed: true}, `"enabled": true`},
		"of a probe":   {ToolError, Subject{ChainID: 8453, Agent: "8453:7"}, "worker delivery replay --agent 8453:7 --reason tool_error --yes"},
		"no new token": {AuthRequired, Subject{Delivery: "d1", ChainID: 8453, Agent: "8453:7"}, "; if the fault was repaired without a new token: worker delivery replay d1"},
		"a port":       {AuthRequired, Subject{ChainID: 8453, Agent: "8453:7", Endpoint: "https://a.example:8443/x"}, "set 8453:7 --origin https://a.example:8443/x "},
		"a literal":    {AuthRequired, Subject{ChainID: 8453, Agent: "8453:7", Endpoint: "https://[2001:db8::1]:8443/"}, "--origin https://[2001:db8::1]:8443 "},
		"a path":       {AuthRequired, Subject{ChainID: 8453, Agent: "8453:7", Endpoint: "https://a.example/b%2Fc/"}, "--origin https://a.example/b%2Fc/ "},
		"hostile path": {AuthRequired, Subject{ChainID: 8453, Agent: "8453:7", Endpoint: "https://a.example/$(reboot);b"}, "--origin 'https://a.example/$(reboot);b' "},
		"quoted path":  {AuthRequired, Subject{ChainID: 8453, Agent: "8453:7", Endpoint: "https://a.example/';reboot;'"}, "worker token set 8453:7 (where"},
		"long path":    {AuthRequired, Subject{ChainID: 8453, Agent: "8453:7", Endpoint: "https://a.example/" + strings.Repeat("a", 300)}, "worker token set 8453:7 (where"},
		"no address":   {AuthRequired, Subject{ChainID: 8453, Agent: "8453:7"}, "worker token set 8453:7 (where"},
		"hostile host": {AuthRequired, Subject{ChainID: 8453, Agent: "8453:7", Endpoint: "https://a$(reboot).example/"}, "worker token set 8453:7 (where"},
		"quoted host":  {AuthRequired, Subject{ChainID: 8453, Agent: "8453:7", Endpoint: "https://a';b.example/"}, "worker token set 8453:7 (where"},
	} {
		heraldtest.Contains(t, name, NextStep(c.r, c.s), c.want)
	}
}

// TestOriginOptionCanBeTyped: a shell passes the exact address on, and runs no part of it.
func TestOriginOptionCanBeTyped(t *testing.T) {
	t.Parallel()
	heraldtest.Equal(t, "a quote", OriginOption("https://a.example/'b"), "")
	for _, raw := range []string{"https://a.example", "https://a.example/", "https://[::1]:8080/mcp", "https://a.example/a$(echo$IFS)b", "https://a.example/a;b&c",
		"https://a.example/~a%2Fb/*!@:+=,(c)[d]", "https://a.example/`id`"} {
		got, err := exec.CommandContext(t.Context(), "sh", "-c", "printf '%s|'"+OriginOption(raw)).Output()
		if err != nil || string(got) != "--origin|"+raw+"|" {
			t.Errorf("%s is typed as %q, %v", raw, got, err)
		}
	}
}
