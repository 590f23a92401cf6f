package queue_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/webui"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"
)

const kind = "NewFeedback"

func TestMonitorShowsTasksAndNothingForeign(t *testing.T) {
	t.Parallel()
	q, err := queue.Open(queue.Config{URL: secret.New(heraldtest.Redis(t)), Logger: slog.New(slog.DiscardHandler)})
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = q.Close() })
	m := webui.New(q, "/monitor", intake.MaskJob)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	task := queue.Task{DeliveryID: uuid.New(), N: 7, Kind: kind, Lane: queue.First}
	client := asynq.NewClient(q.ConnOpt())
	t.Cleanup(func() { _ = client.Close() })
	heraldtest.Must(t, q.Enqueue(heraldtest.Within(t, 10*time.Second), task))
	if _, err := client.EnqueueContext(heraldtest.Within(t, 10*time.Second), asynq.NewTask(kind, []byte(`{"action":{"endpoint":{"headers":{"X-Key":"hunter2"}}}}`)),
		asynq.Queue("default"), asynq.TaskID("foreign")); err != nil {
		t.Fatal(err)
	}
	ask := func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		m.ServeHTTP(w, httptest.NewRequest(method, "/monitor"+path, nil))
		return w.Code, w.Body.String()
	}
	for path, want := range map[string]string{
		"/api/queues":                           `"queue":"first"`,
		"/api/queues/first/pending_tasks":       task.DeliveryID.String(),
		"/api/queues/first/tasks/" + task.ID():  `\"n\": 7`,
		"/api/queues/default/pending_tasks":     `a whole job, 55 bytes, begins with: {\"action\":{\"endpoint\":{\"headers\":{\"X-Key\":\"******\"`,
		"/api/queues/default/tasks/foreign":     `a whole job, 55 bytes, begins with: {\"action\":{\"endpoint\":{\"headers\":{\"X-Key\":\"******\"`,
		"/api/servers":                          "servers",
		"/api/redis_info":                       "redis_version",
		"/":                                     "<!doctype html>",
		"/queues/first?status=scheduled&page=1": "<!doctype html>",
	} {
		code, body := ask(http.MethodGet, path)
		heraldtest.Equal(t, fmt.Sprintf("GET %s", path), code, http.StatusOK)
		heraldtest.Contains(t, fmt.Sprintf("GET %s", path), body, want)
		heraldtest.Lacks(t, fmt.Sprintf("GET %s shows a secret", path), body, "hunter2")
	}
	for _, c := range [][2]string{
		{http.MethodPost, "/api/queues/first:pause"},
		{http.MethodDelete, "/api/queues/first"},
		{http.MethodPost, "/api/queues/first/pending_tasks:archive_all"},
		{http.MethodDelete, "/api/queues/first/pending_tasks/" + task.ID()},
		{http.MethodPost, "/api/queues/first/archived_tasks:run_all"},
	} {
		if code, body := ask(c[0], c[1]); code != http.StatusMethodNotAllowed {
			t.Errorf("%s %s: %d %.200s", c[0], c[1], code, body)
		}
	}
	if code, _ := ask(http.MethodGet, "/api/metrics"); code != http.StatusNotFound {
		t.Errorf("/api/metrics: %d", code)
	}
	if found, err := q.Find(task); err != nil || found != queue.Pending {
		t.Errorf("the task is gone: %v, %v", found, err)
	}
}
