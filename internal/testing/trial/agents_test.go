package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
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

func TestAgentsMisbehave(t *testing.T) {
	t.Parallel()
	const patience = 300 * time.Millisecond
	for name, c := range map[string]struct {
		act   Act
		check func(status int, header http.Header, answer string, err error) bool
	}{
		"hangs":  {Act{How: Hang}, func(_ int, _ http.Header, _ string, err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		"slow":   {Act{Take: time.Minute}, func(_ int, _ http.Header, _ string, err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		"resets": {Act{How: Reset}, func(_ int, _ http.Header, _ string, err error) bool { return errors.Is(err, syscall.ECONNRESET) }},
		"drips": {Act{How: Drip}, func(status int, _ http.Header, answer string, err error) bool {
			return status == http.StatusOK && errors.Is(err, context.DeadlineExceeded) && answer != "" && !json.Valid([]byte(answer))
		}},
		"refuses": {Act{How: Refuse, Status: 429, RetryAfter: 7 * time.Second}, func(status int, h http.Header, _ string, err error) bool {
			return err == nil && status == http.StatusTooManyRequests && h.Get("Retry-After") == "7"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := agents(t, 1)
			a.Behave(0, First(1, c.act))
			id := uuid.New()
			if status, header, answer, err := ask(t, a.URL(0), toolCall(id), patience); !c.check(status, header, answer, err) {
				t.Errorf("%d %q %v", status, answer, err)
			}
			if calls := ended(t, a, 1); calls[0].Answered {
				t.Error("written down as answered")
			}
			if status, _, _, err := ask(t, a.URL(0), toolCall(id), 5*time.Second); status != http.StatusOK || err != nil {
				t.Errorf("the second call: %d %v", status, err)
			}
			if calls := ended(t, a, 2); !calls[1].Answered || calls[1].Number != 2 {
				t.Errorf("the second call was written down as %+v", calls[1])
			}
		})
	}
}

func TestAgentDies(t *testing.T) {
	t.Parallel()
	a := agents(t, 2)
	a.Behave(0, func(Call) Act { return Act{How: Hang} })
	hung := make(chan error, 1)
	go func() {
		_, _, _, err := ask(t, a.URL(0), toolCall(uuid.New()), 10*time.Second)
		hung <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	heraldtest.Must(t, Until(ctx, time.Millisecond, "the call to come", func() (bool, error) { return a.InFlight() == 1, nil }))
	a.Down(0)
	if err := <-hung; err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the call under way ended with %v", err)
	}
	if calls := ended(t, a, 1); calls[0].Answered {
		t.Error("the call under way was written down as answered")
	}
	url := a.URL(0)
	if _, _, _, err := ask(t, url, toolCall(uuid.New()), time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a dead agent gives %v", err)
	}
	if status, _, _, err := ask(t, a.URL(1), toolCall(uuid.New()), 5*time.Second); status != http.StatusOK || err != nil {
		t.Errorf("the other agent: %d %v", status, err)
	}
	heraldtest.Must(t, a.Up(0))
	a.Behave(0, Taking(0))
	if status, _, _, err := ask(t, url, toolCall(uuid.New()), 5*time.Second); status != http.StatusOK || err != nil {
		t.Errorf("an agent that came back: %d %v", status, err)
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
