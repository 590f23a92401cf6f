package receivertest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/receiver"
	"github.com/agentherald/herald/receiver/callers"
	"github.com/agentherald/herald/receiver/receivertest"
)

// TestSigned checks that an agent that serves one Herald accepts its calls, and refuses those of another Herald, those
// without a signature, copies, and those that were changed.
func TestSigned(t *testing.T) {
	t.Parallel()
	var heralds []*receivertest.Herald
	for range 2 {
		h, err := receivertest.NewHerald()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.Close)
		heralds = append(heralds, h)
	}
	mine, stranger := heralds[0], heralds[1]
	agent, calls := server.NewMCPServer("agent", "1"), 0
	receiver.Register(agent, receiver.Handlers{OnFeedback: func(context.Context, receiver.Feedback) error { calls++; return nil }})
	mux := http.NewServeMux()
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	verifier, err := callers.New(callers.Config{Herald: mine.URL, Self: web.URL})
	if err != nil {
		t.Fatal(err)
	}
	mux.Handle("/mcp", verifier.Require(server.NewStreamableHTTPServer(agent, server.WithStateLess(true))))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	url := web.URL + "/mcp?a=%20b"
	if a, err := mine.SendFeedback(ctx, url, receiver.Feedback{}); err != nil || a.Status != receiver.StatusAccepted {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err := mine.SendBatch(ctx, url, receiver.Feedback{}, receiver.Feedback{}); err != nil || len(a) != 2 {
		t.Errorf("%+v, %v", a, err)
	}
	for name, h := range map[string]*receivertest.Herald{"another Herald": stranger, "no Herald": {}} {
		if a, err := h.SendFeedback(ctx, url, receiver.Feedback{}); err == nil {
			t.Errorf("%s is accepted: %+v", name, a)
		}
	}
	if calls != 3 {
		t.Errorf("%d calls", calls)
	}

	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for name, change := range map[string]func(*http.Request){
		"signed":       func(*http.Request) {},
		"unsigned":     func(r *http.Request) { r.Header.Del("Signature") },
		"another path": func(r *http.Request) { r.RequestURI = "/mcp" },
		"another body": func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(ping + " ")) },
		"another type": func(r *http.Request) { r.Header.Set("Content-Type", "text/json") },
	} {
		sent := httptest.NewRequest(http.MethodPost, url, strings.NewReader(ping))
		sent.Header.Set("Content-Type", "application/json")
		if err := mine.Sign(sent); err != nil {
			t.Fatal(err)
		}
		for copies := range 2 {
			got := httptest.NewRequest(http.MethodPost, "/mcp?a=%20b", strings.NewReader(ping))
			got.Header = sent.Header.Clone()
			change(got)
			if err := verifier.Check(got); (err == nil) != (name == "signed" && copies == 0) {
				t.Errorf("%s, copy %d: %v", name, copies, err)
			}
		}
	}
	if err := new(receivertest.Herald).Sign(httptest.NewRequest(http.MethodGet, url, nil)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a Herald without a key: %v", err)
	}
}
