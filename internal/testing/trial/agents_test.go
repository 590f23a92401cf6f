package trial

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

func agents(t *testing.T, n int) *Agents {
	t.Helper()
	a, err := StartAgents(n)
	heraldtest.Must(t, err)
	t.Cleanup(a.Close)
	return a
}

// ask sends one JSON-RPC request and gives up after patience.
func ask(t *testing.T, url, body string, patience time.Duration) (status int, header http.Header, answer string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	heraldtest.Must(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, string(b), err
}

func toolCall(id uuid.UUID) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"agent.receiveFeedback","arguments":{"deliveryId":"%s"},`+
		`"_meta":{"io.agentherald/delivery":{"id":"%s","attempt":3}}}}`, id, id)
}

// ended waits until the agents have recorded the end of n calls.
func ended(t *testing.T, a *Agents, n int) Calls {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var calls Calls
	err := Until(ctx, time.Millisecond, "the calls to end", func() (bool, error) {
		var err error
		calls, err = a.Calls()
		n := n
		for _, c := range calls {
			if !c.Ended.IsZero() {
				n--
			}
		}
		return n == 0, err
	})
	heraldtest.Must(t, err)
	return calls
}

func TestAgentsAnswer(t *testing.T) {
	t.Parallel()
	a := agents(t, 3)
	for method, want := range map[string]string{"initialize": "protocolVersion", "tools/list": "agent.receiveFeedback", "ping": `"result":{}`} {
		status, _, answer, err := ask(t, a.URL(1), `{"jsonrpc":"2.0","id":"x","method":"`+method+`"}`, 5*time.Second)
		if err != nil || status != http.StatusOK || !strings.Contains(answer, want) || !strings.Contains(answer, `"id":"x"`) {
			t.Errorf("%s: %d %q %v", method, status, answer, err)
		}
	}
	id := uuid.New()
	for i := range 2 {
		if status, _, answer, err := ask(t, a.URL(2), toolCall(id), 5*time.Second); err != nil || status != http.StatusOK || !strings.Contains(answer, "thank you") {
			t.Fatalf("call %d: %d %q %v", i+1, status, answer, err)
		}
	}
	calls := ended(t, a, 2)
	for i, c := range calls {
		if c.Delivery != id || c.Agent != 2 || c.Number != i+1 || c.Attempt != 3 || !c.Answered || c.Ended.Before(c.Begun) {
			t.Errorf("call %d was written down as %+v", i+1, c)
		}
	}
	if a.Count() != 2 || a.InFlight() != 0 {
		t.Errorf("%d calls, %d under way", a.Count(), a.InFlight())
	}
}

// TestAgentsDoNotHideStrangeCalls: a call that names no delivery, or two, is an error, so that no figure can hide it.
func TestAgentsDoNotHideStrangeCalls(t *testing.T) {
	t.Parallel()
	a := agents(t, 1)
	body := strings.Replace(toolCall(uuid.New()), `"id":"`, `"id":"x`, 1)
	if status, _, _, err := ask(t, a.URL(0), body, 5*time.Second); status != http.StatusBadRequest || err != nil {
		t.Errorf("%d %v", status, err)
	}
	if _, err := a.Calls(); err == nil {
		t.Error("nothing was said of it")
	}
}
