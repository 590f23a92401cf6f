package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/logging"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// Handler runs tasks. The context ends when Redis freezes or when the server is stopped by force. A handler that has
// begun its work must finish it on a context of its own.
//
// The error decides what asynq does. nil: it completes the task, and the web UI shows the note as its result.
// *WaitError: it runs the task again at WaitError.At. *ArchivedError: it archives the task. The web UI shows the Text
// of these two errors. ErrDropped: it deletes the task. Any other error, for example because Postgres is unreachable:
// it runs the task again after netDelay.
type Handler interface {
	// Deliver handles the task n (Task.N) of delivery id.
	Deliver(ctx context.Context, id uuid.UUID, n int) (note string, err error)
	// Intake handles a task in which another program's asynq client sent a whole job. kind is the task's type.
	Intake(ctx context.Context, kind string, body []byte) (note string, err error)
}

// ArchivedError is the error of a Handler whose delivery failed or is held, or whose job is not accepted. It makes
// asynq archive the task. The web UI shows Text.
type ArchivedError struct{ Text string }

func (e *ArchivedError) Error() string { return e.Text }

// ErrDropped makes asynq delete a task, because the task is outdated or its delivery continues without it.
var ErrDropped = errors.New("the task is no longer needed")

// skipRetry makes asynq archive the task, because asynq takes it for asynq.SkipRetry. Its text is that of the
// ArchivedError.
type skipRetry struct{ *ArchivedError }

func (e skipRetry) Is(target error) bool { return target == asynq.SkipRetry }

// ServerConfig configures a Server.
type ServerConfig struct {
	Handler     Handler
	Concurrency int // tasks at a time; required

	// Kinds are Herald's task types. A task of any other type belongs to another program: asynq puts it back into its
	// queue, to run after foreignDelay, and counts no retry.
	Kinds []string

	// ShutdownTimeout is how long Shutdown waits for running tasks. Required. It must be longer than the longest call
	// to an agent.
	ShutdownTimeout time.Duration

	// PollInterval is the time between two polls while the lanes are empty. It is most of the latency of an idle
	// system. Default 20 ms.
	PollInterval time.Duration
}

// Server fetches tasks from the lanes and passes them to the Handler.
type Server struct {
	srv   *asynq.Server
	mux   asynq.Handler
	kinds map[string]bool
	rdb   redis.UniversalClient

	foreign  *foreignTasks
	enqueue  func(context.Context, Task, map[string]string) error
	announce func() error
	log      *slog.Logger
}

// NewServer validates the configuration. Start starts the server.
func (q *Queue) NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Handler == nil || cfg.Concurrency < 1 || cfg.ShutdownTimeout <= 0 {
		return nil, errors.New("queue: server needs a handler, a concurrency of at least 1 and a shutdown timeout")
	}
	if cfg.PollInterval <= 0 {
		cfg.PollInterval = 20 * time.Millisecond
	}
	s := &Server{log: q.log, rdb: q.rdb, foreign: &q.foreign, enqueue: q.enqueueWith, announce: q.announceLanes,
		kinds: make(map[string]bool, len(cfg.Kinds))}
	for _, k := range cfg.Kinds {
		s.kinds[k] = true
	}
	s.mux = s.newHandler(cfg.Handler)
	s.srv = asynq.NewServerFromRedisClient(q.rdb, asynq.Config{
		Concurrency:              cfg.Concurrency,
		Queues:                   q.lanes,
		TaskCheckInterval:        cfg.PollInterval,
		DelayedTaskCheckInterval: 500 * time.Millisecond,
		ShutdownTimeout:          cfg.ShutdownTimeout,
		RetryDelayFunc:           retryDelay,
		IsFailure:                isFailure,
		ErrorHandler:             asynq.ErrorHandlerFunc(s.keepForeign),
		Logger:                   newAsynqLogger(q.log),
		LogLevel:                 asynq.WarnLevel,
	})
	return s, nil
}

// Start begins to fetch tasks, in the background. It returns an error if asynq does not start.
func (s *Server) Start() error {
	if err := s.announce(); err != nil {
		s.log.Warn("the web UI shows the lanes once they are used", logging.About(logging.Redis), "error", err)
	}
	if err := s.srv.Start(s.mux); err != nil {
		return fmt.Errorf("start the asynq server: %w", err)
	}
	return nil
}

// serverClocks is the largest difference between the clocks of two workers with which Servers of one still counts the
// other.
const serverClocks = time.Minute

// Servers counts the asynq servers of other processes in asynq's list in Redis (others), and reports whether the list
// contains the server of this process (self). A server renews its entry every five seconds. A killed server is counted
// for another 70 seconds.
func (q *Queue) Servers(ctx context.Context) (others int, self bool, err error) {
	host, err := os.Hostname()
	if err != nil {
		return 0, false, fmt.Errorf("list the asynq servers: %w", err)
	}
	listed, err := q.rdb.ZRangeByScore(ctx, "asynq:servers", &redis.ZRangeBy{
		Min: strconv.FormatInt(time.Now().Add(-serverClocks).Unix(), 10), Max: "+inf"}).Result()
	if err != nil {
		return 0, false, fmt.Errorf("list the asynq servers: %w", err)
	}
	own := fmt.Sprintf("asynq:servers:{%s:%d:", host, os.Getpid())
	for _, server := range listed {
		if !self && strings.HasPrefix(server, own) {
			self = true
		} else {
			others++ // perhaps a container that has the same host name and process id
		}
	}
	return others, self, nil
}

// Stop stops fetching tasks. Running tasks continue until Shutdown.
func (s *Server) Stop() { s.srv.Stop() }

// Shutdown stops fetching tasks and waits for the running ones, at most for the shutdown timeout.
func (s *Server) Shutdown() { s.srv.Shutdown() }

// newHandler returns the asynq handler, which calls runTask, stores the note, and translates errors: an *ArchivedError
// so that asynq archives the task, and ErrDropped, or a wait for which moveToRetry made another task, so that asynq
// deletes the task.
func (s *Server) newHandler(h Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		note, err := s.runTask(ctx, h, t)
		if note != "" {
			// The note is only shown. If Redis does not store it, the task must not run again.
			_, _ = t.ResultWriter().Write([]byte(note))
		}
		var archived *ArchivedError
		var wait *WaitError
		switch {
		case errors.As(err, &archived):
			return skipRetry{archived}
		case errors.As(err, &wait) && s.moveToRetry(ctx, t, wait), errors.Is(err, ErrDropped):
			return asynq.RevokeTask
		}
		return err
	})
}

// runTask passes a delivery's task to h.Deliver, and any other task of a known type, which contains a whole job, to
// h.Intake. It returns the note and error of h. For a task of an unknown type it does not call h, and returns a
// *foreignError, which makes asynq put the task back. If moveToRetry made the task and its wait is not over, it does
// not call h, and returns the rest of the wait as a *WaitError.
func (s *Server) runTask(ctx context.Context, h Handler, t *asynq.Task) (string, error) {
	if !s.kinds[t.Type()] {
		return "", s.foreign.returnTask(ctx, t.Type())
	}
	var p payload
	if err := json.Unmarshal(t.Payload(), &p); err == nil && p.DeliveryID != uuid.Nil {
		if wait := readWait(t); wait != nil {
			return "", wait
		}
		return h.Deliver(ctx, p.DeliveryID, p.N)
	}
	return h.Intake(ctx, t.Type(), t.Payload())
}

// asynqLogger writes asynq's messages to slog. redis marks a message as a problem with Redis: nearly all of asynq's
// warnings mean that a command to Redis failed.
type asynqLogger struct{ log, redis *slog.Logger }

func newAsynqLogger(log *slog.Logger) asynqLogger {
	log = log.With("from", "asynq")
	return asynqLogger{log: log, redis: log.With(logging.About(logging.Redis))}
}

func (l asynqLogger) Debug(args ...any) { l.log.Debug(joinArgs(args)) }
func (l asynqLogger) Info(args ...any)  { l.log.Info(joinArgs(args)) }
func (l asynqLogger) Warn(args ...any)  { l.logLine(slog.LevelWarn, joinArgs(args)) }
func (l asynqLogger) Error(args ...any) { l.logLine(slog.LevelError, joinArgs(args)) }

// Fatal logs an internal error of asynq. It does not end the process, as asynq's own logger would.
func (l asynqLogger) Fatal(args ...any) { l.log.Error(joinArgs(args)) }

// Prefixes of asynq's messages.
var (
	// aboutOneTask are messages about asynq's record of a single task, on which no delivery depends (see the package
	// comment). They appear if Redis was unreachable or emptied, or if the task was dropped or archived. Another line,
	// with the delivery, logs the reason.
	aboutOneTask = []string{"Retry exhausted for task", "revoke task", "Could not move task", "Could not remove task",
		"Lease reset failed for", "Failed to extend lease for tasks"}
	// ownFaults are messages that Redis did not cause.
	ownFaults = []string{"recovering from panic", "asynq: internal error", "Quitting worker"}
)

// logLine logs a warning or error of asynq. The beginning of the line decides how: a line about one task (aboutOneTask)
// is logged at Debug. Any other line is logged at level, and is marked as a problem with Redis unless it is in
// ownFaults.
func (l asynqLogger) logLine(level slog.Level, line string) {
	begins := func(with string) bool { return strings.HasPrefix(line, with) }
	switch {
	case slices.ContainsFunc(aboutOneTask, begins):
		l.log.Debug(line)
	case slices.ContainsFunc(ownFaults, begins):
		l.log.Log(context.Background(), level, line)
	default:
		l.redis.Log(context.Background(), level, line)
	}
}

func joinArgs(args []any) string { return strings.TrimSpace(fmt.Sprint(args...)) }
