package delivery

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/guardtest"
)

// readAgentPages returns the text of docs/agent.md and of docs/reference/tool-calls.md, which has the rarer cases.
func readAgentPages() string {
	return string(must(os.ReadFile("../../docs/agent.md"))) + string(must(os.ReadFile("../../docs/reference/tool-calls.md")))
}

// TestAnswers checks the tables of these pages, with an agent for each row. want is the reason, or "" for delivered.
func TestAnswers(t *testing.T) {
	t.Parallel()
	pool := newPool(t, mcpcall.Config{Guard: guardtest.Loopback(t, nil)})
	refuses := func(code int) func(*agent) {
		return onCall(func(_ int, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
			replyError(w, id, code, "no")
			return true
		})
	}
	body := func(s string) func(*agent) {
		return onCall(func(_ int, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, s)
			return true
		})
	}
	type row struct {
		agent func(*agent)
		want  outcome.Reason
	}
	rows := map[string]row{
		"a result":                {answers(`{"content":[{"type":"text","text":"ok"}]}`), ""},
		"no content":              {answers(`{"structuredContent":{"ok":true}}`), ""},
		"an unknown block":        {answers(`{"content":[{"type":"hologram"}]}`), ""},
		"a task":                  {answers(`{"resultType":"task","taskId":"1"}`), ""},
		"isError":                 {answers(`{"isError":true,"content":[]}`), outcome.ToolError},
		"wants a person":          {answers(`{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create"}}}`), outcome.BadResponse},
		"wants a model":           {answers(`{"resultType":"input_required","inputRequests":{"a":{"method":"sampling/createMessage"}}}`), outcome.BadResponse},
		"wants patience":          {answers(`{"resultType":"input_required"}`), outcome.RateLimited},
		"half an answer":          {body(`{"jsonrpc":"2.0","id":`), outcome.Unknown},
		"no JSON-RPC":             {body(`hello`), outcome.Unknown},
		"more than 1 MiB":         {body(`{"jsonrpc":"2.0","result":"` + strings.Repeat("x", 2<<20) + `"}`), outcome.Unknown},
		"-32602":                  {refuses(-32602), outcome.SchemaMismatch},
		"any other JSON-RPC code": {refuses(7), outcome.ServerError},
		"a page to any request": {onAny(func(_ string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
			_, _ = io.WriteString(w, "<!doctype html><title>Your app is starting</title>")
			return true
		}), outcome.ConnectFailed},
	}
	for want, codes := range map[outcome.Reason][]int{outcome.BadResponse: {-32601, -32600, -32700, -32020, -32021, -32022}, outcome.ServerError: {-32603, -32000}} {
		for _, code := range codes {
			rows[fmt.Sprint(code)] = row{refuses(code), want}
		}
	}
	for want, codes := range map[outcome.Reason][]int{outcome.AuthRequired: {401, 403}, outcome.RateLimited: {429}, outcome.ServerError: {408, 425, 500, 502, 503, 504},
		outcome.ConnectFailed: {404}, outcome.BadResponse: {301, 308, 400, 405, 410, 413, 422}} {
		for _, code := range codes {
			rows[fmt.Sprint("HTTP ", code)] = row{breaksWith(code), want}
		}
	}
	page := readAgentPages()
	for name, c := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAgent(t, c.agent)
			answer, err := pool.Call(t.Context(), mcpcall.Endpoint{Transport: mcpcall.TransportHTTP, URL: a.URL}, mcpcall.Request{Tool: "agent.receiveFeedback"})
			var got outcome.Reason
			switch {
			case err != nil:
				got = classify.Error(err).Reason
			case answer.IsError:
				got = outcome.ToolError
			}
			if got != c.want {
				t.Errorf("%q (%v), want %q", got, err, c.want)
			}
			if c.want != "" && !strings.Contains(page, "`"+string(c.want)+"`") {
				t.Errorf("the pages for agents do not name %s", c.want)
			}
		})
	}
}
