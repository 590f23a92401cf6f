package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// Handler runs the tasks that a Server fetches. The context of a call ends when Redis does not answer, or when Shutdown
// times out. A Handler that has begun a delivery must finish it with another context. The returned error decides how
// asynq ends the task:
//   - nil: asynq completes the task. The web UI shows the note as the task's result.
//   - *WaitError: asynq runs the task again at WaitError.At. The web UI shows its Text.
//   - *ArchivedError: asynq archives the task. The web UI shows its Text.
//   - ErrDropped: asynq deletes the task.
//   - any other error, for example because Postgres is unreachable: asynq runs the task again after netDelay.
type Handler interface {
	// Deliver runs the task of the delivery with this id whose Task.N is n.
	Deliver(ctx context.Context, id uuid.UUID, n int) (note string, err error)
	// Intake accepts the whole job in body, which another program put into a task. kind is the task's type.
	Intake(ctx context.Context, kind string, body []byte) (note string, err error)
}

// ArchivedError is the error of a Handler whose delivery is rejected, dead or held, or whose job was not accepted. It
// makes asynq archive the task. The web UI shows Text.
type ArchivedError struct{ Text string }

func (e *ArchivedError) Error() string { return e.Text }

// ErrDropped is the error of a Handler for an outdated task, which no delivery needs. It makes asynq delete the task.
var ErrDropped = errors.New("the task is no longer needed")

// skipRetry is an ArchivedError that errors.Is also identifies as asynq.SkipRetry, so that asynq archives the task.
type skipRetry struct{ *ArchivedError }

func (e skipRetry) Is(target error) bool { return target == asynq.SkipRetry }

// ServerConfig configures a Server.
type ServerConfig struct {
	Handler     Handler
	Concurrency int // the number of tasks that run at a time; required

	// Kinds has Herald's task types. A task of any other type is foreign: it belongs to another program. Herald returns
	// it to its queue, and asynq does not run it for foreignDelay.
	Kinds []string

	// ShutdownTimeout is the longest time for which Shutdown waits for running tasks. Required. It must exceed the
	// longest call to an agent.
	ShutdownTimeout time.Duration

	// PollInterval is the time between two polls of Redis while the lanes are empty. A new task in an idle system waits
	// for the next poll. Default 20 ms.
	PollInterval time.Duration
}

// Server fetches tasks from the lanes and passes them to a Handler.
type Server interface {
	// Start lets the Server fetch and run tasks in the background.
	Start() error
	// Stop stops fetching tasks. Running tasks continue until Shutdown.
	Stop()
	// Shutdown stops fetching tasks and waits for running tasks, at most for ServerConfig.ShutdownTimeout. asynq
	// cancels the contexts of tasks that still run then, and returns these tasks to their queues.
	Shutdown()
}

// refusedPause is the pause after a failed try to fetch a task (dequeuePause).
const refusedPause = 200 * time.Millisecond

type server struct {
	*Queue
	srv     *asynq.Server
	mux     asynq.Handler
	kinds   map[string]bool
	expired sync.Once // the warning about jobs past their own deadline
}

// NewServer validates cfg and returns a Server of q, which fetches no tasks before Start.
func NewServer(q *Queue, cfg ServerConfig) (Server, error) {
	if cfg.Handler == nil || cfg.Concurrency < 1 || cfg.ShutdownTimeout <= 0 {
		return nil, errors.New("queue: server needs a handler, a concurrency of at least 1 and a shutdown timeout")
	}
	if cfg.PollInterval <= 0 {
		cfg.PollInterval = 20 * time.Millisecond
	}
	s := &server{Queue: q, kinds: make(map[string]bool, len(cfg.Kinds))}
	for _, k := range cfg.Kinds {
		s.kinds[k] = true
	}
	s.mux = s.newHandler(cfg.Handler)
	// Open sets rdb to a redis.UniversalClient.
	s.srv = asynq.NewServerFromRedisClient(q.rdb.(redis.UniversalClient), asynq.Config{
		Concurrency:              cfg.Concurrency,
		Queues:                   q.lanes,
		TaskCheckInterval:        cfg.PollInterval,
		DelayedTaskCheckInterval: 500 * time.Millisecond,
		ShutdownTimeout:          cfg.ShutdownTimeout,
		RetryDelayFunc:           retryDelay,
		IsFailure:                isFailure,
		ErrorHandler:             asynq.ErrorHandlerFunc(s.keepTask),
		Logger:                   newAsynqLogger(q.log),
		LogLevel:                 asynq.WarnLevel,
	})
	return s, nil
}

// dequeuePause is a hook of the Redis driver that waits after a failed try to fetch a task. asynq would repeat the try
// at once, which costs more than a core while Redis refuses it, for example because its memory is full.
type dequeuePause struct{}

func (dequeuePause) DialHook(next redis.DialHook) redis.DialHook { return next }

func (dequeuePause) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (dequeuePause) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		err := next(ctx, command)
		// The arguments are evalsha, a hash, the number of keys, and first the key of a lane's pending tasks.
		args := command.Args()
		if err == nil || len(args) < 4 || errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "NOSCRIPT") {
			return err
		}
		if key, _ := args[3].(string); strings.HasSuffix(key, ":pending") {
			select {
			case <-time.After(refusedPause):
			case <-ctx.Done():
			}
		}
		return err
	}
}

func (s *server) Start() error {
	if err := s.announceLanes(); err != nil {
		s.log.Warn("the web UI shows the lanes once they are used", logging.About(logging.Redis), "error", err)
	}
	if err := s.srv.Start(s.mux); err != nil {
		return fmt.Errorf("start the asynq server: %w", err)
	}
	return nil
}

// maxListed is how many entries of the list of servers are read. Entries of killed servers can stay in it for ever.
const maxListed = 1000

// Servers reads the list of running asynq servers, which asynq keeps in Redis. Each worker runs one asynq server.
// Servers returns the number of servers of other processes (others), and whether the list contains the server of this
// process (self). asynq renews a server's entry and its key every five seconds. If a server is killed, its key expires
// within 10 seconds, by Redis' clock. The expiry of its entry is by its machine's clock, which may differ by hours.
func (q *Queue) Servers(ctx context.Context) (others int, self bool, err error) {
	host, err := os.Hostname()
	if err != nil {
		return 0, false, fmt.Errorf("list the asynq servers: %w", err)
	}
	listed, err := q.rdb.ZRevRange(ctx, "asynq:servers", 0, maxListed-1).Result() // the last to expire first
	if err != nil {
		return 0, false, fmt.Errorf("list the asynq servers: %w", err)
	}
	keys := make([]*redis.IntCmd, len(listed))
	_, err = q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, server := range listed {
			keys[i] = p.Exists(ctx, server)
		}
		return nil
	})
	if err != nil {
		return 0, false, fmt.Errorf("look for the keys of the asynq servers: %w", err)
	}
	own := fmt.Sprintf("asynq:servers:{%s:%d:", host, os.Getpid())
	for i, server := range listed {
		if keys[i].Val() == 0 {
			continue
		}
		if !self && strings.HasPrefix(server, own) {
			self = true
		} else {
			others++ // also a second server with the host name and process id of this one: both may be in containers
		}
	}
	return others, self, nil
}

func (s *server) Stop() { s.srv.Stop() }

func (s *server) Shutdown() { s.srv.Shutdown() }

// newHandler returns the function that asynq calls for each task. It calls runTask, stores the note as the task's
// result, and returns the error that makes asynq end the task as Handler describes. For a *WaitError it calls
// moveToRetry first. If moveToRetry enqueued a copy of the task, asynq deletes the original.
func (s *server) newHandler(h Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		note, err := s.runTask(ctx, h, t)
		if note != "" {
			// The note is only for display. If Redis does not store it, the task must not run again.
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

// runTask calls h.Deliver for the task of a delivery and h.Intake for a task with a whole job, and returns their
// results. In two cases it calls neither. For a foreign task, whose type is not one of Herald's, it returns a
// *foreignError. For a copy that moveToRetry enqueued, it returns a *WaitError with the end of the wait, if the wait is
// not over.
func (s *server) runTask(ctx context.Context, h Handler, t *asynq.Task) (string, error) {
	if !s.kinds[t.Type()] {
		return "", s.foreign.returnTask(ctx, t.Type())
	}
	if p, ok := parsePayload(t.Payload()); ok {
		if wait := readWait(t); wait != nil {
			return "", wait
		}
		return h.Deliver(ctx, p.DeliveryID, p.N)
	}
	note, err := h.Intake(ctx, t.Type(), t.Payload())
	if err != nil {
		err = &intakeError{err}
	}
	return note, err
}

// asynqLogger logs asynq's messages. Nearly all of asynq's warnings and errors report a failed Redis command. These go
// to the logger redis, which marks them as a problem with Redis (logging.About). All other messages go to log. logLine
// decides.
type asynqLogger struct{ log, redis *slog.Logger }

func newAsynqLogger(log *slog.Logger) asynqLogger {
	log = log.With("from", "asynq")
	return asynqLogger{log: log, redis: log.With(logging.About(logging.Redis))}
}

func (l asynqLogger) Debug(args ...any) { l.log.Debug(joinArgs(args)) }
func (l asynqLogger) Info(args ...any)  { l.log.Info(joinArgs(args)) }
func (l asynqLogger) Warn(args ...any)  { l.logLine(slog.LevelWarn, joinArgs(args)) }
func (l asynqLogger) Error(args ...any) { l.logLine(slog.LevelError, joinArgs(args)) }

// Fatal logs an internal error of asynq. Unlike asynq's own logger, it does not end the process.
func (l asynqLogger) Fatal(args ...any) { l.log.Error(joinArgs(args)) }

// Prefixes of asynq's messages, for logLine.
var (
	// aboutOneTask has the prefixes of messages about one task. asynq logs such a message if Redis was unreachable or
	// lost its data, or if the task was deleted or archived. No delivery is lost by that (see the package comment), and
	// Herald logs the cause with the delivery.
	aboutOneTask = []string{"Retry exhausted for task", "revoke task", "Could not move task", "Could not remove task",
		"Lease reset failed for", "Failed to extend lease for tasks"}
	// ownFaults has the prefixes of messages about errors that Redis did not cause, such as a panic.
	ownFaults = []string{"recovering from panic", "asynq: internal error", "Quitting worker"}
)

// logLine logs a warning or an error of asynq. A line with a prefix of aboutOneTask gets the level Debug; any other
// line gets the given level. Lines that have no prefix of either list are marked as a problem with Redis.
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
