package outcome

import (
	"os/exec"
	"strings"
	"testing"
)

const base, devnet = "0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", "0x5FbDB2315678afecb367f032d93F642f64180aa3"

// TestEveryReasonHasANextStep: for each reason, the operator gets a next step, or the answer that there is nothing to
// do.
func TestEveryReasonHasANextStep(t *testing.T) {
	t.Parallel()
	s := Subject{Delivery: "5b0e1111-2222-5333-8444-555566667777", ChainID: 8453, AgentID: "110", Registry: strings.ToLower(base),
		Endpoint: "https://agent.example/mcp", Tool: "agent.receiveFeedback"}
	const replay = "worker delivery replay 5b0e1111-2222-5333-8444-555566667777"
	over := map[Reason]string{
		NoURI: replay, NoDocument: "worker agent resolve 8453:110", NoMCPEndpoint: "register an MCP endpoint; then: " + replay,
		AgentInactive: replay, AgentNotFound: "IDENTITY_REGISTRY_8453", Revoked: "nothing to do: ", ToolNotOffered: "agent.receiveFeedback",
		NeverDelivered: "nothing to do: ", MinedAgain: "nothing to do: ",
		InvalidJob: "enqueue it again", EventNotFound: "RPC_URL_8453", ToolNotFound: "agent.receiveFeedback",
		SchemaMismatch: "worker agent probe 8453:110", HashMismatch: "HERALD_HASH_POLICY=annotate", EndpointUnverified: "HERALD_BINDING=warn",
		AddressBlocked: "HERALD_ALLOW_NETWORKS", TransportRefused: "HERALD_STDIO_COMMANDS", AuthFailed: replay, ToolError: replay,
		BadResponse: "worker agent probe 8453:110", Operator: replay, Reorg: "nothing to do: ",
		AuthRequired: "store a token: worker token set 8453:110 --origin https://agent.example/mcp (where it wants OAuth: " +
			"worker token login 8453:110 --origin https://agent.example/mcp)",
		AgentDisabled:     "worker agent enable 8453:110",
		HeldUnknown:       "worker delivery cancel 5b0e1111-2222-5333-8444-555566667777",
		ChainUnconfigured: "RPC_URL_8453", GatewayUnconfigured: "ARWEAVE_GATEWAY",
		NotConfirmed: "HERALD_CONFIRMATIONS", AgentBusy: "by itself", BehindEarlier: "by itself", Throttled: "by itself",
		OverBudget: "by itself", BreakerOpen: "worker agent probe 8453:110",
		ChainUnavailable: replay, ContentUnavailable: replay, ConnectFailed: replay, Timeout: replay, RateLimited: replay, ServerError: replay,
		Unknown: replay, InternalError: replay, Expired: replay,
	}
	for _, r := range Reasons() {
		want, ok := over[r]
		if !ok {
			t.Errorf("%s: this test knows nothing of it", r)
			continue
		}
		s.Over = true
		if got := NextStep(r, s); got == "" || !strings.Contains(got, want) {
			t.Errorf("%s does not say %q: %q", r, want, got)
		}
		s.Over = false
		got := NextStep(r, s)
		if r.Ending() == Wait && r != Operator && r != Reorg && r != Expired && !strings.HasPrefix(got, "nothing to do: it ") {
			t.Errorf("%s waits, and is told as %q", r, got)
		}
		if strings.Contains(got, "  ") || strings.HasSuffix(got, ".") || strings.Contains(got, "%!") {
			t.Errorf("%s: %q", r, got)
		}
		if nobody := NextStep(r, Subject{}); nobody == "" || strings.Contains(nobody, "replay ") {
			t.Errorf("%s of nobody: %q", r, nobody)
		}
	}
	if got := NextStep("", s) + NextStep("other", s); got != "" {
		t.Errorf("what is no reason is told as %q", got)
	}
}

func TestNextStepNamesKnownValues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		r    Reason
		s    Subject
		want string
	}{
		"another registry": {AgentDisabled, Subject{ChainID: 31337, AgentID: "7", Registry: strings.ToLower(devnet)},
			"worker agent enable 31337:7 --registry " + devnet},
		"no registry":  {AgentDisabled, Subject{ChainID: 8453, AgentID: "7"}, "worker agent enable 8453:7"},
		"in the file":  {AuthRequired, Subject{ChainID: 8453, AgentID: "7", Listed: true}, "HERALD_SERVERS_FILE"},
		"by the file":  {AgentDisabled, Subject{ChainID: 8453, AgentID: "7", Listed: true}, `"enabled": true`},
		"of a probe":   {ToolError, Subject{ChainID: 8453, AgentID: "7"}, "worker delivery replay --agent 8453:7 --reason tool_error --yes"},
		"a port":       {AuthRequired, Subject{ChainID: 8453, AgentID: "7", Endpoint: "https://a.example:8443/x"}, "set 8453:7 --origin https://a.example:8443/x "},
		"a literal":    {AuthRequired, Subject{ChainID: 8453, AgentID: "7", Endpoint: "https://[2001:db8::1]:8443/"}, "--origin https://[2001:db8::1]:8443 "},
		"a path":       {AuthRequired, Subject{ChainID: 8453, AgentID: "7", Endpoint: "https://a.example/b%2Fc/"}, "--origin https://a.example/b%2Fc/ "},
		"hostile path": {AuthRequired, Subject{ChainID: 8453, AgentID: "7", Endpoint: "https://a.example/$(reboot);b"}, "--origin 'https://a.example/$(reboot);b' "},
		"quoted path":  {AuthRequired, Subject{ChainID: 8453, AgentID: "7", Endpoint: "https://a.example/';reboot;'"}, "worker token set 8453:7 (where"},
		"long path":    {AuthRequired, Subject{ChainID: 8453, AgentID: "7", Endpoint: "https://a.example/" + strings.Repeat("a", 300)}, "worker token set 8453:7 (where"},
		"no address":   {AuthRequired, Subject{ChainID: 8453, AgentID: "7"}, "worker token set 8453:7 (where"},
		"hostile host": {AuthRequired, Subject{ChainID: 8453, AgentID: "7", Endpoint: "https://a$(reboot).example/"}, "worker token set 8453:7 (where"},
		"quoted host":  {AuthRequired, Subject{ChainID: 8453, AgentID: "7", Endpoint: "https://a';b.example/"}, "worker token set 8453:7 (where"},
	} {
		if got := NextStep(c.r, c.s); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q does not say %q", name, got, c.want)
		}
	}
}

// TestOriginOptionCanBeTyped: a shell passes the exact address on, and runs no part of it.
func TestOriginOptionCanBeTyped(t *testing.T) {
	t.Parallel()
	if got := OriginOption("https://a.example/'b"); got != "" {
		t.Errorf("%q", got)
	}
	for _, raw := range []string{"https://a.example", "https://a.example/", "https://[::1]:8080/mcp", "https://a.example/a$(echo$IFS)b", "https://a.example/a;b&c",
		"https://a.example/~a%2Fb/*!@:+=,(c)[d]", "https://a.example/`id`"} {
		got, err := exec.CommandContext(t.Context(), "sh", "-c", "printf '%s|'"+OriginOption(raw)).Output()
		if err != nil || string(got) != "--origin|"+raw+"|" {
			t.Errorf("%s is typed as %q, %v", raw, got, err)
		}
	}
}
