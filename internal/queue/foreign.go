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

	"github.com/agentherald/herald/internal/base/text"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// foreignDelay is how long asynq does not run a foreign task after Herald returned it to its queue. It must exceed 30
// seconds, the lease of asynq: until the lease ends, asynq may still write to the task.
const foreignDelay = time.Minute

const (
	maxLoggedTypes = 32  // number of task types of other programs that one process logs
	maxTypeName    = 100 // bytes of such a type that are logged or returned
	maxTypeSamples = 100 // number of tasks per lane and asynq state that ListForeign reads
)

// foreignError is the error for a foreign task: a task of another program, whose type Herald does not know. It makes
// asynq return the task to its queue and not run it again before foreignDelay has passed. asynq counts no retry.
type foreignError struct{ kind string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("task type %q is unknown to Herald, so the task stays in this queue for the program "+
		"that it belongs to", text.Excerpt(e.kind, maxTypeName))
}

// intakeError is the error for a whole job that could not be stored, for example because Postgres is unavailable. Only
// the task has the job, so asynq must run it until it is stored.
type intakeError struct{ error }

func (e *intakeError) Unwrap() error { return e.error }

// foreignTasks counts the foreign tasks that this process returned to their queues, and logs each of their types once.
type foreignTasks struct {
	count atomic.Int64
	log   *slog.Logger

	mu     sync.Mutex
	logged map[string]bool // the types that were logged, at most maxLoggedTypes
}

// returnTask counts a foreign task. It logs the task's type (kind) if the type is new. It returns the *foreignError
// that makes asynq return the task to its queue.
func (f *foreignTasks) returnTask(ctx context.Context, kind string) error {
	f.count.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.logged[kind] && len(f.logged) < maxLoggedTypes {
		f.logged[kind] = true
		lane, _ := asynq.GetQueueName(ctx)
		f.log.Warn("another program's tasks are in a queue that Herald reads: they are returned to it and delayed; "+
			"give Herald a Redis database of its own, or set HERALD_REDIS_INTAKE=off "+
			"if only the queue default is shared",
			"type", text.Excerpt(kind, maxTypeName), "queue", lane)
	}
	return &foreignError{kind}
}

// moveForeign is a Lua script that moves a task from asynq's state active to its state retry, without changing the
// task's message. It returns 1, or 0 if the task is not active.
//
// KEYS: the queue's keys active, lease and retry, and the task's key. ARGV: the task's id, and the Unix time in seconds
// at which asynq may run the task again.
var moveForeign = redis.NewScript(`
if redis.call("LREM", KEYS[1], 0, ARGV[1]) == 0 then return 0 end
redis.call("ZREM", KEYS[2], ARGV[1])
redis.call("ZADD", KEYS[3], ARGV[2], ARGV[1])
redis.call("HSET", KEYS[4], "state", "retry")
return 1`)

// foreignTimeout bounds one run of the script moveForeign.
const foreignTimeout = 5 * time.Second

// keepTask prevents asynq from archiving a foreign task, or a task with a whole job that is not stored, and from
// counting a retry of it. asynq calls keepTask as its error handler, before it handles the error err of a task.
//
// Usually asynq does neither, because isFailure returns false for these errors (mustBeKept). Two cases differ: asynq
// archives a task that has no retry left, and it counts a retry if the task's own deadline has passed. In these cases
// keepTask itself moves the task to the state retry. asynq then finds no active task and changes nothing.
func (s *server) keepTask(ctx context.Context, t *asynq.Task, err error) {
	if _, isDelivery := parsePayload(t.Payload()); s.kinds[t.Type()] &&
		(isDelivery || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask)) {
		return
	}
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	if mustBeKept(err) && retried < most {
		return // asynq returns the task and counts no retry
	}
	if deadline, ok := ctx.Deadline(); ok && s.kinds[t.Type()] && time.Since(deadline) > 0 && !mustBeKept(err) {
		s.expired.Do(func() {
			s.log.Warn("asynq ended a job at its own deadline, so it stays in the queue and may never be accepted: "+
				"enqueue jobs without asynq.Deadline and asynq.Timeout", "type", t.Type())
		})
	}
	id, _ := asynq.GetTaskID(ctx)
	lane, _ := asynq.GetQueueName(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), foreignTimeout)
	defer cancel()
	prefix := "asynq:{" + lane + "}:"
	err = moveForeign.Run(ctx, s.rdb,
		[]string{prefix + "active", prefix + "lease", prefix + "retry", prefix + "t:" + id},
		id, time.Now().Add(foreignDelay).Unix()).Err()
	if err != nil {
		s.log.Warn("a task could not be returned to its queue, so asynq may archive it",
			"task", text.Excerpt(id, maxTypeName), "queue", lane, "error", err)
	}
}

// ForeignReturned returns the number of foreign tasks that this process has returned to their queues since it started.
func (q *Queue) ForeignReturned() int64 { return q.foreign.count.Load() }

// ForeignType is the type of a foreign task, with the lane in which it was found.
type ForeignType struct {
	Lane string
	Type string // shortened to about maxTypeName bytes
}

// ListForeign returns the types of foreign tasks in Herald's lanes, sorted by lane and type. kinds has Herald's own
// task types. It reads at most maxTypeSamples tasks per lane and asynq state, so it can miss a type.
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
		for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
			q.inspector.ListPendingTasks, q.inspector.ListActiveTasks, q.inspector.ListScheduledTasks,
			q.inspector.ListRetryTasks, q.inspector.ListArchivedTasks} {
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

// UnreadQueue is a queue with jobs for Herald that no asynq server fetches.
type UnreadQueue struct {
	Name string // shortened to about maxTypeName bytes
	Jobs int    // pending tasks of Herald's types, at most maxTypeSamples
}

const (
	unreadInterval  = time.Minute
	maxUnreadQueues = 100 // how many queues of other names ListUnread reads
)

// ListUnread returns the queues that neither Herald nor a running asynq server reads, and that have pending tasks of
// Herald's types (kinds). The program that enqueued these tasks named a wrong queue, and got no error.
func (q *Queue) ListUnread(kinds []string) (unread []UnreadQueue, err error) {
	names, err := q.inspector.Queues()
	if err != nil {
		return nil, fmt.Errorf("list the queues in Redis: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return q.lanes[name] > 0 })
	if len(names) == 0 {
		return nil, nil
	}
	servers, err := q.inspector.Servers()
	if err != nil {
		return nil, fmt.Errorf("list the asynq servers in Redis: %w", err)
	}
	slices.Sort(names)
	for _, name := range names[:min(len(names), maxUnreadQueues)] {
		if slices.ContainsFunc(servers, func(s *asynq.ServerInfo) bool { return s.Queues[name] > 0 }) {
			continue
		}
		tasks, err := q.inspector.ListPendingTasks(name, asynq.PageSize(maxTypeSamples))
		if err != nil {
			return nil, fmt.Errorf("list the tasks of queue %s: %w", text.Excerpt(name, maxTypeName), err)
		}
		jobs := 0
		for _, t := range tasks {
			if slices.Contains(kinds, t.Type) {
				jobs++
			}
		}
		if jobs > 0 {
			unread = append(unread, UnreadQueue{text.Excerpt(name, maxTypeName), jobs})
		}
	}
	return unread, nil
}

// CountReaders returns the number of running asynq servers that fetch tasks from Herald's lanes: each worker runs one.
// A server that was killed counts for up to 10 seconds.
func (q *Queue) CountReaders() (n int, err error) {
	servers, err := q.inspector.Servers()
	if err != nil {
		return 0, fmt.Errorf("list the asynq servers in Redis: %w", err)
	}
	for _, s := range servers {
		if s.Queues[string(First)] > 0 {
			n++
		}
	}
	return n, nil
}

// WatchUnread logs a warning about each queue that ListUnread returns, once per queue. It calls ListUnread once a
// minute and returns when ctx ends. If ticks is not nil, it calls ListUnread at each of these ticks instead.
func (q *Queue) WatchUnread(ctx context.Context, kinds []string, ticks <-chan time.Time) {
	if ticks == nil {
		ticks = time.Tick(unreadInterval)
	}
	logged := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		unread, err := q.ListUnread(kinds)
		if err != nil {
			continue // the outage of Redis is logged elsewhere
		}
		for _, u := range unread {
			if !logged[u.Name] && len(logged) < maxLoggedTypes {
				logged[u.Name] = true
				q.log.Warn("jobs are in a queue that no worker reads: put them into the queue default or first",
					"queue", u.Name, "jobs", u.Jobs)
			}
		}
	}
}
