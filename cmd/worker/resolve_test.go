package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/internal/operator/report"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

// surroundings is a chain, a gateway, a web server, and the environment of an operator that uses them.
type surroundings struct {
	t       testing.TB
	net     *devnet.Net
	gateway *ipfstest.Gateway
	web     *httptest.Server
	env     []string // without a database
	away    []string // with the addresses of services that are not there
}

func newSurroundings(t testing.TB, withChain bool) *surroundings {
	t.Helper()
	p := &surroundings{t: t, gateway: ipfstest.New()}
	gw := httptest.NewServer(p.gateway.Handler())
	t.Cleanup(gw.Close)
	p.web = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.web.Close)
	p.env = []string{"HERALD_ALLOW_NETWORKS=127.0.0.0/8", "IPFS_GATEWAYS=" + gw.URL, "HERALD_LOG_LEVEL=error"}
	if withChain {
		p.net = devnettest.Start(t, devnet.Config{Accounts: 2})
		p.env = append(p.env, "RPC_URL_31337="+p.net.URL(), "IDENTITY_REGISTRY_31337="+p.net.Deployment().Identity.Hex(),
			"REPUTATION_REGISTRY_31337="+p.net.Deployment().Reputation.Hex())
	}
	// No service listens at these addresses, so a command that connects to one fails.
	p.away = slices.Concat(p.env, []string{"HERALD_KEYSET=" + heraldtest.Keyset(t),
		"DATABASE_URL=postgres://u:hunter2@" + heraldtest.Address(t) + "/d", "REDIS_URL=redis://" + heraldtest.Address(t)})
	return p
}

func (p *surroundings) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/agent.json":
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = io.WriteString(w, p.doc(p.web.URL+"/mcp"))
	case "/page":
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!doctype html><title>\x1b[2J</title>")
	case "/busy":
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		http.NotFound(w, r)
	}
}

// doc returns a registration with one MCP endpoint.
func (p *surroundings) doc(endpoint string) string {
	return fmt.Sprintf(`{"name":"a","services":[{"name":"MCP","endpoint":%q,"version":"2025-06-18"}]}`, endpoint)
}

func data(doc string) string {
	return "data:application/json;base64," + base64.StdEncoding.EncodeToString([]byte(doc))
}

// register registers an agent with the tokenURI uri.
func (p *surroundings) register(uri string) *big.Int {
	p.t.Helper()
	id, _, err := p.net.Register(heraldtest.Within(p.t, 20*time.Second), p.net.Account(0), uri)
	heraldtest.Must(p.t, err)
	return id
}

// resolve runs the command. It checks the exit code, and that the command prints no secrets and starts no service.
func (p *surroundings) resolve(code int, env []string, args ...string) (out, errs string) {
	p.t.Helper()
	dir := p.t.TempDir()
	env = slices.Concat(p.away, env, []string{"HERALD_DATA=" + dir})
	got, out, errs := worker(p.t, env, append([]string{"agent", "resolve"}, args...)...)
	if got != code {
		p.t.Errorf("worker agent resolve %q: exit code %d, want %d\n%s%s", args, got, code, out, errs)
	}
	heraldtest.Lacks(p.t, "the output", out+errs, "hunter2")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		p.t.Errorf("%q left something in the data folder: %v %v", args, entries, err)
	}
	return out, errs
}

func words(text string) string { return strings.Join(strings.Fields(text), " ") }

func TestAgentResolve(t *testing.T) {
	t.Parallel()
	p := newSurroundings(t, true)
	good := p.register("")
	_, err := p.net.SetURI(heraldtest.Within(t, 20*time.Second), p.net.Account(0), good,
		data(fmt.Sprintf(`{"services":[{"name":"MCP","endpoint":%q,"version":"2025-06-18"},{"name":"MCP","endpoint":"wss://a.example"}],"registrations":[{"agentId":%s,"agentRegistry":"eip155:31337:%s"}]}`,
			p.web.URL+"/mcp?key=hunter2hunter2", good, p.net.Deployment().Identity)))
	heraldtest.Must(t, err)
	cid := p.gateway.AddFile([]byte(p.doc(p.web.URL + "/mcp")))
	for _, c := range []struct {
		name  string
		agent any
		env   []string
		code  int
		want  []string
	}{
		{"on chain, and it names the agent", good, nil, 0, []string{
			fmt.Sprintf("agent 31337:%s of registry 0x", good), "STEP TOOK SOURCE FOUND", "chain 31337 a data URI of", "document ", " ms data ", "registration ", "services, 2 entries, 2 MCP",
			p.web.URL + "/.well-known/agent-registration.json", "endpoint ", "services[0] http://127.0.0.1:",
			"/mcp over http, with protocol revision 2025-06-18 tried first; not bound: nothing on the endpoint's side names this agent"}},
		{"on a web server", p.register(p.web.URL + "/agent.json?key=hunter2hunter2"), nil, 0, []string{
			"chain 31337 " + p.web.URL + "/agent.json", "http from 127.0.0.1:", "labelled application/json", "not verified",
			"/.well-known/agent-registration.json", "verdict: a delivery calls " + p.web.URL + "/mcp over http", "; not bound: "}},
		{"nobody is asked whether it is bound", p.register(p.web.URL + "/agent.json"), []string{"HERALD_BINDING=off"}, 0, []string{
			"HERALD_BINDING is off", "verdict: a delivery calls ", "; its binding was not checked"}},
		{"it has to be bound", p.register(p.web.URL + "/agent.json"), []string{"HERALD_BINDING=require"}, 0, []string{
			"/.well-known/agent-registration.json", "verdict: a delivery is rejected (endpoint_unverified): "}},
		{"in ipfs", p.register("ipfs://" + cid.String()), nil, 0, []string{
			"chain 31337 ipfs://" + cid.String(), "cid from 127.0.0.1:", "verified against the CID", "verdict: a delivery calls "}},
		{"without tokenURI", p.register(""), nil, 0, []string{"chain 31337 empty", "verdict: a delivery is skipped (no_uri): ", "note: whether an operator disabled the agent is not known: "}},
		{"unknown to the registry", 999, nil, 1, []string{"verdict: a delivery is skipped (agent_not_found): ", "worker: not found: the registry has no such agent"}},
		{"a web page", p.register(p.web.URL + "/page"), nil, 0, []string{"the document is a web page", "verdict: a delivery is skipped (no_document): "}},
		{"free text", p.register("my agent \x1b[2J\u202e"), nil, 0, []string{"verdict: a delivery is skipped (no_document): "}},
		{"no MCP entry", p.register(data(`{"services":[]}`)), nil, 0, []string{"no services", "verdict: a delivery is skipped (no_mcp_endpoint): "}},
		{"switched off", p.register(data(`{"active":false}`)), nil, 0, []string{"inactive", "verdict: a delivery is skipped (agent_inactive): "}},
		{"a command", p.register(data(`{"capabilities":{"mcp":{"transport":"stdio","command":"/bin/sh","args":["-c","hunter2hunter2"]}}}`)), nil, 0, []string{
			"verdict: a delivery is rejected (transport_refused): ", "HERALD_STDIO_COMMANDS"}},
		{"a command that is listed", p.register(data(`{"capabilities":{"mcp":{"transport":"stdio","command":"/bin/agent","args":["hunter2hunter2"]}}}`)),
			[]string{`HERALD_STDIO_COMMANDS=[["/bin/agent","hunter2hunter2"]]`}, 0, []string{"verdict: a delivery calls stdio:/bin/agent over stdio, with no protocol revision named; not bound: nothing on the endpoint's side names"}},
		{"an inner address", p.register(data(p.doc("https://169.254.169.254/mcp"))), nil, 0, []string{
			"services[0] https://169.254.169.254/mcp", "verdict: a delivery is rejected (address_blocked): "}},
		{"a document at an inner address", p.register("https://169.254.169.254/a.json?key=hunter2hunter2"), nil, 0, []string{"document ", "verdict: a delivery is rejected (address_blocked): "}},
		{"a web server that is busy", p.register(p.web.URL + "/busy"), nil, 1, []string{"document ", "not fetched", "verdict: a delivery waits and is tried again (content_unavailable): ", "try again"}},
		{"a node that is away", good, []string{"RPC_URL_31337=http://" + heraldtest.Address(t) + "/hunter2"}, 1, []string{
			"tokenURI ", "chain 31337 ", "verdict: a delivery waits and is tried again (chain_unavailable): ", "try again"}},
	} {
		agent := fmt.Sprintf("31337:%v", c.agent)
		out, errs := p.resolve(c.code, c.env, agent)
		heraldtest.Contains(t, c.name, words(out+errs), c.want...)
		out, _ = p.resolve(c.code, c.env, "--json", agent)
		r := decode[inspect.Resolution](t, out)
		if len(r.Steps) == 0 || r.Agent != agent || r.Verdict == "" || r.Resolved != (r.Status == "") || r.Resolved != (r.Reason == "") {
			t.Errorf("%s: %s", c.name, out)
		}
	}

	out, _ := p.resolve(0, nil, "--json", "31337:"+good.String())
	r := decode[inspect.Resolution](t, out)
	var steps []string
	for _, s := range r.Steps {
		steps = append(steps, s.What)
	}
	if e := r.Endpoint; !r.Resolved || e == nil || *e != (inspect.Endpoint{Transport: "http", Address: p.web.URL + "/mcp", ProtocolHint: "2025-06-18", From: "services[0]", Binding: "none"}) ||
		strings.Join(steps, " ") != "tokenURI document registration binding endpoint" {
		t.Errorf("%s", out)
	}
	// A file of the operator's disables an agent: the reason is printed above "see above".
	for setting, c := range map[string]struct{ content, says string }{
		"HERALD_SERVERS_FILE": {`{"servers": {"31337:%s": {"enabled": false}}}`, "the servers file disables the agent"},
		"HERALD_POLICY_FILE":  {`{"filters": [{"action": "skip", "when": {"agent": "31337:%s"}}]}`, "rule 1 of the default policy skips the event"},
	} {
		path := filepath.Join(t.TempDir(), "file.json")
		heraldtest.Must(t, os.WriteFile(path, fmt.Appendf(nil, c.content, good), 0o600))
		out, errs := p.resolve(1, []string{setting + "=" + path}, "--check", "31337:"+good.String())
		if !strings.Contains(out, c.says) || !strings.Contains(errs, "(see above)") {
			t.Errorf("%s%s", out, errs)
		}
	}

	out, _ = p.resolve(1, nil, "--json", "31337:999")
	if r := decode[inspect.Resolution](t, out); r.Resolved || r.Status != outcome.Skipped || r.Reason != "agent_not_found" || r.Endpoint != nil {
		t.Errorf("%s", out)
	}
	// --registry names an address without a contract.
	out, _ = p.resolve(1, nil, "--registry", "0x00000000000000000000000000000000000000aa", "31337:1")
	heraldtest.Contains(t, "the output", out, "chain_unavailable", "there is no contract at")
}

func TestResolveURI(t *testing.T) {
	t.Parallel()
	p := newSurroundings(t, false)
	const feedback = `{"agentRegistry":"eip155:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432","agentId":42,"value":9977,"valueDecimals":2}`
	cid := p.gateway.AddFile([]byte(feedback))
	several := data(`{"name":"many\u001b[2J","services":[{"name":"MCP","endpoint":"wss://a.example/mcp"},{"name":"mcp","endpoint":"https://10.1.2.3/mcp"},
		{"name":"MCP","endpoint":"https://a.example/{agentId}/mcp?key=hunter2hunter2","version":"2025-06-18"},{"name":"MCP","endpoint":"https://u:hunter2@a.example/"},
		{"name":"MCP","transport":"sse","endpoint":"https://a.example/sse"}],"capabilities":{"mcp":{"command":"npx","args":["hunter2"]}},"registrations":[{"agentId":1}]}`)
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"a registration", []string{"--uri", several}, 0, []string{"uri data: source data (in the URI itself)", "name many·[2J",
			"mcp 1 services[1] http https://10.1.2.3/mcp: ", "(address_blocked)",
			"mcp 2 services[2] http https://a.example/{agentId}/mcp (2025-06-18): can be called, with the agent's id in the place of {agentId}",
			"mcp 3 services[3] http https://a.example/: ", "user information (transport_refused)", "mcp 4 services[4] sse https://a.example/sse: can be called",
			"mcp 5 capabilities.mcp stdio stdio:npx: ", "mcp 6 services[0] other wss://a.example/mcp: only http, https and listed commands are called (transport_refused)",
			"verdict: a registration document; MCP entries: 6, that can be called: 2, agents named in registrations[]: 1"}},
		{"on a web server", []string{"--uri", p.web.URL + "/agent.json?key=hunter2hunter2"}, 0, []string{"uri " + p.web.URL + "/agent.json source http (as its server has it now: not verified) from 127.0.0.1:",
			"media type application/json", "mcp 1 services[0] http " + p.web.URL + "/mcp (2025-06-18): can be called"}},
		{"feedback", []string{"--uri", "ipfs://ipfs/" + cid.String()}, 0, []string{"uri ipfs://" + cid.String() + " source cid (verified against the CID) cid " + cid.String() + " from 127.0.0.1:",
			fmt.Sprintf("size %d bytes", len(feedback)), "keccak256 0x", "verdict: a JSON object that looks like a feedback file"}},
		{"a bare CID with the hash of another file", []string{"--uri", cid.String(), "--hash", "0x" + strings.Repeat("01", 32)}, 0, []string{"hash mismatch: "}},
		{"a zero hash", []string{"--uri", cid.String(), "--hash", "0x" + strings.Repeat("00", 32)}, 0, []string{"hash not_given: "}},
		{"JSON", []string{"--uri", `{"a":1}`}, 0, []string{"uri data:", "size 7 bytes", "verdict: a JSON object, neither "}},
		{"a list", []string{"--uri", "data:application/json,[1]"}, 0, []string{"verdict: JSON but not an object"}},
		{"a web page", []string{"--uri", p.web.URL + "/page"}, 0, []string{"media type text/html", "verdict: a web page, which is no document"}},
		{"text", []string{"--uri", "data:text/plain,hello"}, 0, []string{"verdict: text, not JSON"}},
		{"bytes", []string{"--uri", "data:application/octet-stream;base64,/w=="}, 0, []string{"verdict: neither JSON nor text"}},
		{"an empty document", []string{"--uri", "data:,"}, 0, []string{"size 0 bytes", "verdict: nothing: the document is empty"}},
		{"no URI", []string{"--uri", "I liked it\u202e"}, 0, []string{"verdict: there is no document (no_document): "}},
		{"an empty one", []string{"--uri="}, 0, []string{"verdict: there is no document (no_document): "}},
		{"an inner address", []string{"--uri", "https://169.254.169.254/?key=hunter2hunter2"}, 0, []string{"verdict: The document was not fetched: its address is private (address_blocked): "}},
		{"a server that is busy", []string{"--uri", p.web.URL + "/busy"}, 1, []string{"verdict: the document was not fetched (content_unavailable): ", "try again"}},
		{"content that nobody has", []string{"--uri", "ipfs://bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"}, 1, []string{"verdict: the document was not fetched (content_unavailable): "}},
	} {
		out, errs := p.resolve(c.code, nil, c.args...)
		heraldtest.Contains(t, c.name, words(out+errs), c.want...)
		out, _ = p.resolve(c.code, nil, append(c.args, "--json")...)
		if r := decode[inspect.Document](t, out); r.Verdict == "" || (r.Bytes == nil) != (r.Reason != "") || (r.Bytes == nil) != (r.Kind == "") {
			t.Errorf("%s: %s", c.name, out)
		}
	}

	out, _ := p.resolve(0, nil, "--json", "--uri", cid.String())
	r := decode[inspect.Document](t, out)
	if r.Kind != inspect.KindFeedback || r.CID != cid.String() || r.Hash != "" || *r.Bytes != len(feedback) {
		t.Errorf("%s", out)
	}
	out, _ = p.resolve(0, nil, "--json", "--uri", cid.String(), "--hash", r.Keccak256)
	heraldtest.Equal(t, "the hash", decode[inspect.Document](t, out).Hash, "raw")
	out, _ = p.resolve(0, nil, "--json", "--uri", several)
	if r := decode[inspect.Document](t, out); r.Kind != inspect.KindRegistration || len(r.MCP) != 6 || r.MCP[0].Callable || !r.MCP[1].Callable || r.MCP[1].Version != "2025-06-18" {
		t.Errorf("%s", out)
	}
}

// TestResolveOfOddDocuments checks documents that no test gateway can serve.
func TestResolveOfOddDocuments(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		doc  ipfs.Document
		want string
	}{
		"a name in DNS": {ipfs.Document{Source: ipfs.SourceIPNS, DNSLink: true, URI: "ipns://a.example/x", Bytes: []byte(`{"score":1,"clientAddress":"0x"}`)},
			"uri ipns://a.example/x source ipns (the name was looked up in DNS, DNSLink: not verified) size 32 bytes in 0.0 ms keccak256 0x"},
		"a name of a key": {ipfs.Document{Source: ipfs.SourceIPNS, URI: "ipns://k51", Bytes: []byte("\ufeff{}")}, "source ipns (verified against the name's signed record)"},
		"too large":       {ipfs.Document{Source: ipfs.SourceHTTPS, URI: "https://u:hunter2@a/?hunter2", Bytes: []byte(`"` + strings.Repeat("x", 1<<20) + `"`)}, "verdict: JSON, but as a registration document refused: the document is larger than"},
		"too deep":        {ipfs.Document{Source: ipfs.SourceHTTP, Bytes: []byte(strings.Repeat("[", 100))}, "verdict: text, not JSON"},
	} {
		var out bytes.Buffer
		r := inspect.DescribeDocument(c.doc, nil, nil)
		a := &command{out: &out}
		a.printFacts(report.Document(r))
		if printVerdict(a, r.Verdict, r.NextStep); !strings.Contains(words(out.String()), c.want) || strings.Contains(out.String(), "hunter2") {
			t.Errorf("%s:\n%s", name, out.String())
		}
	}
}
