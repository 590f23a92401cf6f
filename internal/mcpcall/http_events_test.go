package mcpcall

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
	"go.uber.org/goleak"
)

// An agent answers one request with several responses at once. mcp-go has room for two, and whoever writes the third would wait for ever.
// Not parallel: it looks for goroutines.
func TestOneResponseForARequest(t *testing.T) {
	before := goleak.IgnoreCurrent()
	srv := httptest.NewServer(&agent{on: func(method string, w http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
		if method != "tools/call" {
			return false
		}
		w.Header().Set("Content-Type", "text/event-stream")
		message := fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"%%d\"}]}}\n\n", id)
		_, _ = fmt.Fprintf(w, message+message+message+message, 1, 2, 3, 4)
		return true
	}})
	p := newPool(t)
	for range 3 {
		a, err := p.Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportHTTP, URL: srv.URL}, Request{Tool: "x"})
		if err != nil || a.Text != "1" {
			t.Errorf("%+v, %v", a, err)
		}
	}
	if err := p.Close(heraldtest.Within(t, 30*time.Second)); err != nil {
		t.Error(err)
	}
	srv.Close()
	var left error
	heraldtest.AwaitState(t, func() bool { left = goleak.Find(before); return left == nil }, func() string { return left.Error() })
}
