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

// foreignDelay is how long a task of another program waits before a worker may take it again. asynq stops its own
// writes about a task when the task's lease ends, after 30 seconds.
const foreignDelay = time.Minute

const (
	maxLoggedTypes = 32  // types of other programs that one process names in its log
	maxTypeName    = 100 // characters of such a type that are shown
	maxTypeSamples = 100 // tasks of one lane in one state that ListForeign reads
)

// foreignError returns a task to its queue, because its type is unknown to Herald.
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

// returnTask returns the error that makes asynq run the task again after foreignDelay.
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

// moveForeign moves a task from active to retry and leaves its message as it is.
//
// KEYS: active, lease, retry, the task. ARGV: the task's id, when it is due.
var moveForeign = redis.NewScript(`
if redis.call("LREM", KEYS[1], 0, ARGV[1]) == 0 then return 0 end
redis.call("ZREM", KEYS[2], ARGV[1])
redis.call("ZADD", KEYS[3], ARGV[2], ARGV[1])
redis.call("HSET", KEYS[4], "state", "retry")
return 1`)

const foreignTimeout = 5 * time.Second

// keepForeign runs before asynq acts on a task's error. asynq archives a task that has no retry left, also when the
// error is no failure, and counts a retry when the task's own deadline has passed. keepForeign takes another program's
// task out of asynq's reach in these cases; asynq then finds nothing to write to.
func (s *Server) keepForeign(ctx context.Context, t *asynq.Task, err error) {
	if s.kinds[t.Type()] {
		return
	}
	var foreign *foreignError
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	if errors.As(err, &foreign) && retried < most {
		return // asynq returns it and counts nothing
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

// ForeignReturned returns how many tasks of other programs this process has returned to their queues.
func (q *Queue) ForeignReturned() int64 { return q.foreign.count.Load() }

// ForeignType is a task type of another program in a lane of Herald's.
type ForeignType struct {
	Lane string
	Type string // at most maxTypeName characters
}

// ListForeign returns the task types in Herald's lanes that are not among kinds. It reads maxTypeSamples tasks of each
// lane in each state, so that a type with few tasks may be missing.
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
