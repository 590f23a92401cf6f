package queue

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// TestForeignTasksReturn: Herald returns another program's tasks to their queue, also those without retries left or
// past their own deadline. asynq counts no retry and archives none, and the other program gets them.
func TestForeignTasksReturn(t *testing.T) {
	t.Parallel()
	var log heraldtest.Log
	q := openLogged(t, &log)
	tasks := map[string][]asynq.Option{
		"retries": nil, "again": nil, "last": {asynq.MaxRetry(0)},
		"late": {asynq.MaxRetry(5), asynq.Deadline(time.Now().Add(-time.Hour))},
	}
	for id, options := range tasks {
		enqueueForeign(t, q, asynq.NewTask("email:send", []byte(id)), append(options, asynq.TaskID(id), asynq.Queue("default"))...)
	}
	shutdown := serve(t, q, handler{}, 2)
	for range 2 { // each of them arrives twice
		for id := range tasks {
			var i *asynq.TaskInfo
			heraldtest.AwaitState(t, func() bool {
				var err error
				i, err = q.inspector.GetTaskInfo("default", id)
				return err == nil && i.State == asynq.TaskStateRetry
			}, func() string { return id + " is not returned: " + i.State.String() })
			if wait := time.Until(i.NextProcessAt); wait < foreignDelay/2 || wait > foreignDelay || i.Retried != 0 {
				t.Errorf("%s waits %s, retried %d", id, wait, i.Retried)
			}
			if err := q.inspector.(*asynq.Inspector).RunTask("default", id); err != nil {
				t.Fatal(id, err)
			}
		}
	}
	for id := range tasks {
		heraldtest.Await(t, "they wait again", func() bool {
			i, err := q.inspector.GetTaskInfo("default", id)
			return err == nil && i.State == asynq.TaskStateRetry
		})
	}
	shutdown()
	queued, err := q.inspector.GetQueueInfo("default")
	if err != nil || queued.Archived != 0 || queued.Failed != 0 || queued.Retry != len(tasks) {
		t.Errorf("%+v, %v", queued, err)
	}
	if n := q.ForeignReturned(); n < int64(len(tasks)) {
		t.Errorf("%d are counted", n)
	}
	if n := log.Count(`type=email:send queue=default`); n != 1 {
		t.Errorf("the type is named in %d lines:\n%s", n, &log)
	}

	// The program that owns the tasks.
	got := make(chan string, len(tasks))
	owner := asynq.NewServerFromRedisClient(q.rdb.(redis.UniversalClient), asynq.Config{Logger: newAsynqLogger(slog.New(slog.DiscardHandler)), Concurrency: 1})
	if err := owner.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		got <- task.Type() + " " + string(task.Payload())
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	defer owner.Shutdown()
	missing := map[string]bool{}
	for id := range tasks {
		if id == "late" {
			continue // asynq itself runs nothing past its deadline
		}
		missing["email:send "+id] = true
		if err := q.inspector.(*asynq.Inspector).RunTask("default", id); err != nil {
			t.Error(id, err)
		}
	}
	for range len(missing) {
		delete(missing, heraldtest.Receive(t, "a task at its owner", got))
	}
	if len(missing) > 0 {
		t.Errorf("never came: %v", missing)
	}
}

// TestExpiredJobIsLogged: asynq runs no task past its own deadline, so a job with one is never accepted. It stays in its
// queue, and the log says why.
func TestExpiredJobIsLogged(t *testing.T) {
	t.Parallel()
	var log heraldtest.Log
	q := openLogged(t, &log)
	serve(t, q, handler{}, 1)
	for _, id := range []string{"one", "two"} {
		enqueueForeign(t, q, asynq.NewTask(kind, []byte("{}")), asynq.TaskID(id), asynq.Queue("default"),
			asynq.Deadline(time.Now().Add(-time.Hour)))
		heraldtest.Await(t, "the job waits in its queue", func() bool {
			i, err := q.inspector.GetTaskInfo("default", id)
			return err == nil && i.State == asynq.TaskStateRetry
		})
	}
	if n := log.Count("asynq.Deadline"); n != 1 {
		t.Errorf("%d lines:\n%s", n, &log)
	}
}

// TestForeignTypesInTheLogAreBounded: the log names a bounded number of types, each shortened.
func TestForeignTypesInTheLogAreBounded(t *testing.T) {
	t.Parallel()
	var log heraldtest.Log
	f := foreignTasks{log: log.Logger(slog.LevelInfo), logged: map[string]bool{}}
	for n := range 2 * maxLoggedTypes {
		_ = f.returnTask(t.Context(), strings.Repeat("x", 1000+n))
	}
	if n := log.Count("another program's tasks"); n != maxLoggedTypes || len(log.String()) > maxLoggedTypes*1000 {
		t.Errorf("%d lines, %d bytes", n, len(log.String()))
	}
	heraldtest.Equal(t, "the count", f.count.Load(), 2*maxLoggedTypes)
}

// TestUnreadQueues checks that jobs in a queue without a reader are listed and logged once, and that tasks of other
// types and queues with a reader are not.
func TestUnreadQueues(t *testing.T) {
	t.Parallel()
	var log heraldtest.Log
	q := openLogged(t, &log)
	kinds := []string{"NewFeedback"}
	for _, task := range [][2]string{{"jobs", "NewFeedback"}, {"mail", "email:send"}, {"default", "NewFeedback"},
		{"read", "NewFeedback"}, {"read", "NewFeedback"}} { // one of them stays pending
		enqueueForeign(t, q, asynq.NewTask(task[1], nil), asynq.Queue(task[0]))
	}
	reader := asynq.NewServerFromRedisClient(q.rdb.(redis.UniversalClient), asynq.Config{Logger: newAsynqLogger(slog.New(slog.DiscardHandler)),
		Queues: map[string]int{"read": 1}, Concurrency: 1, ShutdownTimeout: time.Millisecond})
	heraldtest.Must(t, reader.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error { <-ctx.Done(); return nil })))
	defer reader.Shutdown()
	heraldtest.Await(t, "the reader is known", func() bool { s, err := q.inspector.Servers(); return err == nil && len(s) == 1 })
	if unread, err := q.ListUnread(kinds); err != nil || len(unread) != 1 || unread[0] != (UnreadQueue{"jobs", 1}) {
		t.Errorf("%+v, %v", unread, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ticks := make(chan time.Time)
	done := make(chan struct{})
	go func() { defer close(done); q.WatchUnread(ctx, kinds, ticks) }()
	for range 3 {
		ticks <- time.Time{}
	}
	cancel()
	<-done
	if n := log.Count("in a queue that no worker reads"); n != 1 {
		t.Errorf("%d lines:\n%s", n, &log)
	}
}

// TestNoIntakeLeavesDefaultAlone: with HERALD_REDIS_INTAKE=off, Herald takes no tasks from the queue default.
func TestNoIntakeLeavesDefaultAlone(t *testing.T) {
	t.Parallel()
	q := open(t, func(c *Config) { c.NoIntake = true })
	for queue, body := range map[string]string{"default": "theirs", "first": "ours"} {
		enqueueForeign(t, q, asynq.NewTask(kind, []byte(body)), asynq.TaskID(body), asynq.Queue(queue))
	}
	got := make(chan string, 2)
	serve(t, q, handler{intake: func(_ context.Context, _ string, body []byte) (string, error) {
		got <- string(body)
		return "accepted", nil
	}}, 1)
	heraldtest.Receive(t, "the task in first", got)
	heraldtest.Await(t, "asynq lists the server", func() bool {
		servers, err := q.inspector.Servers()
		if err != nil || len(servers) != 1 {
			return false
		}
		if _, reads := servers[0].Queues["default"]; reads {
			t.Fatalf("it reads %v", servers[0].Queues)
		}
		return true
	})
	if i, err := q.inspector.GetTaskInfo("default", "theirs"); err != nil || i.State != asynq.TaskStatePending {
		t.Errorf("%+v, %v", i, err)
	}
	counted, err := q.Lanes(t.Context())
	if _, shown := counted[Lane(intakeLane)]; err != nil || shown {
		t.Errorf("%v, %v", counted, err)
	}
}

func TestListForeign(t *testing.T) {
	t.Parallel()
	q := open(t)
	if found, err := q.ListForeign([]string{kind}); err != nil || len(found) != 0 {
		t.Errorf("of an empty Redis: %v, %v", found, err)
	}
	for queue, name := range map[string]string{"default": "email:send", "bulk": "report\n" + strings.Repeat("x", 500), "first": kind, "elsewhere": "image:resize"} {
		enqueueForeign(t, q, asynq.NewTask(name, nil), asynq.Queue(queue), asynq.ProcessIn(time.Hour))
	}
	found, err := q.ListForeign([]string{kind})
	if err != nil || len(found) != 2 || found[0].Lane != "bulk" || len(found[0].Type) > 2*maxTypeName ||
		strings.Contains(found[0].Type, "\n") || found[1] != (ForeignType{"default", "email:send"}) {
		t.Errorf("%+v, %v", found, err)
	}
}
