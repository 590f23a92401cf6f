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

// Handler is what runs tasks. The context ends when Redis freezes or the server stops by force; a handler that has
// begun must finish on a context of its own.
//
// Without an error the task is completed, with the returned note as its result in the web UI. WaitError has it run again
// later, ArchivedError moves it to the archive, both with their text; ErrDropped removes it. Any other error lets asynq
// try the task again a little later, which is the net for what could not even be claimed.
type Handler interface {
	Deliver(ctx context.Context, id uuid.UUID, n int) (note string, err error)
	// Intake takes a whole job that somebody else's asynq client put in.
	Intake(ctx context.Context, kind string, body []byte) (note string, err error)
}

// ArchivedError puts a task into the archive: its delivery ended badly. Text is what the operator reads.
type ArchivedError struct{ Text string }

func (e *ArchivedError) Error() string { return e.Text }

// ErrDropped removes a task: it is old, or its delivery waits without it.
var ErrDropped = errors.New("the task is not needed any more")

// skipRetry is an ArchivedError as asynq understands it, without words of asynq's in what the operator reads.
type skipRetry struct{ *ArchivedError }

func (e skipRetry) Is(target error) bool { return target == asynq.SkipRetry }

// ServerConfig shapes a Server.
type ServerConfig struct {
	Handler     Handler
	Concurrency int // tasks at a time; needed

	// Kinds are the task types of Herald. A task of another type is another program's: it returns to its queue for
	// foreignDelay, and asynq counts no retry.
	Kinds []string

	// ShutdownTimeout is how long Shutdown waits for running tasks; it must outlast the longest call. Needed.
	ShutdownTimeout time.Duration

	// PollInterval is how often empty lanes are looked at. Default 20 ms: it is most of an idle system's latency.
	PollInterval time.Duration
}

// Server takes tasks from the lanes and hands them to the Handler.
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

// NewServer prepares a server; Start begins.
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

// Start begins to take tasks. It returns at once.
func (s *Server) Start() error {
	if err := s.announce(); err != nil {
		s.log.Warn("the web UI shows the lanes once they are used", logging.About(logging.Redis), "error", err)
	}
	if err := s.srv.Start(s.mux); err != nil {
		return fmt.Errorf("start the asynq server: %w", err)
	}
	return nil
}

// serverClocks is by how much the clocks of workers may differ before one overlooks another in asynq's list.
const serverClocks = time.Minute

// Servers counts the asynq servers of other processes at this Redis, and tells whether this process' own is listed. A
// server says every five seconds that it is there; one that was killed counts for 70.
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
			others++ // also one that has this host's name and this process' number in a container of its own
		}
	}
	return others, self, nil
}

// Stop takes no more tasks; running ones go on until Shutdown.
func (s *Server) Stop() { s.srv.Stop() }

// Shutdown takes no more tasks and waits for running ones, up to the shutdown timeout.
func (s *Server) Shutdown() { s.srv.Shutdown() }

func (s *Server) newHandler(h Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		note, err := s.runTask(ctx, h, t)
		if note != "" {
			// The note is for the eye only; a Redis that cannot take it must not make the task run again.
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

// asynqLogger sends asynq's own lines to slog. Nearly all that asynq warns of is that Redis did not do something.
type asynqLogger struct{ log, redis *slog.Logger }

func newAsynqLogger(log *slog.Logger) asynqLogger {
	log = log.With("from", "asynq")
	return asynqLogger{log: log, redis: log.With(logging.About(logging.Redis))}
}

func (l asynqLogger) Debug(args ...any) { l.log.Debug(joinArgs(args)) }
func (l asynqLogger) Info(args ...any)  { l.log.Info(joinArgs(args)) }
func (l asynqLogger) Warn(args ...any)  { l.logLine(slog.LevelWarn, joinArgs(args)) }
func (l asynqLogger) Error(args ...any) { l.logLine(slog.LevelError, joinArgs(args)) }

// Fatal is what asynq calls for a fault of its own; ending the process is not its decision here.
func (l asynqLogger) Fatal(args ...any) { l.log.Error(joinArgs(args)) }

// Beginnings of asynq's lines.
var (
	// aboutOneTask: how its record of one task went, which nothing depends on (see the package comment). Redis was
	// away, or was emptied, or the task was archived, of which the delivery's own line tells with the reason, or dropped.
	aboutOneTask = []string{"Retry exhausted for task", "revoke task", "Could not move task", "Could not remove task",
		"Lease reset failed for", "Failed to extend lease for tasks"}
	// ownFaults are no fault of Redis'.
	ownFaults = []string{"recovering from panic", "asynq: internal error", "Quitting worker"}
)

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
