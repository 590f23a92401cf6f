package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// oldJob returns an ActionJob as the old backend encodes it, for an agent that its config names.
func oldJob(n int, config map[string]any) []byte {
	transaction := fmt.Sprintf("0x%064x", n)
	b, _ := json.Marshal(map[string]any{"id": fmt.Sprintf("4b0e8ad5-0000-4000-8000-%012d", n), "trigger_id": "trigger-1",
		"event_id": fmt.Sprintf("reputation-8453-%s-3", transaction), "action_type": "mcp", "priority": 1, "config": config,
		"event_data": map[string]any{"event_id": fmt.Sprintf("reputation-8453-%s-3", transaction), "chain_id": 8453,
			"block_number": 41700000, "registry": "reputation", "event_type": "NewFeedback", "timestamp": 1770000000,
			"transaction_hash": transaction, "agent_id": 42, "owner": nil, "token_uri": nil,
			"client_address": "0x00000000000000000000000000000000000000aa", "feedback_index": n, "score": 95, "tag1": "uptime",
			"tag2": nil, "file_uri": nil, "file_hash": nil},
		"created_at": "2026-01-11T00:00:00Z"})
	return b
}

func (r *running) client(redisURL string) queue.Redis {
	r.t.Helper()
	q, err := queue.Open(queue.Config{URL: secret.New(redisURL)})
	heraldtest.Must(r.t, err)
	c, err := q.Client(5 * time.Second)
	heraldtest.Must(r.t, err)
	r.t.Cleanup(func() { _, _ = c.Close(), q.Close() })
	return c
}

// TestQueueDefault checks that with HERALD_REDIS_INTAKE=off the worker does not read asynq's queue "default". Otherwise
// the metrics count the tasks of other programs in it, without their types.
func TestQueueDefault(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"off", "jobs"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			redisURL := heraldtest.Redis(t)
			theirs, err := queue.Open(queue.Config{URL: secret.New(redisURL), Logger: slog.New(slog.DiscardHandler)})
			heraldtest.Must(t, err)
			defer theirs.Close()
			heraldtest.Must(t, theirs.Enqueue(heraldtest.Within(t, 10*time.Second), queue.Task{Kind: "email:send", Lane: "default"}))
			r := run(t, false, "DATABASE_URL="+heraldtest.Postgres(t, postgres.Migrate), "REDIS_URL="+redisURL,
				"HERALD_KEYSET="+heraldtest.Keyset(t), "HERALD_API_TOKEN="+doorToken, "HERALD_REDIS_INTAKE="+policy)
			w := r.up()
			scrape := func() string {
				req, _ := http.NewRequestWithContext(heraldtest.Within(t, 10*time.Second), http.MethodGet, "http://"+w.Addr+"/metrics", nil)
				req.Header.Set("Authorization", "Bearer "+doorToken)
				res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
				heraldtest.Must(t, err)
				defer res.Body.Close()
				b, _ := io.ReadAll(res.Body)
				return string(b)
			}
			if policy == "jobs" {
				heraldtest.Await(t, "the task is counted", func() bool { return strings.Contains(scrape(), "\nherald_foreign_tasks_total 1\n") })
				return
			}
			if got := scrape(); !strings.Contains(got, "\nherald_foreign_tasks_total 0\n") || strings.Contains(got, `lane="default"`) {
				t.Errorf("the worker reads the queue default:\n%s", got)
			}
		})
	}
}

const doorToken = "a token of more than sixteen characters"

func runDoors(t *testing.T, env ...string) (*running, string) {
	t.Helper()
	redisURL := heraldtest.Redis(t)
	return run(t, false, append(env, "DATABASE_URL="+heraldtest.Postgres(t, postgres.Migrate), "REDIS_URL="+redisURL,
		"HERALD_KEYSET="+heraldtest.Keyset(t), "HERALD_API_TOKEN="+doorToken, "HERALD_ALLOW_HTTP=true", "HERALD_BINDING=off",
		"HERALD_LEGACY_QUEUE=action_jobs")...), redisURL
}

// TestLegacyQueue checks that jobs in the old backend's list are delivered.
func TestLegacyQueue(t *testing.T) {
	t.Parallel()
	r, redisURL := runDoors(t, "HERALD_REDIS_INTAKE=on", "HERALD_VERIFY_EVENT=off")
	a := newAgent(t)
	close(a.hold)
	w := r.up()
	rdb := r.client(redisURL)
	for _, element := range [][]byte{[]byte("hello"), oldJob(1, map[string]any{"server_url": a.URL, "tool_name": "agent.receiveFeedback", "auth_token": "s3cret"})} {
		heraldtest.Must(t, rdb.LPush(t.Context(), "action_jobs", element).Err())
	}
	heraldtest.Await(t, "the delivery", func() bool {
		counts, err := records.New(w.Store).Count(heraldtest.Within(t, 10*time.Second), records.Filter{})
		return err == nil && counts[store.Delivered] == 1 && counts[store.Rejected] == 1 && a.count() == 1
	})
	metrics := r.getAs(doorToken, "/metrics")
	for _, line := range []string{`herald_legacy_jobs_total{verdict="accepted"} 1`, `herald_legacy_jobs_total{verdict="rejected"} 1`,
		"herald_legacy_queue_depth 0"} {
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if keys := rdb.Keys(context.WithoutCancel(t.Context()), "*action_jobs*").Val(); len(keys) != 0 {
		t.Errorf("Redis holds %v", keys)
	}
	if r.log.Count("s3cret") != 0 {
		t.Error("the log holds a token")
	}
}

func (r *running) getAs(token, path string) string {
	r.t.Helper()
	_, body := r.ask(http.MethodGet, token, path, nil)
	return body
}

func (r *running) ask(method, token, path string, body any) (int, string) {
	r.t.Helper()
	raw, _ := json.Marshal(body)
	req, err := http.NewRequestWithContext(heraldtest.Within(r.t, 30*time.Second), method, "http://"+r.listen+path, bytes.NewReader(raw))
	heraldtest.Must(r.t, err)
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	heraldtest.Must(r.t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	heraldtest.Must(r.t, err)
	return res.StatusCode, string(b)
}

// TestDirectCall checks that a request in the bridge's format gets an answer in the bridge's format. Requests without
// the token are refused, and so are private addresses that the operator does not allow.
func TestDirectCall(t *testing.T) {
	t.Parallel()
	r, _ := runDoors(t)
	a := newAgent(t)
	close(a.hold)
	w := r.up()
	call := func(endpoint any) map[string]any {
		return map[string]any{"endpoint": endpoint, "tool_name": "agent.receiveFeedback", "arguments": map[string]any{"score": 95}, "timeout_ms": 5000}
	}
	object := map[string]any{"transport": "http", "url": a.URL, "command": nil, "args": nil, "headers": map[string]any{"X-Agent-Token": "s3cret"}}
	for name, endpoint := range map[string]any{"object": object, "URL": a.URL} {
		status, body := r.ask(http.MethodPost, doorToken, "/mcp/call", call(endpoint))
		if status != 200 || body != `{"success":true,"result":{"content":[{"type":"text","text":"thank you"}]}}`+"\n" {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	if status, body := r.ask(http.MethodPost, "", "/mcp/call", call(a.URL)); status != 401 {
		t.Errorf("without a token: %d %s", status, body)
	}
	if status, body := r.ask(http.MethodPost, doorToken, "/mcp/call", call("http://10.0.0.1/mcp")); status != 400 ||
		!strings.Contains(body, `"success":false`) || !strings.Contains(body, `"reason":"address_blocked"`) {
		t.Errorf("of a private address: %d %s", status, body)
	}
	if status, body := r.ask(http.MethodPost, doorToken, "/mcp/call", call(map[string]any{"transport": "stdio", "command": "sh"})); status != 400 ||
		!strings.Contains(body, `"reason":"transport_refused"`) {
		t.Errorf("a command that nobody listed: %d %s", status, body)
	}
	if a.count() != 2 {
		t.Errorf("the agent was called %d times", a.count())
	}
	if list, err := records.New(w.Store).Deliveries(t.Context(), records.Filter{}); err != nil || len(list) != 0 {
		t.Errorf("%d deliveries, %v", len(list), err)
	}
	metrics := r.getAs(doorToken, "/metrics")
	for _, line := range []string{`mcp_calls_total{status="success",tool_name="agent.receiveFeedback"} 2`,
		`mcp_call_duration_seconds_bucket{tool_name="agent.receiveFeedback",le="30"}`} {
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if r.log.Count("s3cret") != 0 || r.log.Count("direct call answered") != 2 {
		t.Errorf("the log:\n%s", r.log)
	}
}
