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
