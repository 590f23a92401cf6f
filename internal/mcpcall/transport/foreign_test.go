package transport

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/guardtest"
)

// TestForeignErrors checks that foreign.go recognizes the errors of the pinned version of mcp-go. Check these texts
// after each update.
func TestForeignErrors(t *testing.T) {
	t.Parallel()
	modules, err := os.ReadFile("../../../go.mod")
	if err != nil || !strings.Contains(string(modules), "github.com/mark3labs/mcp-go v1.2.1\n") {
		t.Errorf("mcp-go is not of the version that these texts were read from: %v", err)
	}
	for _, tt := range []struct{ name, contentType, body, want string }{
		{"a page", "text/html", "<html>", "its content type is text/html, neither JSON nor an event stream"},
		{"no type", "", "", "its content type is neither JSON nor an event stream"},
		{"no id", "application/json", `{"jsonrpc":"2.0","result":{}}`, "it has no id, so it cannot be matched with a request"},
		{"an event stream that ends", "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n", ""},
		{"one that cannot be resumed", "text/event-stream", "id: 1\nretry: 10\n\n", ""},
		{"not JSON", "application/json", "no", "it is not JSON"},
		{"half of it", "application/json", `{"jsonrpc":`, "it is not JSON"},
		{"another form", "application/json", `[1]`, "it is JSON of another form than MCP has"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header()["Content-Type"] = []string{tt.contentType}
				if r.Method == http.MethodGet {
					w.WriteHeader(http.StatusMethodNotAllowed)
				}
				_, _ = io.WriteString(w, tt.body)
			}))
			defer srv.Close()
			inner := newTestHTTP(t, srv.URL)
			request := mcptransport.JSONRPCRequest{JSONRPC: mcp.JSONRPC_VERSION, ID: mcp.NewRequestId(int64(1)), Method: "tools/list"}
			_, err := inner.SendRequest(t.Context(), request)
			if err == nil {
				t.Fatal("no error")
			}
			if ended := StreamEnded(err); ended != (tt.want == "") {
				t.Errorf("%v: StreamEnded is %t", err, ended)
			} else if got := DescribeUnusable(err); !ended && got != tt.want {
				t.Errorf("%v: %q, want %q", err, got, tt.want)
			}
		})
	}
}

// TestForeignRequestID checks that the id of a request is read from the bytes that mcp-go writes, in mcp-go's spelling.
func TestForeignRequestID(t *testing.T) {
	t.Parallel()
	request := mcptransport.JSONRPCRequest{JSONRPC: mcp.JSONRPC_VERSION, ID: mcp.NewRequestId(int64(12)), Method: "ping"}
	if id, ok := foreignRequestID(must(json.Marshal(request))); !ok || id != request.ID.String() {
		t.Errorf("%q, %v; want %q", id, ok, request.ID.String())
	}
	for _, line := range []string{``, `{"jsonrpc":"2.0","method":"x"}`, `{"jsonrpc":"2.0","id":"a","method":"x"}`, `{"jsonrpc":"2.0","id":1`} {
		if id, ok := foreignRequestID([]byte(line)); ok {
			t.Errorf("%s: %q", line, id)
		}
	}
}

// newTestHTTP returns the transport to a local server.
func newTestHTTP(t *testing.T, address string) mcptransport.Interface {
	t.Helper()
	guard := guardtest.Loopback(t, nil)
	base := guard.Transport(netguard.Limits{})
	inner := must(NewHTTP(HTTPConfig{URL: must(url.Parse(address)), Headers: http.Header{}, Base: base, Guard: guard,
		MaxAnswerBytes: 1 << 20, Now: time.Now, Life: t.Context()}))
	heraldtest.Must(t, inner.Start(context.Background()))
	t.Cleanup(func() {
		if err := inner.Close(); err != nil {
			t.Error(fmt.Errorf("close: %w", err))
		}
		base.CloseIdleConnections()
	})
	return inner
}
