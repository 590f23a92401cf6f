package mcpcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestSecretHeaders(t *testing.T) {
	t.Parallel()
	var other atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { other.Add(1) }))
	defer elsewhere.Close()
	var mu sync.Mutex
	without := map[string]bool{}
	a := &agent{session: "s", on: func(method string, w http.ResponseWriter, r *http.Request, id json.RawMessage) bool {
		mu.Lock()
		without[method] = without[method] || r.Header.Get("X-Api-Key") != "very-secret-key"
		mu.Unlock()
		if method == "tools/call" {
			reply(w, id, `{"content":[{"type":"text","text":"your key is very-secret-key"}]}`)
			return true
		}
		if method == "tools/list" {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return true
		}
		return false
	}}
	srv := httptest.NewServer(a)
	defer srv.Close()
	p := newPool(t)
	ep := Endpoint{Transport: TransportHTTP, URL: srv.URL, Headers: map[string]secret.Secret{"x-api-key": secret.New("very-secret-key")}}
	answer, err := p.Call(heraldtest.Within(t, 30*time.Second), ep, Request{Tool: "x"})
	if err != nil || strings.Contains(answer.Text, "very-secret") || strings.Contains(string(answer.Raw), "very-secret") {
		t.Errorf("got %+v, %v", answer, err)
	}
	if _, err := p.Tools(heraldtest.Within(t, 30*time.Second), ep, true); err == nil || other.Load() != 0 {
		t.Errorf("redirect: %v, %d requests elsewhere", err, other.Load())
	}
	heraldtest.Must(t, p.Close(heraldtest.Within(t, 30*time.Second)))
	heraldtest.Equal(t, "DELETE requests", a.seen("DELETE"), 1)
	mu.Lock()
	defer mu.Unlock()
	for method, missing := range without {
		if missing {
			t.Errorf("%s came without the header", method)
		}
	}

	echo := &agent{
		tools: `{"tools":[{"name":"very-secret-key"},{"name":"x","inputSchema":{"type":"object","required":["very-secret-key"]}}]}`,
		on: onMethod("initialize", func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
			reply(w, id, `{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"very-secret-key","version":"very-secret-key"}}`)
		})}
	p = newPool(t)
	ep.URL = serve(t, echo).URL
	set, err := p.Tools(heraldtest.Within(t, 30*time.Second), ep, true)
	if err != nil || len(set.Tools) != 1 || strings.Contains(fmt.Sprintf("%+v %s", set, set.Tools[0].InputSchema), "very-secret") {
		t.Errorf("echoed: %+v, %v", set, err)
	}
	if _, err := Fit(set.Tools[0], map[string]any{}); err == nil || strings.Contains(err.Error(), "very-secret") {
		t.Errorf("echoed: %v", err)
	}

	for _, name := range []string{"Mcp-Session-Id", "host", "a b", ""} {
		ep.Headers = map[string]secret.Secret{name: secret.New("v")}
		if _, err := p.Call(t.Context(), ep, Request{Tool: "x"}); !errors.As(err, new(*TransportRefusedError)) {
			t.Errorf("header %q: %v", name, err)
		}
	}
}
