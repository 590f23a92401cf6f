//go:build thirdparty

package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"

	"github.com/agentherald/herald/receiver"
	"github.com/agentherald/herald/receiver/receivertest"
)

// readmeAgent returns the agent of receiver/README.md, at another address, after the change that the page describes for
// serving one Herald only.
func readmeAgent(t *testing.T, address, herald string) string {
	t.Helper()
	page, err := os.ReadFile("../../../receiver/README.md")
	heraldtest.Must(t, err)
	block := func(begins string) string {
		_, rest, found := strings.Cut(string(page), "```go\n"+begins)
		code, _, closed := strings.Cut(rest, "```\n")
		if !found || !closed {
			t.Fatalf("receiver/README.md has no Go that begins with %q", begins)
		}
		return begins + code
	}
	code, guard := block("package main"), block("\tverifier")
	for old, by := range map[string]string{
		"https://herald.example": herald,
		"https://agent.example":  "http://" + address,
	} {
		guard = strings.Replace(guard, old, by, 1)
	}
	for old, by := range map[string]string{
		"\t\"github.com/agentherald/herald/receiver\"\n":                                                "\t\"github.com/agentherald/herald/receiver\"\n\t\"github.com/agentherald/herald/receiver/callers\"\n",
		"\thttp.Handle(\"/mcp\", http.MaxBytesHandler(server.NewStreamableHTTPServer(agent), 8<<20))\n": guard,
		"127.0.0.1:8081": address,
	} {
		if strings.Count(code, old) != 1 {
			t.Fatalf("the agent of the page has no %s", old)
		}
		code = strings.Replace(code, old, by, 1)
	}
	_, own, _ := strings.Cut(code, "func main() {\n")
	if lines := strings.Count(strings.TrimSuffix(own, "}\n"), "\n"); lines > 15 {
		t.Errorf("the author writes %d lines", lines)
	}
	return code
}

// buildAgent compiles a program that uses the receiver as an author's module does.
func buildAgent(ctx context.Context, t *testing.T, code string) (program string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		heraldtest.Must(t, err)
	}
	module, err := filepath.Abs("../../../receiver")
	must(err)
	needs, err := os.ReadFile(filepath.Join(module, "go.mod"))
	must(err)
	sums, err := os.ReadFile(filepath.Join(module, "go.sum"))
	must(err)
	dir := t.TempDir()
	mod := strings.Replace(string(needs), "module github.com/agentherald/herald/receiver\n", "module my-agent\n", 1) +
		"\nrequire github.com/agentherald/herald/receiver v0.0.0\n\nreplace github.com/agentherald/herald/receiver => " + strconv.Quote(module) + "\n"
	for name, text := range map[string]string{"main.go": code, "go.mod": mod, "go.sum": string(sums)} {
		must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", "agent", ".")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "agent")
}

// TestThirdPartyGoReceiver: an author's agent with the receiver gets feedback, a revocation and a batch from a complete
// Herald. It takes a repeated delivery once, and refuses forged signatures.
func TestThirdPartyGoReceiver(t *testing.T) {
	g := newGuest(t)
	ctx := g.ctx
	must := func(err error) {
		t.Helper()
		heraldtest.Must(t, err)
	}
	listen := net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
	url := "http://" + address + "/mcp"
	program := buildAgent(ctx, t, readmeAgent(t, address, "http://"+listen))
	agent, err := Program{Name: "agent", Path: program, Log: filepath.Join(g.scratch, "agent.log")}.Start()
	must(err)
	t.Cleanup(func() {
		if err := agent.End(); err != nil {
			t.Error(err)
		}
	})
	must(awaitListening(ctx, agent, address))

	w := g.openReceiver(t, "receiver", listen, url)
	log := func() string {
		text, err := os.ReadFile(agent.Log())
		must(err)
		return string(text)
	}
	deliver := func(what string, lines ...string) []uuid.UUID {
		t.Helper()
		if len(lines) > 1 { // all of them wait before the first is called, so that there are batches
			must(w.Terminate(ctx))
		}
		ids, _, err := g.Enqueue(ctx, strings.NewReader(strings.Join(lines, "\n")+"\n"))
		if err != nil || len(ids) != len(lines) {
			t.Fatalf("enqueue accepted %v: %v", ids, err)
		}
		if len(lines) > 1 {
			must(w.Start())
		}
		if err := g.awaitDelivered(what, 1, ids...); err != nil {
			t.Fatalf("%v; the agent said:\n%s\nthe worker's log ends with:\n%s", err, log(), tail(w.Log()))
		}
		fmt.Println(NewFigures("thirdparty", "Go receiver, "+what).Add("delivered", len(ids)))
		return ids
	}
	job := func(kind string, client, index int) string {
		event := map[string]any{"type": kind, "chainId": 8453, "agentId": "1", "clientAddress": fmt.Sprintf("0x%040x", client), "feedbackIndex": index}
		if kind == "NewFeedback" {
			event["value"], event["valueDecimals"], event["tag1"] = "20", 0, "slow"
		}
		line, err := json.Marshal(event)
		must(err)
		return string(line)
	}
	handled := func(client, index int, rest string) int {
		return len(regexp.MustCompile(fmt.Sprintf(`(?i)feedback %d from 0x%040x%s`, index, client, rest)).FindAllString(log(), -1))
	}

	first := deliver("feedback", job("NewFeedback", 1, 1))
	deliver("a revocation", job("FeedbackRevoked", 1, 1))
	var many []string
	for client := range 60 {
		many = append(many, job("NewFeedback", 10+client, 1))
	}
	deliver("batches", many...)
	if handled(1, 1, `: 20 "slow"`) != 1 || handled(1, 1, " is no longer valid: client") != 1 {
		t.Errorf("the agent said:\n%s", log())
	}
	for client := range 60 {
		if n := handled(10+client, 1, `: 20 "slow"`); n != 1 {
			t.Errorf("the feedback of client %d was handled %d times", client, n)
		}
	}
	metrics, err := w.Metrics(ctx)
	must(err)
	if !regexp.MustCompile(`mcp_calls_total\{status="success",tool_name="agent.receiveFeedbackBatch"\} [1-9]`).MatchString(metrics) {
		t.Errorf("there was no batch:\n%s", metrics)
	}

	_, err = g.Run(ctx, "delivery", "replay", "--force", first[0].String())
	must(err)
	must(g.awaitDelivered("the replay", 2, first...))
	if n := handled(1, 1, `: 20 "slow"`); n != 1 {
		t.Errorf("a repeated delivery was handled %d times", n)
	}

	before := log()
	forger, err := receivertest.NewHerald()
	must(err)
	t.Cleanup(forger.Close)
	for name, h := range map[string]*receivertest.Herald{"another Herald": forger, "no signature": {}} {
		if answer, err := h.SendFeedback(ctx, url, receiver.Feedback{}); err == nil || !strings.Contains(err.Error(), "authorization required") {
			t.Errorf("%s: %+v, %v", name, answer, err)
		}
	}
	forged, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	must(err)
	forged.Header.Set("Content-Type", "application/json")
	must(forger.Sign(forged))
	forged.Header.Set("Signature-Agent", `sig1="http://`+listen+`"`)
	res, err := http.DefaultClient.Do(forged)
	must(err)
	must(res.Body.Close())
	if res.StatusCode != http.StatusUnauthorized || log() != before {
		t.Errorf("a forged signature: %d; the agent said:\n%s", res.StatusCode, strings.TrimPrefix(log(), before))
	}
}

// awaitDelivered waits until the deliveries are delivered after that many attempts.
func (g *guest) awaitDelivered(what string, attempts int, ids ...uuid.UUID) error {
	ctx, cancel := context.WithTimeoutCause(g.ctx, deliveryTime, fmt.Errorf("not within %s", deliveryTime))
	defer cancel()
	return Until(ctx, pollSlow, what+" to be delivered", func() (bool, error) {
		rows, err := g.Rows(ctx)
		for _, id := range ids {
			if r := rows[id]; r.Status != "delivered" || r.Attempts < attempts {
				if r.Final() {
					return false, fmt.Errorf("%s is %s %s", id, r.Status, r.Reason)
				}
				return false, err
			}
		}
		return true, err
	})
}
