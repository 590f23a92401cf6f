package queue

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

const kind = "NewFeedback"

// open connects to a Redis of the test's own.
func open(t testing.TB, adapt ...func(*Config)) *Queue {
	t.Helper()
	return openAt(t, heraldtest.Redis(t), adapt...)
}

// openLogged connects to a real Redis, and writes to log.
func openLogged(t testing.TB, log *heraldtest.Log) *Queue {
	t.Helper()
	return openAt(t, heraldtest.RealRedis(t), func(c *Config) { c.Logger = log.Logger(slog.LevelInfo) })
}

func openAt(t testing.TB, url string, adapt ...func(*Config)) *Queue {
	t.Helper()
	cfg := Config{URL: secret.New(url), Logger: slog.New(slog.DiscardHandler)}
	for _, a := range adapt {
		a(&cfg)
	}
	q, err := Open(cfg)
	heraldtest.Must(t, err)
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	return q
}

// enqueueForeign enqueues a task as another program does, on the connections of q, and returns its id.
func enqueueForeign(t testing.TB, q *Queue, task *asynq.Task, options ...asynq.Option) (id string) {
	t.Helper()
	client := asynq.NewClientFromRedisClient(q.rdb.(redis.UniversalClient))
	info, err := client.EnqueueContext(heraldtest.Within(t, 10*time.Second), task, options...)
	heraldtest.Must(t, err)
	return info.ID
}

// serve runs h until the test ends or the returned function is called.
func serve(t testing.TB, q *Queue, h Handler, concurrency int) (shutdown func()) {
	t.Helper()
	s, err := NewServer(q, ServerConfig{Handler: h, Concurrency: concurrency, Kinds: []string{kind}, ShutdownTimeout: 10 * time.Second,
		PollInterval: 5 * time.Millisecond})
	heraldtest.Must(t, err)
	heraldtest.Must(t, s.Start())
	shutdown = sync.OnceFunc(s.Shutdown)
	t.Cleanup(shutdown)
	return shutdown
}

// handler is a Handler made of functions. A missing function fails the task.
type handler struct {
	deliver func(ctx context.Context, id uuid.UUID, n int) (string, error)
	intake  func(ctx context.Context, kind string, body []byte) (string, error)
}

func (h handler) Deliver(ctx context.Context, id uuid.UUID, n int) (string, error) {
	if h.deliver == nil {
		return "", fmt.Errorf("unexpected delivery %s:%d", id, n)
	}
	return h.deliver(ctx, id, n)
}

func (h handler) Intake(ctx context.Context, kind string, body []byte) (string, error) {
	if h.intake == nil {
		return "", fmt.Errorf("unexpected intake %s", body)
	}
	return h.intake(ctx, kind, body)
}

// record returns a logger, and a function that returns the level and service of its log line.
func record() (*slog.Logger, func() string) {
	var b strings.Builder
	levelAndService := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key != slog.LevelKey && a.Key != "about" {
			return slog.Attr{}
		}
		return a
	}
	log := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: levelAndService}))
	return log, func() string { return strings.TrimSpace(b.String()) }
}
