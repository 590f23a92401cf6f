package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/text"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// foreignDelay is how long another program's task waits in its queue before a worker can fetch it again. It is longer
// than asynq's lease of a fetched task, 30 seconds, because asynq may write to the task until its lease ends.
const foreignDelay = time.Minute

const (
	maxLoggedTypes = 32  // task types of other programs that one process logs at most
	maxTypeName    = 100 // characters of such a type that are logged or returned at most
	maxTypeSamples = 100 // tasks per lane and asynq state that ListForeign reads at most
)

// foreignError is the error of a task whose type Herald does not know. It makes asynq return the task to its queue for
// foreignDelay, without counting a retry.
type foreignError struct{ kind string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("task type %q is unknown to Herald, so the task stays in this queue for the program that it belongs to",
		text.Excerpt(e.kind, maxTypeName))
}

// foreignTasks counts the tasks of other programs that this process returned to their queues, and logs each type once.
type foreignTasks struct {
	count atomic.Int64
	log   *slog.Logger

	mu     sync.Mutex
	logged map[string]bool // at most maxLoggedTypes
}

// returnTask counts a task of the unknown type kind and logs the type if it is new. It returns the *foreignError for
// that task.
func (f *foreignTasks) returnTask(ctx context.Context, kind string) error {
	f.count.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.logged[kind] && len(f.logged) < maxLoggedTypes {
		f.logged[kind] = true
		lane, _ := asynq.GetQueueName(ctx)
		f.log.Warn("another program's tasks are in a queue that Herald reads: they are returned to it and delayed; "+
			"give Herald a Redis database of its own, or set HERALD_REDIS_INTAKE=off if only the queue default is shared",
			"type", text.Excerpt(kind, maxTypeName), "queue", lane)
	}
	return &foreignError{kind}
}

// moveForeign moves a task from asynq's state active to its state retry, and leaves the task's message unchanged. It
// returns 1, or 0 if the task is not active.
//
// KEYS: active, lease, retry, the task. ARGV: the task's id, the Unix time in seconds at which it is due.
var moveForeign = redis.NewScript(`
if redis.call("LREM", KEYS[1], 0, ARGV[1]) == 0 then return 0 end
redis.call("ZREM", KEYS[2], ARGV[1])
redis.call("ZADD", KEYS[3], ARGV[2], ARGV[1])
redis.call("HSET", KEYS[4], "state", "retry")
return 1`)

const foreignTimeout = 5 * time.Second

// keepForeign is called before asynq handles a task's error. asynq archives a task that has no retry left, even if
// isFailure returns false, and it counts a retry when the task's own deadline has passed. In these two cases
// keepForeign moves another program's task to the state retry itself, so that asynq finds no active task to change.
func (s *Server) keepForeign(ctx context.Context, t *asynq.Task, err error) {
	if s.kinds[t.Type()] {
		return
	}
	var foreign *foreignError
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	if errors.As(err, &foreign) && retried < most {
		return // asynq returns the task and counts no retry
	}
	id, _ := asynq.GetTaskID(ctx)
	lane, _ := asynq.GetQueueName(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), foreignTimeout)
	defer cancel()
	prefix := "asynq:{" + lane + "}:"
	err = moveForeign.Run(ctx, s.rdb, []string{prefix + "active", prefix + "lease", prefix + "retry", prefix + "t:" + id},
		id, time.Now().Add(foreignDelay).Unix()).Err()
	if err != nil {
		s.log.Warn("another program's task could not be returned to its queue, so asynq may archive it",
			"task", text.Excerpt(id, maxTypeName), "queue", lane, "error", err)
	}
}

// ForeignReturned returns how many tasks of other programs this process has returned to their queues since it started.
func (q *Queue) ForeignReturned() int64 { return q.foreign.count.Load() }

// ForeignType is a task type of another program that occurs in one of Herald's lanes.
type ForeignType struct {
	Lane string
	Type string // at most maxTypeName characters
}

// ListForeign returns the task types in Herald's lanes that are not among kinds, sorted. It reads at most
// maxTypeSamples tasks per lane and state, so it may miss a type that has few tasks.
func (q *Queue) ListForeign(kinds []string) ([]ForeignType, error) {
	known, err := q.inspector.Queues()
	if err != nil {
		return nil, fmt.Errorf("list the queues in Redis: %w", err)
	}
	found := map[ForeignType]bool{}
	for lane := range q.lanes {
		if !slices.Contains(known, lane) {
			continue
		}
		for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){q.inspector.ListPendingTasks,
			q.inspector.ListActiveTasks, q.inspector.ListScheduledTasks, q.inspector.ListRetryTasks, q.inspector.ListArchivedTasks} {
			tasks, err := list(lane, asynq.PageSize(maxTypeSamples))
			if err != nil {
				return nil, fmt.Errorf("list the tasks of queue %s: %w", lane, err)
			}
			for _, t := range tasks {
				if !slices.Contains(kinds, t.Type) {
					found[ForeignType{lane, text.Excerpt(t.Type, maxTypeName)}] = true
				}
			}
		}
	}
	types := slices.Collect(maps.Keys(found))
	slices.SortFunc(types, func(a, b ForeignType) int {
		return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Type, b.Type))
	})
	return types, nil
}
