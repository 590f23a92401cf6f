//go:build thirdparty

package trial

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/mcpcall/signing"
	"github.com/agentherald/herald/internal/testing/signingtest"
	"github.com/agentherald/herald/internal/testing/trial/npm"
)

// receiverPackages are the packages that the agents need besides the archive of @agentherald/receiver.
var receiverPackages = []string{"@modelcontextprotocol/server@2.4.0", "@modelcontextprotocol/node@2.1.2",
	"@modelcontextprotocol/sdk@1.32.2", "fastmcp@4.20.16", "zod@4.6.7", "tsx@4.23.15"}

const (
	receiverSource = "../../../sdk/typescript"
	batchJobs      = 20
)

// TestThirdPartyTypeScript delivers to agents that use @agentherald/receiver from its packed archive: the agent of its
// README, which serves only its Herald, and one agent for each MCP server that the package supports.
func TestThirdPartyTypeScript(t *testing.T) {
	g := newGuest(t)
	public := "127.0.0.1:" + strconv.Itoa(freePort(t))
	agents := startReceivers(t, g, "http://"+public)
	var urls []string
	for _, a := range agents {
		urls = append(urls, a.url)
	}
	w := g.openReceiver(t, "typescript", public, urls...)
	for _, a := range agents {
		if a.known != "" {
			heraldtest.Must(t, g.remember(g.ctx, a.number, a.known))
		}
	}

	// The first call to an agent contains only one delivery.
	for _, a := range agents {
		a.receiveOnce()
	}
	for _, a := range agents[1:] { // the README's handlers do not fail
		a.receiveLate()
	}

	receiveBatches(w, agents...)
	refuseForged(t, agents[0].url, "http://"+public)
}

// startReceivers installs the archive and starts the agents. The first is the README's, which serves only herald.
func startReceivers(t *testing.T, g *guest, herald string) (agents []*packedAgent) {
	t.Helper()
	installed := g.install(t, receiverPackages...)
	folder := t.TempDir()
	heraldtest.Must(t, installed.Receiver(g.ctx, receiverSource, folder))
	script, err := os.ReadFile("testdata/receiver.mjs")
	heraldtest.Must(t, err)
	self := strconv.Itoa(freePort(t))
	readme := readmeTypeScriptAgent(t)
	origin := "http://127.0.0.1:" + self
	for old, by := range map[string]string{"https://herald.example": herald, "https://agent.example": origin, "8081": self} {
		if strings.Count(readme, old) != 1 {
			t.Fatalf("the agent of the README does not contain %s once", old)
		}
		readme = strings.Replace(readme, old, by, 1)
	}
	agent, kinds := filepath.Join(folder, "agent.mts"), filepath.Join(folder, "receiver.mjs")
	for name, text := range map[string]string{agent: readme, kinds: string(script)} {
		heraldtest.Must(t, os.WriteFile(name, []byte(text), 0o600))
	}
	start := func(s stranger, port, feedback, revoked string) {
		number, err := strconv.Atoi(port)
		heraldtest.Must(t, err)
		a := &packedAgent{guest: g, t: t, name: s.name, known: s.known, number: len(agents) + 1, url: "http://127.0.0.1:" + port + "/mcp",
			feedback: feedback, revoked: revoked}
		a.process = s.listenAt(t, g, number, npm.Environment())
		agents = append(agents, a)
	}
	start(stranger{name: "the README's agent", args: []string{installed.Path("tsx", "dist", "cli.mjs"), agent}}, self,
		"feedback %d from %s ", "revoked %d from %s")
	for kind, known := range map[string]string{"sdk1": "", "sdk2": "2026-07-28", "fastmcp": ""} {
		port := strconv.Itoa(freePort(t))
		start(stranger{name: kind, known: known, args: []string{kinds, kind, port}}, port,
			"feedback %[2]s %[1]d ", "revocation %[2]s %[1]d ")
	}
	return agents
}

// readmeTypeScriptAgent returns the agent of the package's README that serves only Herald. Its own lines are at most 15.
func readmeTypeScriptAgent(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(receiverSource, "README.md"))
	heraldtest.Must(t, err)
	const begins = "import { createServer } from \"node:http\";\nimport { onlyHerald, "
	_, rest, found := strings.Cut(string(page), "```ts\n"+begins)
	code, _, closed := strings.Cut(rest, "```\n")
	if !found || !closed {
		t.Fatalf("the README has no code that begins with %q", begins)
	}
	code = begins + code
	own := 0
	for line := range strings.Lines(code) {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "import ") {
			own++
		}
	}
	if own > 15 {
		t.Errorf("the README's agent has %d lines", own)
	}
	return code
}

// packedAgent is a running agent that uses the package, and its number at Herald.
type packedAgent struct {
	*guest
	t       *testing.T
	name    string
	known   string // the MCP revision that Herald has to use; empty: any
	number  int
	url     string
	process *Process

	feedback, revoked string // formats of what its handlers print: the index of the feedback and the client
}

// receiveOnce delivers a feedback, repeats the delivery, and delivers a revocation.
func (r *packedAgent) receiveOnce() {
	r.t.Helper()
	first := r.enqueue(`{"type":"NewFeedback","feedbackIndex":1,"value":"95","valueDecimals":0,"tag1":"ünï ✓"}`)[0]
	r.await(1, first)
	if _, err := r.Run(r.ctx, "delivery", "replay", "--force", first.String()); err != nil {
		r.t.Fatal(err)
	}
	r.await(2, first)
	r.saidOnce(r.feedback, 1)
	r.await(1, r.enqueue(`{"type":"FeedbackRevoked","feedbackIndex":1,"reason":"client"}`)...)
	r.saidOnce(r.revoked, 1)
}

// receiveLate delivers a feedback at which the handler fails once.
func (r *packedAgent) receiveLate() {
	r.t.Helper()
	late := r.enqueue(`{"type":"NewFeedback","feedbackIndex":2,"value":"95","valueDecimals":0,"tag1":"late"}`)[0]
	r.await(2, late)
	v, err := r.verdict(r.ctx, late)
	if err != nil || r.known != "" && v.Protocol != r.known {
		r.t.Errorf("%s: %+v, %v", r.name, v, err)
	}
}

func (r *packedAgent) client() string { return fmt.Sprintf("0x%040x", 0xaa00+r.number) }

// enqueue accepts jobs about this agent.
func (r *packedAgent) enqueue(jobs ...string) []uuid.UUID {
	r.t.Helper()
	var lines strings.Builder
	for _, text := range jobs {
		job := map[string]any{}
		heraldtest.Must(r.t, json.Unmarshal([]byte(text), &job))
		job["chainId"], job["agentId"], job["clientAddress"] = 8453, strconv.Itoa(r.number), r.client()
		job["action"] = map[string]any{"includeFileContent": false}
		line, err := json.Marshal(job)
		heraldtest.Must(r.t, err)
		lines.Write(append(line, '\n'))
	}
	ids, known, err := r.Enqueue(r.ctx, strings.NewReader(lines.String()))
	if err != nil || len(ids) != len(jobs) {
		r.t.Fatalf("enqueue accepted %v, knew %v: %v", ids, known, err)
	}
	return ids
}

// await waits until the deliveries are delivered after that many attempts.
func (r *packedAgent) await(attempts int, ids ...uuid.UUID) {
	r.t.Helper()
	if err := r.awaitDelivered("the agent's feedback", attempts, ids...); err != nil {
		r.t.Fatalf("%s: %v; the agent said:\n%s", r.name, err, tail(r.process.Log()))
	}
}

// saidOnce checks that a handler of the agent, which prints in this format, was called once for this feedback.
func (r *packedAgent) saidOnce(format string, index int) {
	r.t.Helper()
	log := strings.ToLower(r.log())
	if line := fmt.Sprintf(format, index, r.client()); strings.Count(log, line) != 1 {
		r.t.Errorf("%s did not say %q once:\n%s", r.name, line, log)
	}
}

func (r *packedAgent) log() string {
	r.t.Helper()
	text, err := os.ReadFile(r.process.Log())
	heraldtest.Must(r.t, err)
	return string(text)
}

// receiveBatches enqueues feedback for the agents before the worker starts, so that the worker sends it in batches.
func receiveBatches(w *Worker, agents ...*packedAgent) {
	ctx, t := agents[0].ctx, agents[0].t
	t.Helper()
	heraldtest.Must(t, w.Terminate(ctx))
	batches := make([][]uuid.UUID, len(agents))
	for i, a := range agents {
		var jobs []string
		for n := range batchJobs {
			jobs = append(jobs, fmt.Sprintf(`{"type":"NewFeedback","feedbackIndex":%d,"value":"95","valueDecimals":0}`, n+10))
		}
		batches[i] = a.enqueue(jobs...)
	}
	heraldtest.Must(t, w.Start())
	for i, a := range agents {
		a.await(1, batches[i]...)
		for n := range batchJobs {
			a.saidOnce(a.feedback, n+10)
		}
		inBatches := a.countTool("agent.receiveFeedbackBatch")
		fmt.Println(NewFigures("thirdparty", a.name).Add("delivered", batchJobs+2).Add("in_batches", inBatches))
		if inBatches == 0 {
			t.Errorf("%s received no batch", a.name)
		}
	}
}

// countTool returns the number of deliveries for which this tool of the agent was called.
func (r *packedAgent) countTool(tool string) int {
	r.t.Helper()
	n, err := QueryOne(r.ctx, r.Site, pgx.RowTo[int],
		`SELECT count(*) FROM herald.deliveries WHERE agent_id = $1 AND tool_name = $2`, r.number, tool)
	heraldtest.Must(r.t, err)
	return n
}

// refuseForged checks that the agent answers 401 to a request without a signature, and to one with another key.
func refuseForged(t *testing.T, url, herald string) {
	t.Helper()
	keyset, err := secret.Create()
	heraldtest.Must(t, err)
	forger, err := signing.New(signing.Config{PublicURL: herald, Records: new(signingtest.Shelf), Keys: keyset})
	heraldtest.Must(t, err)
	heraldtest.Must(t, forger.Load(t.Context()))
	unsigned := func(*http.Request) error { return nil }
	for name, sign := range map[string]func(*http.Request) error{"unsigned": unsigned, "forged": forger.Sign} {
		body := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
		heraldtest.Must(t, err)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		heraldtest.Must(t, sign(r))
		res, err := http.DefaultClient.Do(r)
		heraldtest.Must(t, err)
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", name, res.StatusCode, text)
		}
	}
}
