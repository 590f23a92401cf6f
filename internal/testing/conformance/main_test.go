package main

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/scripts/script"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// tryScenario returns the error that ends a scenario.
func tryScenario(t *testing.T, url, revision, about string) error {
	t.Helper()
	return script.Try(func() { runScenario(t.Context(), url, revision, about) })
}

// TestRun checks that each tool is called with arguments that fit its schema, or with the arguments of the scenario. A
// tool that no arguments fit is not called.
func TestRun(t *testing.T) {
	const schema = `{"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"},"b":{"type":"boolean"},"o":{"type":"object"},"l":{"type":"array"}},
		"required":["n","s","b","o","l"]}`
	var mu sync.Mutex
	called := map[string]string{}
	agent := server.NewMCPServer("agent", "1", server.WithToolCapabilities(false))
	for name, schema := range map[string]string{"plain": schema, "asked": `{"type":"object"}`, "never": `{"type":"object","required":["x"],"properties":{"x":{"type":"null"}}}`} {
		agent.AddTool(mcp.NewToolWithRawSchema(name, name, json.RawMessage(schema)), func(_ context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			args, err := json.Marshal(req.GetArguments())
			mu.Lock()
			defer mu.Unlock()
			called[name] = string(args)
			return mcp.NewToolResultText("ok"), err
		})
	}
	web := httptest.NewServer(server.NewStreamableHTTPServer(agent))
	defer web.Close()
	heraldtest.Must(t, tryScenario(t, web.URL, "2025-11-25", `{"name":"x","toolCalls":[{"name":"asked","arguments":{"a":1,"b":null}}]}`))
	mu.Lock()
	defer mu.Unlock()
	if len(called) != 2 || called["plain"] != `{"b":true,"l":[],"n":5,"o":{},"s":"text"}` || called["asked"] != `{"a":1,"b":null}` {
		t.Errorf("%v", called)
	}
}

func TestRunFails(t *testing.T) {
	if err := tryScenario(t, "http://127.0.0.1:1/", "", "{"); err == nil {
		t.Error("a context that is no JSON was taken")
	}
	if err := tryScenario(t, "http://127.0.0.1:1/", "", ""); err == nil {
		t.Error("no server, no error")
	}
}
