//go:build thirdparty

package trial

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
// Herald. It takes a repeated delivery once, and refuses forged signatures and those of another Herald.
func TestThirdPartyGoReceiver(t *testing.T) {
	g := newGuest(t)
	listen := net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
	program := buildAgent(g.ctx, t, readmeAgent(t, address, "http://"+listen))
	agent, err := Program{Name: "agent", Path: program, Log: filepath.Join(g.scratch, "agent.log")}.Start()
	heraldtest.Must(t, err)
	t.Cleanup(func() { heraldtest.Must(t, agent.End()) })
	heraldtest.Must(t, awaitListening(g.ctx, agent, address))
	a := &packedAgent{guest: g, t: t, name: "the Go receiver", number: 1, url: "http://" + address + "/mcp", process: agent,
		feedback: "feedback %d from %s: 95 ", revoked: "feedback %d from %s is no longer valid: client"}
	w := g.openReceiver(t, "receiver", listen, a.url)
	a.receiveOnce()
	receiveBatches(w, a)

	before := a.log()
	refuseForged(t, a.url, "http://"+listen)
	other, err := receivertest.NewHerald()
	heraldtest.Must(t, err)
	t.Cleanup(other.Close)
	_, err = other.SendFeedback(g.ctx, a.url, receiver.Feedback{})
	heraldtest.Fails(t, "another Herald's call", err, "authorization required")
	heraldtest.Equal(t, "what the agent has said", a.log(), before)
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
