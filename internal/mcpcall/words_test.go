package mcpcall

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestErrorMessages checks that every failure between Herald and an agent is described in Herald's own words, over
// each transport.
func TestErrorMessages(t *testing.T) {
	t.Parallel()
	guard := guardtest.Loopback(t, guardtest.Resolver(t, nil))
	list := append(guardtest.Failures(t, "did not answer within 3 s"),
		guardtest.Failing{Name: "no such name", URL: "https://" + guardtest.NoSuchName, Says: "DNS does not know the name " + guardtest.NoSuchName})
	for _, transport := range []string{TransportHTTP, TransportSSE} {
		for _, f := range list {
			t.Run(f.Name+" over "+transport, func(t *testing.T) {
				t.Parallel()
				p := newPool(t, func(c *Config) { c.Guard, c.OpenTimeout = guard, f.Wait() })
				ep := Endpoint{Transport: transport, URL: f.URL + "/mcp"}
				_, err := p.Call(heraldtest.Within(t, 2*time.Minute), ep, Request{Tool: "any"})
				if _, ok := errors.AsType[*CallError](err); !ok {
					t.Fatal(err)
				}
				guardtest.RefuseGoWords(t, f.Name, err.Error())
				// A stream does not come as JSON, and so does not end in the middle of it.
				if !strings.Contains(err.Error(), f.Says) && !(transport == TransportSSE && f.Name == "end in the middle") {
					t.Errorf("it does not say %q: %s", f.Says, err)
				}
			})
		}
	}
}

// TestErrorMessagesOfSilenceAndCommands checks the errors of an agent that connects and then fails, and of commands
// that fail.
func TestErrorMessagesOfSilenceAndCommands(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode, says string
		limit      time.Duration
	}{
		{"exit", "the agent's command ended (exit status 3): no database", 30 * time.Second},
		{"busy", "within 1 s", time.Second},
	} {
		p := newPool(t, func(c *Config) { c.StdioEnv = []string{childMode + "=" + tt.mode} })
		ep := Endpoint{Transport: TransportStdio, Command: os.Args[0]}
		if tt.mode == "busy" {
			openCommand(t, p, ep)
		}
		ctx, cancel := WithTimeout(t.Context(), tt.limit)
		_, err := p.Call(ctx, ep, Request{Tool: "any"})
		cancel()
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s does not say %q: %v", tt.mode, tt.says, err)
		} else {
			guardtest.RefuseGoWords(t, tt.mode, err.Error())
		}
	}
	p := newPool(t, func(c *Config) { c.StdioCommands = [][]string{{"/nowhere/agent"}} })
	_, err := p.Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportStdio, Command: "/nowhere/agent"}, Request{Tool: "any"})
	if err == nil || !strings.Contains(err.Error(), "the agent's command does not start: no such file or directory") {
		t.Errorf("a command that is not there: %v", err)
	}
}
