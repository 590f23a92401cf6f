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
	ask := func(change func(*http.Request)) int {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(ping))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if err := mine.Sign(r); err != nil {
			t.Fatal(err)
		}
		change(r)
		var status int
		for range 2 { // the second is a copy
			copied := r.Clone(ctx)
			copied.Body, err = r.GetBody()
			if err != nil {
				t.Fatal(err)
			}
			res, err := http.DefaultClient.Do(copied)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if status == 0 {
				status = res.StatusCode
			} else if res.StatusCode != http.StatusUnauthorized {
				t.Errorf("the copy: %d", res.StatusCode)
			}
		}
		return status
	}
	if got := ask(func(*http.Request) {}); got != http.StatusOK {
		t.Errorf("signed: %d", got)
	}
	for name, change := range map[string]func(*http.Request){
		"unsigned":     func(r *http.Request) { r.Header.Del("Signature") },
		"another path": func(r *http.Request) { r.URL.RawQuery = "" },
		"another body": func(r *http.Request) {
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(ping + " ")), nil }
			r.ContentLength++
		},
		"another type": func(r *http.Request) { r.Header.Set("Content-Type", "text/json") },
	} {
		if got := ask(change); got != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, got)
		}
	}
	if err := new(receivertest.Herald).Sign(httptest.NewRequest(http.MethodGet, url, nil)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a Herald without a key: %v", err)
	}
}
