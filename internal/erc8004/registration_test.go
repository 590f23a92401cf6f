package erc8004

import (
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// TestParseRegistrationShapes covers every known form of a registration file, including entries found on mainnets.
func TestParseRegistrationShapes(t *testing.T) {
	t.Parallel()
	http := func(url, version, from string) MCPEntry {
		return MCPEntry{Transport: TransportHTTP, URL: url, Version: version, From: from}
	}
	for _, test := range []struct {
		name, doc string
		want      []MCPEntry
	}{
		{"before 2026, capabilities object", `{"endpoints":[{"name":"MCP","endpoint":"https://mcp.agent.eth/","capabilities":{},"version":"2025-06-18"}]}`,
			[]MCPEntry{http("https://mcp.agent.eth/", "2025-06-18", "endpoints[0]")}},
		{"spec, the whole of it", `{"type":"https://eips.ethereum.org/EIPS/eip-8004#registration-v1","name":"myAgentName","description":"d","image":"https://example.com/a.png",
			"services":[{"name":"web","endpoint":"https://web.agentxyz.com/"},{"name":"A2A","endpoint":"https://agent.example/.well-known/agent-card.json","version":"0.3.0"},
				{"name":"MCP","endpoint":"https://mcp.agent.eth/","version":"2025-06-18"},
				{"name":"OASF","endpoint":"ipfs://bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy","version":"0.8","skills":[],"domains":[]},
				{"name":"ENS","endpoint":"vitalik.eth","version":"v1"},{"name":"DID","endpoint":"did:method:foobar","version":"v1"},
				{"name":"email","endpoint":"mail@myagent.com"},{"name":"agentWallet","endpoint":"eip155:1:0x1111111111111111111111111111111111111111"}],
			"x402Support":false,"active":true,"registrations":[{"agentId":22,"agentRegistry":"eip155:1:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}],
			"supportedTrust":["reputation","crypto-economic","tee-attestation"]}`,
			[]MCPEntry{http("https://mcp.agent.eth/", "2025-06-18", "services[2]")}},
		{"before 2026, capabilities array", `{"endpoints":[{"name":"MCP","endpoint":"https://mcp.agent.eth/","capabilities":[],"version":"2025-06-18"}],"trustModels":["reputation"]}`,
			[]MCPEntry{http("https://mcp.agent.eth/", "2025-06-18", "endpoints[0]")}},
		{"as the 8004scan UI writes it", `{"name":"a","services":[{"name":"MCP","endpoint":"https://a/mcp"}],"supportedTrusts":["reputation"],"x402support":true,"registrations":[]}`,
			[]MCPEntry{http("https://a/mcp", "", "services[0]")}},
		{"x402 as an object, active as text", `{"endpoints":[{"name":"MCP","endpoint":"https://a/mcp"}],"x402Support":{"enabled":true},"active":"yes","supportedTrust":null}`,
			[]MCPEntry{http("https://a/mcp", "", "endpoints[0]")}},
		{"every extra key", `{"services":[{"name":"MCP","endpoint":"https://a","description":"d","mcpTools":["t"],"mcpPrompts":["p"],"mcpResources":["r"],"tools":["u"],"prompts":["q"],"capabilities":["c"]}]}`,
			[]MCPEntry{http("https://a", "", "services[0]")}},
		{"agent 9377", `{"services":[{"name":"MCP","endpoint":"https://tnt-v2.api.bonfires.ai/mcp/","version":"2025-06-18"}]}`,
			[]MCPEntry{http("https://tnt-v2.api.bonfires.ai/mcp/", "2025-06-18", "services[0]")}},
		{"Q402 on BSC, which says stdio of an address", `{"services":[{"name":"MCP","endpoint":"https://q402.example/api/mcp/info","transport":"stdio"},{"name":"MCP","endpoint":"https://q402.example/api/mcp/info"}]}`,
			[]MCPEntry{http("https://q402.example/api/mcp/info", "", "services[1]"), {Transport: TransportOther, URL: "https://q402.example/api/mcp/info", From: "services[0]"}}},
		{"name wins over type", `{"services":[{"name":"A2A","type":"MCP","endpoint":"https://a"},{"name":"","type":"MCP","endpoint":"","url":"https://b"}]}`, []MCPEntry{http("https://b", "", "services[1]")}},
		{"a name twice, the last counts", `{"services":[],"services":[{"name":"A2A","name":"MCP","endpoint":"https://a","endpoint":"https://b"}]}`, []MCPEntry{http("https://b", "", "services[0]")}},
		{"no UTF-8 in a name", "{\"name\":\"\xff\",\"services\":[{\"name\":\"MCP\",\"endpoint\":\"https://a\"}]}", []MCPEntry{http("https://a", "", "services[0]")}},
		{"agent 13445", `{"services":[{"name":"MCP","endpoint":"https://www.gekkoterminal.xyz/mcp","version":"2025-11-25","capabilities":["tools","resources","prompts"],"tools":[{"name":"x"},7]}]}`,
			[]MCPEntry{http("https://www.gekkoterminal.xyz/mcp", "2025-11-25", "services[0]")}},
		{"trailing space, lower-case name", `{"services":[{"name":" mcp ","endpoint":"https://claudy.world/mcp "}]}`, []MCPEntry{http("https://claudy.world/mcp", "", "services[0]")}},
		{"upper-case scheme", `{"services":[{"name":"Mcp","endpoint":"HTTPS://Agent.example/MCP"}]}`, []MCPEntry{http("https://Agent.example/MCP", "", "services[0]")}},
		{"type and url", `{"services":[{"type":"mcp","url":"https://a.example/"}]}`, []MCPEntry{http("https://a.example/", "", "services[0]")}},
		{"type and value of an SDK", `{"endpoints":[{"type":"MCP","value":"https://a.example/","meta":{"version":"2025-06-18","mcpTools":["a"],"mcpPrompts":["p"]}}]}`,
			[]MCPEntry{http("https://a.example/", "2025-06-18", "endpoints[0]")}},
		{"both lists, the same twice", `{"endpoints":[{"name":"MCP","endpoint":"https://b"},{"name":"MCP","endpoint":"https://a"}],"services":[{"name":"MCP","endpoint":"https://a"}]}`,
			[]MCPEntry{http("https://a", "", "services[0]"), http("https://b", "", "endpoints[0]")}},
		{"a manifest comes last", `{"services":[{"name":"MCP","endpoint":"https://x402.silverbackdefi.app/.well-known/mcp.json","version":"2024-11-05"},{"name":"MCP","endpoint":"https://a"}]}`,
			[]MCPEntry{http("https://a", "", "services[1]"), http("https://x402.silverbackdefi.app/.well-known/mcp.json", "2024-11-05", "services[0]")}},
		{"web socket after the web", `{"services":[{"name":"MCP","endpoint":"wss://a/mcp"},{"name":"MCP","endpoint":"http://a"}]}`,
			[]MCPEntry{http("http://a", "", "services[1]"), {Transport: TransportOther, URL: "wss://a/mcp", From: "services[0]"}}},
		{"no scheme", `{"services":[{"name":"MCP","endpoint":"mcp.agent.eth"}]}`, []MCPEntry{{Transport: TransportOther, URL: "mcp.agent.eth", From: "services[0]"}}},
		{"a template stays", `{"services":[{"name":"MCP","endpoint":"https://h/agents/{agentId}/mcp"}]}`, []MCPEntry{http("https://h/agents/{agentId}/mcp", "", "services[0]")}},
		{"old backend, http", `{"capabilities":{"mcp":{"transport":"http","url":"https://a/mcp","tools":["agent.receiveFeedback"],"authentication":{"type":"bearer","tokenHeader":"X-Agent-Token"}}}}`,
			[]MCPEntry{{Transport: TransportHTTP, URL: "https://a/mcp", TokenHeader: "X-Agent-Token", From: "capabilities.mcp"}}},
		{"old backend, endpoint", `{"capabilities":{"mcp":{"endpoint":"https://a/mcp"}}}`, []MCPEntry{http("https://a/mcp", "", "capabilities.mcp")}},
		{"old backend, sse", `{"capabilities":{"mcp":{"transport":"SSE","url":"https://a/sse"}}}`, []MCPEntry{{Transport: TransportSSE, URL: "https://a/sse", From: "capabilities.mcp"}}},
		{"the stream by its path, after streamable HTTP", `{"services":[{"name":"MCP","endpoint":"https://a/v1/SSE/?k=1"},{"name":"MCP","endpoint":"https://a/mcp"}]}`,
			[]MCPEntry{http("https://a/mcp", "", "services[1]"), {Transport: TransportSSE, URL: "https://a/v1/SSE/?k=1", From: "services[0]"}}},
		{"what is named wins over the path", `{"services":[{"name":"MCP","transport":"streamable-http","endpoint":"https://a/sse"},{"name":"MCP","endpoint":"https://a/classe"},{"name":"MCP","endpoint":"https://sse"}]}`,
			[]MCPEntry{http("https://a/sse", "", "services[0]"), http("https://a/classe", "", "services[1]"), http("https://sse", "", "services[2]")}},
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
		heraldtest.Equal(t, test.name+": the list of MCP entries", r.ListMCPEntries(), test.want)
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
		"{\"a\":1}\x00":                      ProblemNotJSON,
		"{\"a\":\"\x00\"}":                   ProblemNotJSON,
		"\x1f\x8b\x08":                       ProblemNotJSON,
		"\xff\xfe{\x00}\x00":                 ProblemNotJSON, // UTF-16
		"{'name':'single quotes'}":           ProblemNotJSON,
		`{"name":"trailing comma",}`:         ProblemNotJSON,
		`[{"name":"MCP"}]`:                   ProblemNotObject,
		"<!-- x --><html>":                   ProblemHTML,
		"<?xml version='1.0'?><svg/>":        ProblemHTML,
		`{"a":` + strings.Repeat("[", 1<<18): ProblemTooComplex,
		strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65): ProblemTooComplex,
		strings.Repeat(" ", MaxRegistrationBytes+1):                 ProblemTooLarge,
	} {
		var refused *DocumentError
		if _, err := ParseRegistration([]byte(doc)); !errors.As(err, &refused) || refused.Problem != want || refused.Error() == "" {
			t.Errorf("%.40q: %v, want %s", doc, err, want)
		}
	}
	_, err := ParseRegistration([]byte(`{"a":"` + strings.Repeat("[", 100) + `\"["}`))
	heraldtest.Must(t, err)
}

func TestRegistrationBounds(t *testing.T) {
	t.Parallel()
	r, err := ParseRegistration([]byte(`{"services":[` + strings.Repeat(`{"name":"MCP","endpoint":"https://a"},`, 5000) + `{}]}`))
	if err != nil || len(r.Services) != maxServices || !r.Cut || len(r.ListMCPEntries()) != 1 {
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

// TestNames checks which registrations name agent 606 of chain 2741, and those of a real
// /.well-known/agent-registration.json.
func TestNames(t *testing.T) {
	t.Parallel()
	identity := common.HexToAddress("0x8004A169FB4a3325136EB29fA0ceB6D2e539a432")
	const registry = `"agentRegistry":"eip155:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`
	named := []string{`{"agentId":606,` + registry, `{"agentId":"606","agentRegistry":"eip155:2741:0x8004a169fb4a3325136eb29fa0ceb6d2e539a432"}`,
		`{"agentId":606,"agentRegistry":"EIP155:2741:0X8004A169FB4A3325136EB29FA0CEB6D2E539A432"}`,
		`{"agentId":" 606 ","agentRegistry":" eip155:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`,
		`{"AgentID":606,"AgentRegistry":"eip155:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`}
	others := []string{`"eip155:2741:606"`, `{"agentId":606}`, `{` + registry, `{"agentId":606,"agentRegistry":2741}`, `{"agentId":606,"agentRegistry":null}`}
	for _, id := range []string{"null", "607", "606.0", `"0x25e"`, "6.06e2", "-606"} {
		others = append(others, `{"agentId":`+id+`,`+registry)
	}
	for _, registry := range []string{"eip155:1:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", "solana:2741:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432",
		"eip155:2741:{identityRegistry}", "0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"} {
		others = append(others, `{"agentId":606,"agentRegistry":"`+registry+`"}`)
	}
	docs := map[string]bool{`{"registrations":[` + named[0] + `]}`: true, `{"registrations":` + named[0] + `}`: false,
		`{"registrations":[]}`: false, `{"registrations":null}`: false, `{}`: false}
	for _, entry := range named {
		docs[`{"registrations":[null,`+entry+`]}`] = true
	}
	for _, entry := range others {
		docs[`{"registrations":[null,`+entry+`]}`] = false
	}
	for doc, want := range docs {
		r, err := ParseRegistration([]byte(doc))
		heraldtest.Must(t, err)
		heraldtest.Equal(t, doc, r.NamesAgent(2741, identity, big.NewInt(606)), want)
	}
	// 0 is a valid agent id.
	r, err := ParseRegistration([]byte(`{"registrations":[{"agentId":0,` + registry + `]}`))
	if err != nil || !r.NamesAgent(2741, identity, new(big.Int)) {
		t.Errorf("agent 0: %v", err)
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
			if _, ok := errors.AsType[*DocumentError](err); !ok {
				t.Fatalf("error of type %T", err)
			}
			return
		}
		if !json.Valid([]byte(strings.TrimPrefix(strings.TrimSpace(string(doc)), "\xef\xbb\xbf"))) {
			t.Fatal("taken though it is no JSON")
		}
		for _, e := range r.ListMCPEntries() {
			if e.URL == "" && e.Command == "" {
				t.Fatalf("nothing to call in %+v", e)
			}
			_ = e.Substitute(big.NewInt(1))
		}
		_ = r.NamesAgent(1, common.Address{}, big.NewInt(1))
	})
}
