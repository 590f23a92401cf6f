package chain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/secret"
)

// meter stands before a node and counts what it is asked: HTTP requests, and the calls in them, which providers bill.
type meter struct {
	*httptest.Server
	mu              sync.Mutex
	requests, calls int
}

func newMeter(t *testing.T, node string) *meter {
	m := &meter{}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var batch []json.RawMessage
		calls := 1
		if json.Unmarshal(body, &batch) == nil {
			calls = len(batch)
		}
		m.mu.Lock()
		m.requests, m.calls = m.requests+1, m.calls+calls
		m.mu.Unlock()
		resp, err := http.Post(node, "application/json", bytes.NewReader(body))
		if err != nil {
			return
		}
		defer func() { _ = resp.Body.Close() }()
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *meter) reset() (requests, calls int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	requests, calls = m.requests, m.calls
	m.requests, m.calls = 0, 0
	return requests, calls
}

// TestRequestsOfAFollower holds the table of docs/chain.md to what following costs: a poll that finds no new block, one
// that finds one, with and without an event, and each block more.
func TestRequestsOfAFollower(t *testing.T) {
	w := newWorld(t, 0)
	page, err := os.ReadFile("../../docs/chain.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, trusted := range []bool{true, false} {
		m := newMeter(t, w.net.URL())
		client := newClient(t, Config{ChainID: w.net.ChainID(), URLs: []secret.Secret{secret.New(m.URL)}, Trusted: trusted})
		f, err := client.NewFollower(FollowConfig{Deployment: w.net.Deployment(), Kinds: []erc8004.Kind{erc8004.NewFeedback}, Limits: limits,
			Handle: func(context.Context, Range) error { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		poll := func() string {
			t.Helper()
			for more := true; more; {
				if more, err = f.readNext(w.ctx); err != nil {
					t.Fatal(err)
				}
			}
			requests, calls := m.reset()
			return fmt.Sprintf("%d (%d)", requests, calls)
		}
		poll()
		f.finalizedAsked = time.Now().Add(time.Hour) // once a minute: a row of its own
		idle := poll()
		w.mine(1)
		empty := poll()
		w.mine(4)
		four := poll()
		w.feedback()
		event := poll()
		name := map[bool]string{true: "trusted", false: "not trusted"}[trusted]
		row := fmt.Sprintf("| %s | %s | %s | %s | %s |", name, idle, empty, four, event)
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/chain.md says %q, measured:\n%s", regexp.MustCompile(`(?m)^\| `+name+` .*$`).FindString(string(page)), row)
		}
	}
}
