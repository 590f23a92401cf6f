package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/secret"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// Lane is an asynq queue that Herald reads. There are few lanes, because each poll asks them one after another.
type Lane string

// The lanes, the most urgent first. The variable lanes holds their weights.
const (
	First  Lane = "first"  // first attempts
	Retry  Lane = "retry"  // later attempts, and waits
	Bulk   Lane = "bulk"   // first attempts of replays, and the events of a backfill
	Upkeep Lane = "upkeep" // housekeeping; no task uses it yet
)

// intakeLane is the queue to which other programs' asynq clients send whole jobs if they name no queue.
const intakeLane = "default"

// lanes maps each lane to its weight. For each task, asynq puts the queues into a random order by weight and asks them
// in that order, with one script call each, until one returns a task. With these weights a task of the lane First costs
// 1.25 calls on average. If all lanes are full, default and Retry get one in thirteen tasks each, Bulk and Upkeep one
// in 38.
var lanes = map[string]int{string(First): 30, intakeLane: 3, string(Retry): 3, string(Bulk): 1, string(Upkeep): 1}

const (
	retention = time.Hour       // how long the web UI shows finished tasks
	maxRetry  = 1_000_000       // asynq archives a task after this many retries, as if its delivery had ended
	netDelay  = 5 * time.Second // wait after an error that is not a WaitError, such as an unreachable Postgres

	announceTimeout = 5 * time.Second
)

// Task is one dispatch of a delivery to Redis.
type Task struct {
	DeliveryID uuid.UUID
	N          int    // the delivery's dispatch counter; a task with an older one cannot claim the delivery
	Kind       string // the asynq task type, which the web UI shows
	Lane       Lane
	At         time.Time // the earliest start; zero: now
}

// ID returns the asynq task id, "<deliveryId>:<n>".
func (t Task) ID() string { return fmt.Sprintf("%s:%d", t.DeliveryID, t.N) }

// payload is the only data of a delivery that a task contains.
type payload struct {
	DeliveryID uuid.UUID `json:"deliveryId"`
	N          int       `json:"n"`
}

// Config configures a Queue.
type Config struct {
	URL secret.Secret // REDIS_URL; parseURL lists the accepted forms; required
	// NoIntake leaves the queue default to other programs: Herald does not read, count or list it.
	NoIntake bool
	// DialOnce makes each try of a request dial once. Otherwise the driver dials a Redis that refuses the connection
	// five times within half a second. Commands set it, because they continue without Redis.
	DialOnce bool
	Logger   *slog.Logger // default slog.Default()
}

// Queue enqueues tasks in Redis and inspects them. It is safe for concurrent use.
type Queue struct {
	opt       asynq.RedisConnOpt
	rdb       redis.UniversalClient
	client    *asynq.Client
	inspector *asynq.Inspector
	lanes     map[string]int // the queues that Herald reads, with their weights
	foreign   foreignTasks
	opened    time.Time   // time of Open; enqueueWith sets a missing marker to it
	marked    atomic.Bool // this process knows that Redis has a marker (Marker)
	log       *slog.Logger
}

// Open creates the clients without connecting. If Redis is unreachable, Ping and the first call return the error.
func Open(cfg Config) (*Queue, error) {
	if cfg.URL.IsZero() {
		return nil, errors.New("queue: a Redis URL is needed (REDIS_URL)")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	opt, err := parseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	rdb, err := redisClient(opt, cfg.DialOnce)
	if err != nil {
		return nil, err
	}
	read := maps.Clone(lanes)
	if cfg.NoIntake {
		delete(read, intakeLane)
	}
	return &Queue{opt: opt, rdb: rdb, client: asynq.NewClientFromRedisClient(rdb),
		inspector: asynq.NewInspectorFromRedisClient(rdb), lanes: read, opened: time.Now(), log: cfg.Logger,
		foreign: foreignTasks{log: cfg.Logger, logged: map[string]bool{}}}, nil
}

// Close closes the connections to Redis.
func (q *Queue) Close() error { return q.rdb.Close() }

// Ping returns an error if Redis does not answer.
func (q *Queue) Ping(ctx context.Context) error {
	if err := q.rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("reach Redis: %w", err)
	}
	return nil
}

// Enqueue adds a task to its lane. It returns nil if the task exists already. A task whose At is in the future is
// scheduled. asynq counts in whole seconds, so At is rounded up: a task must not run before its delivery is due.
func (q *Queue) Enqueue(ctx context.Context, t Task) error { return q.enqueueWith(ctx, t, nil) }

// enqueueWith is Enqueue for a task with headers. Before the first task of the process it calls Marker, so that Redis
// has a marker.
func (q *Queue) enqueueWith(ctx context.Context, t Task, headers map[string]string) error {
	body, err := json.Marshal(payload{t.DeliveryID, t.N})
	if err != nil {
		return fmt.Errorf("encode task %s: %w", t.ID(), err)
	}
	opts := []asynq.Option{asynq.TaskID(t.ID()), asynq.Queue(string(t.Lane)), asynq.MaxRetry(maxRetry),
		asynq.Retention(retention)}
	if !t.At.IsZero() {
		opts = append(opts, asynq.ProcessAt(ceilSecond(t.At)))
	}
	// The marker must not be later than the first task of this process, so it is set to the time of Open.
	if !q.marked.Load() {
		if _, err := q.Marker(ctx, q.opened); err != nil {
			return fmt.Errorf("put task %s into Redis: %w", t.ID(), err)
		}
		q.marked.Store(true)
	}
	_, err = q.client.EnqueueContext(ctx, asynq.NewTaskWithHeaders(t.Kind, body, headers, opts...))
	if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) {
		return fmt.Errorf("put task %s into Redis: %w", t.ID(), err)
	}
	return nil
}

// ceilSecond rounds t up to whole seconds.
func ceilSecond(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); !whole.Equal(t) {
		return whole.Add(time.Second)
	}
	return t
}

// Location says whether Redis holds a task, and when it will run.
type Location int

// The locations.
const (
	Nowhere   Location = iota // Redis has no such task, or it is completed or archived: it will not run
	Pending                   // it will run, within soon if it is scheduled or waits for a retry
	Active                    // a worker runs it, or died while running it
	Postponed                 // it will run, but later than soon
)

// soon is how far in the future the start of a Pending task may be. It is longer than asynq's own retry delay plus
// rounding.
const soon = 15 * time.Second

// Find returns the location of a task. It looks in t.Lane first and then in the other lanes that have deliveries.
func (q *Queue) Find(t Task) (Location, error) {
	// t.Lane is computed from the number of attempts. A free wait reduces that number, so the task may be in another
	// lane.
	for _, lane := range append([]Lane{t.Lane},
		slices.DeleteFunc([]Lane{First, Retry, Bulk}, func(l Lane) bool { return l == t.Lane })...) {
		info, err := q.inspector.GetTaskInfo(string(lane), t.ID())
		if errors.Is(err, asynq.ErrQueueNotFound) {
			if err = q.announceLanes(); err == nil {
				info, err = q.inspector.GetTaskInfo(string(lane), t.ID())
			}
		}
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound):
			continue
		case err != nil:
			return Nowhere, fmt.Errorf("look for task %s in Redis: %w", t.ID(), err)
		}
		switch info.State {
		case asynq.TaskStateActive:
			return Active, nil
		case asynq.TaskStateCompleted, asynq.TaskStateArchived:
			continue
		case asynq.TaskStateScheduled, asynq.TaskStateRetry:
			if time.Until(info.NextProcessAt) > soon {
				return Postponed, nil
			}
		}
		return Pending, nil
	}
	return Nowhere, nil
}

// announceLanes adds the lanes to asynq's set of queues. asynq's client adds each queue only once per process. Without
// announceLanes, tasks would still run after Redis lost its data, but the inspector would not find them.
func (q *Queue) announceLanes() error {
	ctx, cancel := context.WithTimeout(context.Background(), announceTimeout)
	defer cancel()
	names := make([]any, 0, len(q.lanes))
	for name := range q.lanes {
		names = append(names, name)
	}
	if err := q.rdb.SAdd(ctx, "asynq:queues", names...).Err(); err != nil {
		return fmt.Errorf("list the lanes in Redis: %w", err)
	}
	return nil
}

// Lanes returns the number of tasks per lane and asynq state, for the metrics. It ignores queues of other programs in
// the same Redis.
func (q *Queue) Lanes() (map[Lane]map[string]int, error) {
	known, err := q.inspector.Queues()
	if err != nil {
		return nil, fmt.Errorf("list the lanes: %w", err)
	}
	out := make(map[Lane]map[string]int, len(q.lanes))
	for name := range q.lanes {
		info := &asynq.QueueInfo{} // no task was ever enqueued in this lane
		if slices.Contains(known, name) {
			if info, err = q.inspector.GetQueueInfo(name); err != nil {
				return nil, fmt.Errorf("count lane %s: %w", name, err)
			}
		}
		out[Lane(name)] = map[string]int{"pending": info.Pending, "active": info.Active, "scheduled": info.Scheduled,
			"retry": info.Retry, "archived": info.Archived, "completed": info.Completed}
	}
	return out, nil
}

// Drop removes those of the tasks that are archived, scheduled or waiting for a retry; pending and active ones stay.
// Their deliveries continue without the tasks.
func (q *Queue) Drop(ctx context.Context, tasks []Task) error {
	for batch := range slices.Chunk(tasks, dropBatch) {
		ids := make([]string, len(batch))
		for i, t := range batch {
			ids[i] = t.ID()
		}
		if err := q.dropTasks(ctx, ids, "archived", "retry", "scheduled"); err != nil {
			return fmt.Errorf("remove %d tasks from Redis: %w", len(tasks), err)
		}
	}
	return nil
}

const (
	// maxDropped is the largest number of a delivery's tasks that DropArchived looks up, beginning with the newest. It
	// looks up dropBatch of them per round trip.
	maxDropped = 5000
	dropBatch  = 500
)

// DropArchived removes the archived tasks of delivery id whose dispatch counter is below n. The web UI would otherwise
// show outcomes that are no longer the delivery's last one.
func (q *Queue) DropArchived(ctx context.Context, id uuid.UUID, n int) error {
	for newest := n - 1; newest > 0 && newest >= n-maxDropped; newest -= dropBatch {
		var ids []string
		for m := newest; m > max(newest-dropBatch, 0); m-- {
			ids = append(ids, Task{DeliveryID: id, N: m}.ID())
		}
		if err := q.dropTasks(ctx, ids, "archived"); err != nil {
			return fmt.Errorf("remove archived tasks of delivery %s from Redis: %w", id, err)
		}
	}
	return nil
}

// dropTasks deletes the tasks with these ids that are in one of the states, in any lane.
func (q *Queue) dropTasks(ctx context.Context, ids []string, states ...string) error {
	found := map[Lane][]*redis.FloatSliceCmd{First: nil, Retry: nil, Bulk: nil}
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for lane := range found {
			for _, state := range states {
				found[lane] = append(found[lane], p.ZMScore(ctx, fmt.Sprintf("asynq:{%s}:%s", lane, state), ids...))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for lane, scores := range found {
		for _, of := range scores {
			for i, score := range of.Val() {
				if score == 0 { // not in this state: asynq's scores are Unix times, never 0
					continue
				}
				err := q.inspector.DeleteTask(string(lane), ids[i])
				if err != nil && !errors.Is(err, asynq.ErrTaskNotFound) && !errors.Is(err, asynq.ErrQueueNotFound) {
					return err
				}
			}
		}
	}
	return nil
}
