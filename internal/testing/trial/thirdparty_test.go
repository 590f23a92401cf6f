//go:build thirdparty

package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/trial/npm"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// These tests call MCP servers of other projects through a complete Herald. Each job names an endpoint and a tool, and
// has a template for the arguments. `make thirdparty` runs them and prints one line for each.

// These packages are installed from npm.
const (
	everythingPackage = "@modelcontextprotocol/server-everything"
	memoryPackage     = "@modelcontextprotocol/server-memory"
	gatewayPackage    = "supergateway"
	proxyPackage      = "mcp-proxy"
)

var thirdPartyPackages = []string{everythingPackage + "@2026.8.31", memoryPackage + "@2026.8.31", gatewayPackage + "@4.0.0", proxyPackage + "@6.7.19"}

// baseRegistry is the identity registry of chain 8453, as Herald writes it.
const baseRegistry = "0x8004a169fb4a3325136eb29fa0ceb6d2e539a432"

const (
	thirdPartyTime = 5 * time.Minute
	serverStart    = 30 * time.Second // start of a Node.js program on a busy machine
	deliveryTime   = 30 * time.Second
)

// stranger is one of the servers and how it is called.
type stranger struct {
	name      string
	transport string
	args      []string                     // arguments of Node.js; none: Herald runs command, and nothing listens
	path      string                       // path of the URL
	env       func(port int) []string      // environment variables with the server's port
	flags     func(port int) []string      // flags with the server's port
	command   []string                     // for stdio
	tool      string                       // tool name of the job
	template  string                       // payloadTemplate of the job
	known     string                       // the MCP revision that Herald has stored for it; empty: none
	protocol  string                       // the MCP revision that the call must use; empty: any
	answers   string                       // part of the answer
	check     func(t *testing.T, r *guest) // further checks
}

// guest is a running server, and the Herald that calls it.
type guest struct {
	*Site
	ctx     context.Context
	node    string
	scratch string
	memory  string // the file that server-memory writes
}

// rater is the client of the feedback.
const rater = "0x00000000000000000000000000000000000000AA"

const (
	echoTemplate   = `{"message":"feedback {{feedbackIndex}} of {{clientAddress}}: {{score}}, {{tag1}}"}`
	echoed         = "Echo: feedback 7 of " + rater + ": 95.5, quality"
	memoryTemplate = `{"entities":[{"name":"agent {{agentId}}","entityType":"feedback","observations":["{{score}} by {{clientAddress}}","{{tag1}}"]}]}`
)

func strangers(installed npm.Folder, node, memory string) []stranger {
	everything := installed.Path(everythingPackage, "dist", "index.js")
	proxy := installed.Path(proxyPackage, "dist", "bin", "mcp-proxy.mjs")
	env := func(port int) []string { return []string{"PORT=" + strconv.Itoa(port)} }
	proxied := func(port int) []string {
		return []string{"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--", node, everything, "stdio"}
	}
	return []stranger{
		{name: "server-everything, stdio", transport: "stdio", command: []string{node, everything, "stdio"},
			tool: "echo", template: echoTemplate, protocol: "2025-11-25", answers: echoed},
		{name: "server-everything, streamable HTTP", transport: "http", args: []string{everything, "streamableHttp"}, env: env, path: "/mcp",
			tool: "echo", template: echoTemplate, protocol: "2025-11-25", answers: echoed},
		{name: "server-everything, HTTP+SSE", transport: "sse", args: []string{everything, "sse"}, env: env, path: "/sse",
			tool: "echo", template: echoTemplate, answers: echoed},
		// An environment variable names its file. A job cannot set it, so the operator's command does.
		{name: "server-memory, stdio", transport: "stdio", command: []string{"env", "MEMORY_FILE_PATH=" + memory, node, installed.Path(memoryPackage, "dist", "index.js")},
			tool: "create_entities", template: memoryTemplate, protocol: "2025-11-25", answers: "95.5 by " + rater, check: remembered},
		{name: "supergateway, streamable HTTP", transport: "http", args: []string{installed.Path(gatewayPackage, "dist", "index.js")}, path: "/mcp",
			flags: func(port int) []string {
				return []string{"--stdio", node + " " + everything + " stdio", "--outputTransport", "streamableHttp", "--stateful", "--port", strconv.Itoa(port)}
			},
			tool: "echo", template: echoTemplate, protocol: "2025-11-25", answers: echoed},
		{name: "mcp-proxy, nothing known", transport: "http", args: []string{proxy}, flags: proxied, path: "/mcp",
			tool: "echo", template: echoTemplate, protocol: "2025-11-25", answers: echoed},
		{name: "mcp-proxy, known to speak 2026-07-28", transport: "http", args: []string{proxy}, flags: proxied, path: "/mcp",
			tool: "echo", template: echoTemplate, known: "2026-07-28", protocol: "2026-07-28", answers: echoed},
	}
}

func TestThirdParty(t *testing.T) {
	g := newGuest(t)
	folder := g.install(t, thirdPartyPackages...)
	g.memory = filepath.Join(g.scratch, "memory.json")
	all := strangers(folder, g.node, g.memory)
	env, err := operator(all)
	heraldtest.Must(t, err)
	w := g.open(t, "thirdparty", env...)
	for i, s := range all {
		t.Run(s.name, func(t *testing.T) { s.meet(t, g, i+1, w) })
	}
}

func newGuest(t *testing.T) *guest {
	ctx, cancel := context.WithTimeout(t.Context(), thirdPartyTime)
	t.Cleanup(cancel)
	return &guest{ctx: ctx, scratch: t.TempDir()}
}

// install installs Node.js and packages from npm.
func (g *guest) install(t *testing.T, packages ...string) (folder npm.Folder) {
	t.Helper()
	var err error
	g.node, err = npm.Node(g.ctx)
	heraldtest.Must(t, err)
	folder, err = npm.Install(g.ctx, packages...)
	heraldtest.Must(t, err)
	return folder
}

// open opens a Herald, and returns its worker, which is ready.
func (g *guest) open(t *testing.T, database string, env ...string) *Worker {
	t.Helper()
	g.Site = shared.Open(g.ctx, t, Config{Database: database, Logs: filepath.Join(g.scratch, "logs"), Env: env})
	w, err := g.Worker(WorkerConfig{Name: "worker"})
	heraldtest.Must(t, err)
	heraldtest.Must(t, w.Ready(g.ctx))
	return w
}

// openReceiver opens a Herald that listens at address, signs its calls, and has the agents in its servers file.
func (g *guest) openReceiver(t *testing.T, database, address string, urls ...string) *Worker {
	t.Helper()
	servers := map[string]any{}
	for i, url := range urls {
		servers["8453:"+strconv.Itoa(i+1)] = map[string]string{"transport": "http", "url": url}
	}
	list, err := json.Marshal(map[string]any{"servers": servers})
	heraldtest.Must(t, err)
	file := filepath.Join(g.scratch, "servers.json")
	heraldtest.Must(t, os.WriteFile(file, list, 0o600))
	return g.open(t, database, append(patience(), "HERALD_SERVERS_FILE="+file, "HERALD_LISTEN="+address, "HERALD_PUBLIC_URL=http://"+address)...)
}

// patience returns settings for agents that take seconds on a busy machine. The start of a command has the same time limit
// as a call.
func patience() []string {
	return []string{"HERALD_CALL_TIMEOUT=15s", "HERALD_LEASE_MARGIN=20s", "HERALD_LEASE=50s"}
}

// operator returns the operator's settings that allow jobs to name these commands and tools.
func operator(all []stranger) ([]string, error) {
	var commands [][]string
	tools := map[string]bool{}
	for _, s := range all {
		if s.command != nil {
			commands = append(commands, s.command)
		}
		tools[s.tool] = true
	}
	list, err := json.Marshal(commands)
	if err != nil {
		return nil, err
	}
	var names []string
	for name := range tools {
		names = append(names, name)
	}
	return append(patience(), "HERALD_STDIO_COMMANDS="+string(list), "HERALD_TOOLS="+strings.Join(names, ",")), nil
}

// meet starts the server, delivers a feedback to it and checks the answer.
func (s stranger) meet(t *testing.T, g *guest, agent int, w *Worker) {
	began := time.Now()
	endpoint := map[string]any{"transport": s.transport}
	if s.command != nil {
		endpoint["command"], endpoint["args"] = s.command[0], s.command[1:]
	} else {
		endpoint["url"] = s.listen(t, g)
	}
	if s.known != "" {
		heraldtest.Must(t, g.remember(g.ctx, agent, s.known))
	}
	line, err := json.Marshal(map[string]any{
		"type": "NewFeedback", "chainId": 8453, "agentId": strconv.Itoa(agent), "clientAddress": rater,
		"feedbackIndex": 7, "value": "955", "valueDecimals": 1, "tag1": "quality",
		"action": map[string]any{"toolName": s.tool, "resolveEndpoint": false, "includeFileContent": false,
			"payloadTemplate": json.RawMessage(s.template), "endpoint": endpoint},
	})
	heraldtest.Must(t, err)
	ctx, cancel := context.WithTimeoutCause(g.ctx, deliveryTime, fmt.Errorf("not within %s", deliveryTime))
	defer cancel()
	ids, _, err := g.Enqueue(ctx, strings.NewReader(string(line)+"\n"))
	if err != nil || len(ids) != 1 {
		t.Fatalf("enqueue accepted %v: %v", ids, err)
	}
	var got verdictRow
	err = Until(ctx, pollSlow, "the delivery to end", func() (ended bool, err error) {
		got, err = g.verdict(ctx, ids[0])
		return got.final(), err
	})
	if err != nil {
		t.Fatalf("%v; it is %+v; the worker's log ends with:\n%s", err, got, tail(w.Log()))
	}
	fmt.Println(NewFigures("thirdparty", s.name).Add("tool", s.tool).Add("status", got.Status).Add("protocol", got.Protocol).
		Add("attempts", got.Attempts).Add("server", strconv.Quote(got.Server)).Add("took", time.Since(began)))
	if got.Status != "delivered" || got.Tool != s.tool || got.Attempts != 1 {
		t.Errorf("it is %+v", got)
	}
	if !strings.Contains(got.Response, s.answers) {
		t.Errorf("the answer is %s, without %q", got.Response, s.answers)
	}
	if s.protocol != "" && got.Protocol != s.protocol {
		t.Errorf("they spoke %q, want %s", got.Protocol, s.protocol)
	}
	if s.check != nil {
		s.check(t, g)
	}
}

// listen starts a server at a free port and waits until it accepts connections.
func (s stranger) listen(t *testing.T, g *guest) string {
	t.Helper()
	port := freePort(t)
	env := npm.Environment()
	if s.env != nil {
		env = append(env, s.env(port)...)
	}
	if s.flags != nil {
		s.args = append(append([]string(nil), s.args...), s.flags(port)...)
	}
	s.listenAt(t, g, port, env)
	return "http://127.0.0.1:" + strconv.Itoa(port) + s.path
}

// listenAt starts a server that listens at port, and waits until it accepts connections.
func (s stranger) listenAt(t *testing.T, g *guest, port int, env []string) *Process {
	t.Helper()
	p, err := Program{Name: s.name, Path: g.node, Args: s.args, Env: env, Log: filepath.Join(g.scratch, fmt.Sprintf("%d.log", port))}.Start()
	heraldtest.Must(t, err)
	t.Cleanup(func() {
		if err := p.End(); err != nil {
			t.Error(err)
		}
	})
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	ctx, cancel := context.WithTimeoutCause(g.ctx, serverStart, fmt.Errorf("not within %s", serverStart))
	defer cancel()
	if err := awaitListening(ctx, p, address); err != nil {
		t.Fatalf("%v; it said:\n%s", err, tail(p.Log()))
	}
	return p
}

// awaitListening waits until a process accepts connections at an address.
func awaitListening(ctx context.Context, p *Process, address string) error {
	return p.Await(ctx, pollQuick, "a server at "+address, func() (bool, error) {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
		if err != nil {
			return false, err
		}
		return true, conn.Close()
	})
}

// freePort returns a port that was unused a moment ago.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	heraldtest.Must(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// verdictRow contains the columns of a delivery and of its last attempt.
type verdictRow struct {
	Status, Reason, Error, Tool, Protocol, Response, Server string
	Attempts                                                int
}

func (v verdictRow) final() bool { return Row{Status: v.Status}.Final() }

func (s *Site) verdict(ctx context.Context, id uuid.UUID) (verdictRow, error) {
	return QueryOne(ctx, s, pgx.RowToStructByPos[verdictRow], `SELECT d.status, coalesce(d.reason, ''),
		coalesce(d.error, ''), coalesce(d.tool_name, ''), coalesce(a.protocol, ''), coalesce(a.response::text, ''),
		coalesce(g.server_info ->> 'name', g.server_info ->> 'Name', ''), d.attempts
		FROM herald.deliveries d
		LEFT JOIN LATERAL (SELECT protocol, response FROM herald.attempts WHERE delivery_id = d.id ORDER BY started_at DESC LIMIT 1) a ON true
		LEFT JOIN herald.agents g USING (chain_id, identity_registry, agent_id)
		WHERE d.id = $1`, id)
}

// remember stores an agent's MCP revision, as Herald does after a registration has named it.
func (s *Site) remember(ctx context.Context, agent int, protocol string) error {
	return s.Exec(ctx, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id, protocol)
		VALUES (8453, $1, $2::text::numeric, $3)`, baseRegistry, strconv.Itoa(agent), protocol)
}

// remembered checks that the server has done the action of its tool.
func remembered(t *testing.T, g *guest) {
	t.Helper()
	b, err := os.ReadFile(g.memory)
	if err != nil || !strings.Contains(string(b), "95.5 by "+rater) {
		t.Errorf("the memory holds %q (%v)", b, err)
	}
}
