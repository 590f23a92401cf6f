package erc8004

import (
	"encoding/json"
	"errors"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
)

func TestParseRegistrationShapes(t *testing.T) {
	t.Parallel()
	http := func(url, version, from string) MCPEntry {
		return MCPEntry{Transport: TransportHTTP, URL: url, Version: version, From: from}
	}
	for _, test := range []struct {
		name, doc string
		want      []MCPEntry
	}{
		{"spec", `{"services":[{"name":"A2A","endpoint":"https://a"},{"name":"MCP","endpoint":"https://mcp.agent.eth/","version":"2025-06-18"}]}`,
			[]MCPEntry{http("https://mcp.agent.eth/", "2025-06-18", "services[1]")}},
		{"before 2026, capabilities object", `{"endpoints":[{"name":"MCP","endpoint":"https://mcp.agent.eth/","capabilities":{},"version":"2025-06-18"}]}`,
			[]MCPEntry{http("https://mcp.agent.eth/", "2025-06-18", "endpoints[0]")}},
		{"agent 19841", `{"services":[{"name":"MCP","endpoint":"https://upsense.ai/mcp","version":"2025-06-18","mcpTools":["get_portfolio_status"]}]}`,
			[]MCPEntry{{Transport: TransportHTTP, URL: "https://upsense.ai/mcp", Version: "2025-06-18", Tools: []string{"get_portfolio_status"}, From: "services[0]"}}},
		{"agent 13445", `{"services":[{"name":"MCP","endpoint":"https://www.gekkoterminal.xyz/mcp","version":"2025-11-25","capabilities":["tools","resources","prompts"],"tools":[{"name":"x"},7]}]}`,
			[]MCPEntry{{Transport: TransportHTTP, URL: "https://www.gekkoterminal.xyz/mcp", Version: "2025-11-25", Tools: []string{"x"}, From: "services[0]"}}},
		{"trailing space, lower-case name", `{"services":[{"name":" mcp ","endpoint":"https://claudy.world/mcp "}]}`, []MCPEntry{http("https://claudy.world/mcp", "", "services[0]")}},
		{"upper-case scheme", `{"services":[{"name":"Mcp","endpoint":"HTTPS://Agent.example/MCP"}]}`, []MCPEntry{http("https://Agent.example/MCP", "", "services[0]")}},
		{"type and url", `{"services":[{"type":"mcp","url":"https://a.example/"}]}`, []MCPEntry{http("https://a.example/", "", "services[0]")}},
		{"type and value of an SDK", `{"endpoints":[{"type":"MCP","value":"https://a.example/","meta":{"version":"2025-06-18"}}]}`, []MCPEntry{http("https://a.example/", "", "endpoints[0]")}},
		{"both lists, the same twice", `{"endpoints":[{"name":"MCP","endpoint":"https://b"},{"name":"MCP","endpoint":"https://a"}],"services":[{"name":"MCP","endpoint":"https://a"}]}`,
			[]MCPEntry{http("https://a", "", "services[0]"), http("https://b", "", "endpoints[0]")}},
		{"a manifest comes last", `{"services":[{"name":"MCP","endpoint":"https://x402.silverbackdefi.app/.well-known/mcp.json","version":"2024-11-05"},{"name":"MCP","endpoint":"https://a"}]}`,
			[]MCPEntry{http("https://a", "", "services[1]"), http("https://x402.silverbackdefi.app/.well-known/mcp.json", "2024-11-05", "services[0]")}},
		{"web socket after the web", `{"services":[{"name":"MCP","endpoint":"wss://a/mcp"},{"name":"MCP","endpoint":"http://a"}]}`,
			[]MCPEntry{http("http://a", "", "services[1]"), {Transport: TransportOther, URL: "wss://a/mcp", From: "services[0]"}}},
		{"no scheme", `{"services":[{"name":"MCP","endpoint":"mcp.agent.eth"}]}`, []MCPEntry{{Transport: TransportOther, URL: "mcp.agent.eth", From: "services[0]"}}},
		{"a template stays", `{"services":[{"name":"MCP","endpoint":"https://h/agents/{agentId}/mcp"}]}`, []MCPEntry{http("https://h/agents/{agentId}/mcp", "", "services[0]")}},
		{"old backend, http", `{"capabilities":{"mcp":{"transport":"http","url":"https://a/mcp","tools":["agent.receiveFeedback"],"authentication":{"type":"bearer","tokenHeader":"X-Agent-Token"}}}}`,
			[]MCPEntry{{Transport: TransportHTTP, URL: "https://a/mcp", Tools: []string{"agent.receiveFeedback"}, AuthType: "bearer", TokenHeader: "X-Agent-Token", From: "capabilities.mcp"}}},
		{"old backend, endpoint", `{"capabilities":{"mcp":{"endpoint":"https://a/mcp"}}}`, []MCPEntry{http("https://a/mcp", "", "capabilities.mcp")}},
		{"old backend, sse", `{"capabilities":{"mcp":{"transport":"SSE","url":"https://a/sse"}}}`, []MCPEntry{{Transport: TransportSSE, URL: "https://a/sse", From: "capabilities.mcp"}}},
		{"old backend, stdio", `{"capabilities":{"mcp":{"transport":"stdio","command":"npx","args":["-y","agent"]}}}`,
			[]MCPEntry{{Transport: TransportStdio, Command: "npx", Args: []string{"-y", "agent"}, From: "capabilities.mcp"}}},
		{"a command with odd arguments is not the command", `{"capabilities":{"mcp":{"transport":"stdio","command":"npx","args":["-y",1]}}}`,
			[]MCPEntry{{Transport: TransportOther, Command: "npx", Args: []string{"-y"}, From: "capabilities.mcp"}}},
		{"nothing to call", `{"services":[{"name":"MCP"},{"name":"web","endpoint":"https://a"},null,7,[],{"name":{},"endpoint":[]}],"capabilities":["mcp"]}`, nil},
		{"lists of the wrong type", `{"services":{"name":"MCP"},"endpoints":"x","registrations":1,"capabilities":null}`, nil},
		{"keys in another case, BOM", "\xef\xbb\xbf\n{\"Services\":[{\"Name\":\"MCP\",\"Endpoint\":\"https://a\"}]}", []MCPEntry{http("https://a", "", "services[0]")}},
	} {
		r, err := ParseRegistration([]byte(test.doc))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if got := r.MCP(); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s\ngot  %+v\nwant %+v", test.name, got, test.want)
		}
	}
}

func TestSubstitute(t *testing.T) {
	t.Parallel()
	e := MCPEntry{URL: "https://h/agents/{agentId}/mcp"}
	if !e.Templated() || e.Substitute(big.NewInt(42)).URL != "https://h/agents/42/mcp" || e.Substitute(big.NewInt(42)).Templated() {
		t.Errorf("%+v", e.Substitute(big.NewInt(42)))
	}
}

func TestParseRegistrationRefuses(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]Problem{
		"":                                   ProblemEmpty,
		" \n":                                ProblemEmpty,
		"<!DOCTYPE html><html></html>":       ProblemHTML,
		"\xef\xbb\xbf\n  <html>":             ProblemHTML,
		"[]":                                 ProblemNotObject,
		`"text"`:                             ProblemNotObject,
		"null":                               ProblemNotObject,
		"{":                                  ProblemNotJSON,
		"hello":                              ProblemNotJSON,
		`{"a":1}{"b":2}`:                     ProblemNotJSON,
		`{"a":` + strings.Repeat("[", 1<<18): ProblemTooDeep,
		strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65): ProblemTooDeep,
		strings.Repeat(" ", MaxRegistrationBytes+1):                 ProblemTooLarge,
	} {
		var refused *DocumentError
		if _, err := ParseRegistration([]byte(doc)); !errors.As(err, &refused) || refused.Problem != want || refused.Error() == "" {
			t.Errorf("%.40q: %v, want %s", doc, err, want)
		}
	}
	if _, err := ParseRegistration([]byte(`{"a":"` + strings.Repeat("[", 100) + `\"["}`)); err != nil {
		t.Errorf("brackets in a string: %v", err)
	}
}

func TestRegistrationBounds(t *testing.T) {
	t.Parallel()
	r, err := ParseRegistration([]byte(`{"services":[` + strings.Repeat(`{"name":"MCP","endpoint":"https://a"},`, 5000) + `{}]}`))
	if err != nil || len(r.Services) != maxServices || !r.Cut || len(r.MCP()) != 1 {
		t.Errorf("%d services, cut %v, %v", len(r.Services), r.Cut, err)
	}
	r, err = ParseRegistration([]byte(`{"name":"` + strings.Repeat("n", maxField+1) + `"}`))
	if err != nil || r.Name != "" || !r.Cut {
		t.Errorf("long name: %d bytes, cut %v, %v", len(r.Name), r.Cut, err)
	}
}

func TestActive(t *testing.T) {
	t.Parallel()
	for doc, inactive := range map[string]bool{
		`{}`: false, `{"active":true}`: false, `{"active":false}`: true, `{"active":"False"}`: true, `{"active":null}`: false, `{"active":0}`: false, `{"active":{}}`: false,
	} {
		r, err := ParseRegistration([]byte(doc))
		if err != nil || r.Inactive() != inactive {
			t.Errorf("%s: inactive %v, %v", doc, r.Inactive(), err)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	identity := common.HexToAddress("0x8004A169FB4a3325136EB29fA0ceB6D2e539a432")
	for entry, want := range map[string]bool{
		`{"agentId":606,"agentRegistry":"eip155:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`:     true,
		`{"agentId":"606","agentRegistry":"eip155:2741:0x8004a169fb4a3325136eb29fa0ceb6d2e539a432"}`:   true,
		`{"agentId":606,"agentRegistry":"EIP155:2741:0X8004A169FB4A3325136EB29FA0CEB6D2E539A432"}`:     true,
		`{"agentId":null,"agentRegistry":"eip155:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`:    false,
		`{"agentId":607,"agentRegistry":"eip155:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`:     false,
		`{"agentId":606,"agentRegistry":"eip155:1:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`:        false,
		`{"agentId":606,"agentRegistry":"eip155:2741:{identityRegistry}"}`:                             false,
		`{"agentId":606.0,"agentRegistry":"eip155:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`:   false,
		`{"agentId":"0x25e","agentRegistry":"eip155:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`: false,
		`{"agentId":6.06e2,"agentRegistry":"eip155:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`:  false,
		`{"agentId":-606,"agentRegistry":"eip155:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`:    false,
		`{"agentId":606,"agentRegistry":"solana:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`:     false,
		`"eip155:2741:606"`: false,
	} {
		r, err := ParseRegistration([]byte(`{"registrations":[null,` + entry + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Names(2741, identity, big.NewInt(606)); got != want {
			t.Errorf("%s: %v", entry, got)
		}
	}
}

func FuzzParseRegistration(f *testing.F) {
	for _, seed := range []string{
		`{"services":[{"name":"MCP","endpoint":"https://a","args":["x"],"tools":[{"name":"y"}]}],"registrations":[{"agentId":1,"agentRegistry":"eip155:1:0x"}]}`,
		`{"capabilities":{"mcp":{"transport":"stdio","command":"c","authentication":{"type":"bearer","tokenHeader":"X"}}},"active":"false"}`,
		"<html>", "[", `{"a":"\ud800"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		r, err := ParseRegistration(doc)
		if err != nil {
			var refused *DocumentError
			if !errors.As(err, &refused) {
				t.Fatalf("error of type %T", err)
			}
			return
		}
		if !json.Valid([]byte(strings.TrimPrefix(strings.TrimSpace(string(doc)), "\xef\xbb\xbf"))) {
			t.Fatal("taken though it is no JSON")
		}
		for _, e := range r.MCP() {
			if e.URL == "" && e.Command == "" {
				t.Fatalf("nothing to call in %+v", e)
			}
			_ = e.Substitute(big.NewInt(1))
		}
		_ = r.Names(1, common.Address{}, big.NewInt(1))
	})
}
