package app

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
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
	c := q.Client(5 * time.Second)
	r.t.Cleanup(func() { _, _ = c.Close(), q.Close() })
	return c
}

// TestQueueDefault checks that with HERALD_REDIS_INTAKE=off the worker does not read asynq's queue "default". Otherwise
// the metrics count the tasks of other programs in it, without their types. The worker deletes old archived tasks.
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
			rdb := heraldtest.RedisClient(t, redisURL)
			heraldtest.Must(t, rdb.Eval(t.Context(), `return redis.call("ZADD", KEYS[1], 0, "old")`, []string{"asynq:{bulk}:archived"}).Err())
			r := run(t, false,
				servicesEnv(t, "REDIS_URL="+redisURL, "HERALD_API_TOKEN="+doorToken, "HERALD_REDIS_INTAKE="+policy)...)
			r.up()
			heraldtest.Await(t, "the archived task is deleted", func() bool { return rdb.Exists(t.Context(), "asynq:{bulk}:archived").Val() == 0 })
			if policy == "jobs" {
				heraldtest.Await(t, "the task is counted", func() bool {
					return strings.Contains(r.get(doorToken, "/metrics"), "\nherald_foreign_tasks_total 1\n")
				})
				return
			}
			metrics := r.get(doorToken, "/metrics")
			heraldtest.Contains(t, "/metrics", metrics, "\nherald_foreign_tasks_total 0\n")
			heraldtest.Lacks(t, "/metrics", metrics, `lane="default"`)
		})
	}
}

const doorToken = "a token of more than sixteen characters"

func runDoors(t *testing.T, env ...string) (*running, string) {
	t.Helper()
	redisURL := heraldtest.Redis(t)
	env = append(env, servicesEnv(t, "REDIS_URL="+redisURL, "HERALD_API_TOKEN="+doorToken, "HERALD_ALLOW_HTTP=true",
		"HERALD_BINDING=off", "HERALD_LEGACY_QUEUE=action_jobs")...)
	return run(t, false, env...), redisURL
}

// TestLegacyQueue checks that jobs in the old backend's list are delivered.
func TestLegacyQueue(t *testing.T) {
	t.Parallel()
	r, redisURL := runDoors(t, "HERALD_REDIS_INTAKE=on", "HERALD_VERIFY_EVENT=off")
	a := openAgent(t)
	w := r.up()
	rdb := r.client(redisURL)
	for _, element := range [][]byte{[]byte("hello"), oldJob(1, map[string]any{"server_url": a.URL, "tool_name": "agent.receiveFeedback", "auth_token": "s3cret"})} {
		heraldtest.Must(t, rdb.LPush(t.Context(), "action_jobs", element).Err())
	}
	heraldtest.Await(t, "the delivery", func() bool {
		counts, err := records.New(w.Store).Count(heraldtest.Within(t, 10*time.Second), records.Filter{})
		return err == nil && counts[outcome.Delivered] == 1 && counts[outcome.Rejected] == 1 && a.count() == 1
	})
	metrics := r.get(doorToken, "/metrics")
	heraldtest.Contains(t, "/metrics", metrics, `herald_legacy_jobs_total{verdict="accepted"} 1`, `herald_legacy_jobs_total{verdict="rejected"} 1`,
		"herald_legacy_queue_depth 0")
	heraldtest.Must(t, r.stop())
	heraldtest.Equal(t, "keys", rdb.Keys(context.WithoutCancel(t.Context()), "*action_jobs*").Val(), []string{})
	heraldtest.Equal(t, "tokens in the log", r.log.Count("s3cret"), 0)
}

// TestDirectCall checks that a request in the bridge's format gets an answer in the bridge's format. Requests without
// the token are refused, and so are private addresses that the operator does not allow.
func TestDirectCall(t *testing.T) {
	t.Parallel()
	r, _ := runDoors(t)
	a := openAgent(t)
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
	command := map[string]any{"transport": "stdio", "command": "sh"}
	for _, c := range []struct {
		token    string
		endpoint any
		status   int
		says     string
	}{
		{"", a.URL, 401, ""}, {doorToken, "http://10.0.0.1/mcp", 400, `"reason":"address_blocked"`},
		{doorToken, command, 400, `"reason":"transport_refused"`}, // nobody listed the command
	} {
		status, body := r.ask(http.MethodPost, c.token, "/mcp/call", call(c.endpoint))
		heraldtest.Equal(t, body, status, c.status)
		heraldtest.Contains(t, "the refusal", body, c.says)
	}
	heraldtest.Equal(t, "calls", a.count(), 2)
	if list, err := records.New(w.Store).Deliveries(t.Context(), records.Filter{}); err != nil || len(list) != 0 {
		t.Errorf("%d deliveries, %v", len(list), err)
	}
	metrics := r.get(doorToken, "/metrics")
	heraldtest.Contains(t, "/metrics", metrics, `mcp_calls_total{status="success",tool_name="agent.receiveFeedback"} 2`,
		`mcp_call_duration_seconds_bucket{tool_name="agent.receiveFeedback",le="30"}`)
	heraldtest.Must(t, r.stop())
	heraldtest.Equal(t, "tokens in the log", r.log.Count("s3cret"), 0)
	heraldtest.Equal(t, "logged calls", r.log.Count("direct call answered"), 2)
}
