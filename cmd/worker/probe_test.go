package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// mcpAgent is an MCP server (2025-11-25, JSON answers) whose answers a test sets.
type mcpAgent struct {
	*httptest.Server
	status int    // of every answer; 0 means 200
	tools  string // tool list, as JSON
	answer string // result of its tools, as JSON

	mu    sync.Mutex
	calls []probedCall
}

type probedCall struct {
	Name      string         `json:"name"`
	Arguments map[string]any `json:"arguments"`
	Meta      map[string]any `json:"_meta"`
	key       string
}

func newMCPAgent(t testing.TB, adapt func(*mcpAgent)) *mcpAgent {
	t.Helper()
	a := &mcpAgent{tools: tool("agent.receiveFeedback", `{"type":"object"}`), answer: `{"content":[{"type":"text","text":"thank you\u001b[2J"}]}`}
	if adapt != nil {
		adapt(a)
	}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Server.Close)
	return a
}

func tool(name, schema string) string {
	return fmt.Sprintf(`[{"name":%q,"inputSchema":%s}]`, name, schema)
}

func (a *mcpAgent) received() []probedCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
}

func (a *mcpAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		ID     json.RawMessage
		Method string
		Params json.RawMessage
	}
	if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&req) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if a.status != 0 {
		w.WriteHeader(a.status)
		return
	}
	reply := func(result string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, req.ID, result)
	}
	switch req.Method {
	case "initialize":
		reply(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"test agent \u202e","version":"1.2"}}`)
	case "tools/list":
		reply(`{"tools":` + a.tools + `}`)
	case "tools/call":
		c := probedCall{key: r.Header.Get("X-Api-Key")}
		_ = json.Unmarshal(req.Params, &c)
		a.mu.Lock()
		a.calls = append(a.calls, c)
		a.mu.Unlock()
		reply(a.answer)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// lists writes a servers file and adds its setting to the environment.
func (d *desk) lists(servers string) {
	d.t.Helper()
	path := filepath.Join(d.t.TempDir(), "servers.json")
	heraldtest.Must(d.t, os.WriteFile(path, []byte(`{"servers":`+servers+`}`), 0o600))
	d.env = append(d.env, "HERALD_SERVERS_FILE="+path)
}

func (d *desk) agent(id string) records.AgentRow {
	d.t.Helper()
	r, err := records.New(d.store).AgentRow(d.t.Context(), erc8004.Agent{ChainID: 8453, Registry: strings.ToLower(registryOf(d.t, 8453).Hex()), ID: id})
	heraldtest.Must(d.t, err)
	return r
}

const strict = `{"type":"object","properties":{"deliveryId":{"type":"string"},"score":{"type":"integer"},"value":{"type":"number"},"tag2":{"type":"string","minLength":1},
	"clientAddress":{"type":"string"},"fileContent":{"type":"object"}},"required":["deliveryId","score"],"additionalProperties":false}`

// TestProbe probes an agent whose endpoint is in the servers file, so that no chain is called.
func TestProbe(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	a := newMCPAgent(t, func(a *mcpAgent) { a.tools = tool("agent_receiveFeedback", strict) })
	d.lists(fmt.Sprintf(`{"8453:42":{"transport":"http","url":"%s/mcp?key=${PROBE_TEST_KEY}","headers":{"X-Api-Key":"${PROBE_TEST_KEY}"}}}`, a.URL))

	for _, want := range []string{"server test agent 1.2", "protocol 2025-11-25", "tools 1: agent_receiveFeedback, listed in", "over http, as the servers file says",
		"a sample NewFeedback, fitted to agent_receiveFeedback:", "score 99.77 100", `value "9977" 9977`, `tag1 "probe" left out`, `tag2 "" left out`,
		`deliveryId "` + inspect.ProbeDeliveryID + `" as it is`, "verdict: a delivery calls agent_receiveFeedback at http://127.0.0.1", "nothing was called now", "note: add --send to call the tool with the sample", "the results are stored"} {
		d.says(0, want, "agent", "probe", "8453:42")
	}
	heraldtest.Equal(t, "calls without --send", len(a.received()), 0)
	r := d.agent("42")
	if r.State != records.StateConnected || r.Protocol != "2025-11-25" || r.LastOKAt != nil || strings.Contains(r.Endpoint, "?") {
		t.Errorf("%+v", r)
	}
	d.says(0, "server test agent 1.2 protocol 2025-11-25 tools 1: agent_receiveFeedback epoch", "agent", "show", "8453:42")
	d.says(0, "AGENT STATE QUEUED RUNNING WAITING HELD LAST OK SERVER PROTOCOL TOOLS ENDPOINT LAST ERROR 8453:42 connected 0 0 0 0 - test agent 1.2 2025-11-25 1 http://127.0.0.1", "agent", "list")

	out, errs := d.worker(0, "agent", "probe", "--send", "--json", "8453:42")
	found := decode[inspect.Probe](t, out)
	if strings.Contains(out+errs, "hunter2") || found.Answer == nil || found.Answer.Text != "thank you[2J" || !found.Fits || found.Status != "" || !found.Kept || found.Tool != "agent_receiveFeedback" {
		t.Errorf("%s%s", out, errs)
	}
	calls := a.received()
	if len(calls) != 1 || calls[0].key != "hunter2hunter2" || calls[0].Name != "agent_receiveFeedback" || calls[0].Arguments["deliveryId"] != inspect.ProbeDeliveryID || len(calls[0].Arguments) != 5 {
		t.Fatalf("%+v", calls)
	}
	about, _ := calls[0].Meta["io.agentherald/delivery"].(map[string]any)
	if about["id"] != inspect.ProbeDeliveryID || about["probe"] != true || about["key"] != "probe:8453:42#NewFeedback" {
		t.Errorf("%v", calls[0].Meta)
	}
	d.lists(`{"8453:42":{"url":7}}`)
	d.says(1, "HERALD_SERVERS_FILE: ", "agent", "probe", "8453:42")
	d.lists("{}")
	d.says(2, "chain 8453 has no RPC URL: set RPC_URL_8453, or name the agent's address with --url", "agent", "probe", "8453:42")
	d.lists(fmt.Sprintf(`{"8453:42":{"transport":"http","url":"%s/mcp"}}`, a.URL))
	d.worker(0, "agent", "disable", "8453:42")
	d.says(0, "verdict: a delivery is held (agent_disabled): the agent is disabled: `worker agent enable` releases its deliveries next: say \"enabled\": true of the agent in HERALD_SERVERS_FILE, or if its row is disabled: worker agent enable 8453:42 note: otherwise: a delivery calls agent_receiveFeedback",
		"agent", "probe", "8453:42")
	d.says(1, "verdict: a delivery is held (agent_disabled): the agent is disabled", "agent", "check", "8453:42")
	away := append(slices.Clone(d.env), "RPC_URL_8453=http://"+heraldtest.Address(t))
	checkWorker(t, away, 0, "verdict: a delivery is held (agent_disabled): the agent is disabled",
		"agent", "resolve", "8453:42")
	if p := ask[inspect.Probe](d, "agent", "probe", "8453:42"); p.Reason != "agent_disabled" || p.Status != outcome.Held {
		t.Errorf("%+v", p)
	}
	d.lists(fmt.Sprintf(`{"8453:42":{"url":"%s/mcp"},"8453:43":{"url":"https://a.example/${PROBE_TEST_UNSET}"}}`, a.URL))
	held := filepath.Join(t.TempDir(), "policy.json")
	write(t, held, `{"enabled":false}`)
	d.worker(0, "agent", "enable", "8453:42")
	d.worker(0, "agent", "policy", "8453:42", "--own", "--file", held)
	d.says(0, "verdict: a delivery is held (agent_disabled): the agent's policy disables it", "agent", "probe", "8453:42")
	d.says(0, "otherwise: a delivery calls agent_receiveFeedback", "agent", "probe", "8453:42") // faults in other agents' entries have no effect
	d.says(1, "names ${PROBE_TEST_UNSET}, which is not set", "agent", "probe", "8453:43")
}

// TestProbeMatchesDelivery checks each failure of an agent. The probe describes it as a delivery would.
func TestProbeMatchesDelivery(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	gone := heraldtest.Address(t)
	at := func(adapt func(*mcpAgent)) string { return newMCPAgent(t, adapt).URL + "/mcp" }
	good := at(nil)
	cases := []struct {
		entry string // in the servers file
		args  []string
		code  int
		state string
		says  []string
	}{
		{entry(at(func(a *mcpAgent) { a.tools = tool("agent.receiveFeedback", `{"type":"object","required":["stars"]}`) }), ""), nil, 0, records.StateConnected,
			[]string{"a sample NewFeedback, fitted to agent.receiveFeedback:", "score 99.77 -", "verdict: a delivery is rejected (schema_mismatch): the tool's input schema refuses stars"}},
		{entry(at(func(a *mcpAgent) { a.tools = `[{"name":"other\u202e"},{"name":"mine"}]` }), ""), nil, 0, records.StateConnected,
			[]string{"mine (without a schema)", "verdict: a delivery is rejected (tool_not_found): the agent offers no tool agent.receiveFeedback, nor one of its aliases (agent_receiveFeedback, "}},
		{entry(good, ""), nil, 0, records.StateConnected, []string{"verdict: a delivery is skipped (filtered): rule 2 of the default policy skips the event", "otherwise: a delivery calls agent.receiveFeedback"}},
		{entry(good, ""), []string{"--kind=FeedbackRevoked"}, 0, records.StateConnected, []string{"verdict: a delivery is skipped (tool_not_offered): "}},
		{entry(good, ""), []string{"--tool=agent.receiveOther"}, 0, records.StateConnected, []string{"(tool_not_found): the agent offers no tool agent.receiveOther"}},
		{entry(good, `,"tools":["agent.receiveResponse"]`), nil, 0, records.StateConnected, []string{"the servers file does not list agent.receiveFeedback among the tools"}},
		{entry(good, `,"enabled":false`), nil, 0, records.StateConnected, []string{"verdict: a delivery is held (agent_disabled): the servers file disables the agent", "note: otherwise: a delivery calls agent.receiveFeedback"}},
		{entry("http://"+gone+"/mcp", `,"enabled":false`), nil, 0, records.StateFailed, []string{"verdict: a delivery is held (agent_disabled): ", "otherwise: a delivery waits and is tried again (connect_failed): "}},
		{entry(at(func(a *mcpAgent) { a.answer = `{"isError":true,"content":[{"type":"text","text":"I am full"}]}` }), ""), []string{"--send"}, 0, records.StateConnected,
			[]string{"answered in", "verdict: a delivery is rejected (tool_error): the agent's tool answered the sample with an error: I am full",
				"worker delivery replay --agent 8453:8 --registry 0x8004", "--reason tool_error --yes"}},
		{entry(at(func(a *mcpAgent) { a.answer = `{"structuredContent":{"ok":true}}` }), ""), []string{"--send"}, 0, records.StateConnected,
			[]string{`{"ok":true}`, "verdict: a delivery is delivered: the agent took the sample"}},
		{entry(at(func(a *mcpAgent) { a.status = http.StatusUnauthorized }), ""), nil, 0, records.StateNeedsAuth, []string{"verdict: a delivery is held (auth_required): "}},
		{entry(at(func(a *mcpAgent) { a.status = http.StatusServiceUnavailable }), ""), nil, 1, records.StateFailed, []string{"verdict: a delivery waits and is tried again (server_error): ", "try again"}},
		{entry("http://"+gone+"/mcp", ""), nil, 1, records.StateFailed, []string{"verdict: a delivery waits and is tried again (connect_failed): ", "try again"}},
	}
	var all []string
	for i, c := range cases {
		all = append(all, fmt.Sprintf(`"8453:%d":%s`, i, c.entry))
	}
	d.lists("{" + strings.Join(all, ",") + "}")
	policies := filepath.Join(t.TempDir(), "policy.json")
	write(t, policies, `{"filters":[{"action":"skip","when":{"tag1":"noise"}},{"action":"skip","when":{"agent":"8453:2"}}]}`)
	d.env = append(d.env, "HERALD_POLICY_FILE="+policies)
	for i, c := range cases {
		out, errs := d.worker(c.code, append([]string{"agent", "probe", fmt.Sprintf("8453:%d", i)}, c.args...)...)
		heraldtest.Contains(t, fmt.Sprint("case ", i), words(out+errs), c.says...)
		if r := d.agent(fmt.Sprint(i)); r.State != c.state || (r.LastError == "") != (c.state == records.StateConnected) {
			t.Errorf("%d: %s %q\n%s", i, r.State, r.LastError, out)
		}
	}
}

// entry returns an entry of the servers file.
func entry(url, more string) string { return fmt.Sprintf(`{"transport":"http","url":%q%s}`, url, more) }

// TestProbeByChain checks a probe of the registered endpoint or of --url. Without a store, nothing is recorded or
// started.
func TestProbeByChain(t *testing.T) {
	t.Parallel()
	p := newSurroundings(t, true)
	a := newMCPAgent(t, nil)
	id := p.register(data(p.doc(a.URL + "/mcp?key=hunter2hunter2")))
	dir := t.TempDir()
	probe := func(code int, want string, args ...string) string {
		t.Helper()
		got, out, errs := worker(t, append(slices.Clone(p.env), "HERALD_DATA="+dir), append([]string{"agent", "probe"}, args...)...)
		if got != code || !strings.Contains(words(out+errs), want) || strings.Contains(out+errs, "hunter2") {
			t.Errorf("worker agent probe %q: exit code %d, want %d and %q\n%s%s", args, got, code, want, out, errs)
		}
		return out
	}
	agent := "31337:" + id.String()
	probe(0, "called at "+a.URL+"/mcp over http, as services[0] says", agent)
	probe(0, "note: the results are not stored: no database is configured, and no worker runs here", agent)
	if r := decode[inspect.Probe](t, probe(0, "", "--json", agent)); len(r.Steps) != 5 || !r.Fits || r.Kept || r.Endpoint.From != "services[0]" {
		t.Errorf("%+v", r)
	}
	path := filepath.Join(t.TempDir(), "servers.json")
	heraldtest.Must(t, os.WriteFile(path, fmt.Appendf(nil, `{"servers":{%q:{"timeoutMs":1000},"31337:999999":{"url":"https://a.example/${PROBE_TEST_UNSET}"}}}`, agent), 0o600))
	out, _ := p.resolve(0, []string{"HERALD_SERVERS_FILE=" + path}, agent)
	heraldtest.Contains(t, "agent resolve", out, "note: the servers file names this agent")
	probe(0, "verdict: a delivery is delivered: ", "--check", "--send", agent)
	probe(0, "verdict: a delivery is skipped (no_uri)", "31337:"+p.register("").String())
	probe(1, "verdict: a delivery is skipped (no_uri)", "--check", "31337:"+p.register("").String())
	probe(0, "as --url says", "--url", a.URL+"/mcp", "8453:1")
	probe(0, "verdict: a delivery is rejected (address_blocked)", "--url", "https://169.254.169.254/", "8453:1")
	probe(2, "RPC_URL_8453", "8453:1")
	probe(1, "not found: the registry has no such agent", "31337:999")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("something is left in the data folder: %v %v", entries, err)
	}
	heraldtest.Equal(t, "calls, of one command with --send", len(a.received()), 1)
}
