package api_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/internal/door/server/api"
	"github.com/agentherald/herald/internal/operator/inspect"
)

// TestCheckAgent checks an agent through the API, and through the page of the Probe button. Both call the agent's tool only
// if the operator asks for it.
func TestCheckAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var calls atomic.Int32
	agent := server.NewMCPServer("agent", "1")
	agent.AddTool(mcp.NewTool("agent.receiveFeedback", mcp.WithString("stars")),
		func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			calls.Add(1)
			return mcp.NewToolResultError("<b>I am full</b>"), nil
		})
	srv := httptest.NewServer(server.NewStreamableHTTPServer(agent))
	t.Cleanup(srv.Close)
	list := filepath.Join(t.TempDir(), "servers.json")
	heraldtest.Must(t, os.WriteFile(list, fmt.Appendf(nil, `{"servers":{"8453:1":{"transport":"http","url":%q}}}`, srv.URL), 0o600))
	w.operator.Settings.ServersFile = list
	w.enqueue(1, 1)

	const path = "/v1/agents/8453:1/check"
	if r := call[inspect.CheckReport](w, 200, "POST", path, ""); r.Faults != 0 || r.Sent || len(r.Checks) != 15 || calls.Load() != 0 {
		t.Errorf("%d calls: %+v", calls.Load(), r)
	}
	if r := call[inspect.CheckReport](w, 200, "POST", path+"?send=true", ""); r.Faults != 1 || !r.Sent || calls.Load() != 1 {
		t.Errorf("%d calls: %+v", calls.Load(), r)
	}
	call[api.ErrorAnswer](w, 400, "POST", path+"?send=1", "")
	call[api.ErrorAnswer](w, 400, "POST", "/v1/agents/8453:2/check", "") // the chain has no RPC URL

	probe := func(from string, fields url.Values) string {
		t.Helper()
		res := w.submit(from, "/agents/8453:1/probe", fields)
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%d, %v: %s", res.StatusCode, err, body)
		}
		return string(body)
	}
	page := probe(w.open(200, "/agents/8453:1"), url.Values{})
	if !strings.Contains(page, "it speaks MCP revision") || !strings.Contains(page, `name="send" value="true"`) || calls.Load() != 1 {
		t.Errorf("%d calls: %s", calls.Load(), page)
	}
	page = probe(page, url.Values{"send": {"true"}})
	if !strings.Contains(page, "&lt;b&gt;I am full&lt;/b&gt;; answer feedback with a result") || strings.Contains(page, "<b>") || calls.Load() != 2 {
		t.Errorf("%d calls: %s", calls.Load(), page)
	}
}
