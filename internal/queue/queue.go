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

// Lane is an asynq queue. Few of them: each poll asks one after another.
type Lane string

// The lanes, most urgent first. Weights are in lanes.
const (
	First  Lane = "first"  // first attempts
	Retry  Lane = "retry"  // waits and later attempts
	Bulk   Lane = "bulk"   // replays, and what a backfill accepted
	Upkeep Lane = "upkeep" // housekeeping
)

// intakeLane is where other people's asynq clients put whole jobs if they name no queue.
const intakeLane = "default"

// lanes are the weights by which asynq orders the queues, anew for each task that it takes; then it asks one after
// another until one has a task, each with a script. With these a task of first costs 1.25 questions; where all lanes
// are full, default and retry have a thirteenth of the tasks each, bulk and upkeep a thirty-eighth.
var lanes = map[string]int{string(First): 30, intakeLane: 3, string(Retry): 3, string(Bulk): 1, string(Upkeep): 1}

const (
	retention = time.Hour // how long finished tasks stay visible in the web UI
	maxRetry  = 1_000_000 // a task that asynq gave up would look as if its delivery had ended
	netDelay  = 5 * time.Second

	announceTimeout = 5 * time.Second
)

// Task is one dispatch of a delivery.
type Task struct {
	DeliveryID uuid.UUID
	N          int    // the row's dispatch counter
	Kind       string // the asynq task type: what an operator sees in the list
	Lane       Lane
	At         time.Time // not before; zero: now
}

// ID is the asynq task id.
func (t Task) ID() string { return fmt.Sprintf("%s:%d", t.DeliveryID, t.N) }

// payload is all that Redis learns of a delivery.
type payload struct {
	DeliveryID uuid.UUID `json:"deliveryId"`
	N          int       `json:"n"`
}

// Config says how to reach Redis.
type Config struct {
	URL secret.Secret // REDIS_URL forms, see parseURL; needed
	// NoIntake leaves the queue default to other programs: Herald does not read, count or list it.
	NoIntake bool
	// DialOnce dials once for each try of a request, not five times in half a second. A command does without a Redis that
	// refuses the connection.
	DialOnce bool
	Logger   *slog.Logger // default slog.Default()
}

// Queue puts tasks into Redis and looks at them. Safe for concurrent use.
type Queue struct {
	opt       asynq.RedisConnOpt
	rdb       redis.UniversalClient
	client    *asynq.Client
	inspector *asynq.Inspector
	lanes     map[string]int // the queues that Herald reads, with their weights
	foreign   foreignTasks
	opened    time.Time
	marked    atomic.Bool // this process saw to the marker once
	log       *slog.Logger
}

// Open prepares the clients. It does not connect: a Redis that is away shows in Ping.
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

// Close ends the connections.
func (q *Queue) Close() error { return q.rdb.Close() }

// Ping tells whether Redis answers.
func (q *Queue) Ping(ctx context.Context) error {
	if err := q.rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("reach Redis: %w", err)
	}
	return nil
}

// Enqueue puts a task into its lane. A task that is there already is fine. A task with At in the future shows as
// scheduled; asynq counts in whole seconds, so At is rounded up: a task must not run before its delivery is due.
func (q *Queue) Enqueue(ctx context.Context, t Task) error { return q.enqueueWith(ctx, t, nil) }

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
	// What this process puts in, it puts in after it was opened.
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

func ceilSecond(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); !whole.Equal(t) {
		return whole.Add(time.Second)
	}
	return t
}

// Location is where Redis has a task.
type Location int

// The places.
const (
	Nowhere   Location = iota // unknown, completed or archived: it will not run
	Pending                   // it will run soon: pending, scheduled, or to be retried
	Active                    // a worker has it, or had it and died
	Postponed                 // it will run, but not for a while
)

// soon is how far ahead a task may lie that is still Pending: more than asynq's own retry, and its rounding, take.
const soon = 15 * time.Second

// Find tells where Redis has a task.
func (q *Queue) Find(t Task) (Location, error) {
	// The lane follows from the attempts, which a free wait takes back: it may lie in another.
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

// announceLanes writes the lanes into asynq's list of queues. asynq's client does so once in its life, so that after
// Redis lost its data tasks would run, but neither be found nor shown.
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

// Lanes counts the tasks of every lane by asynq state, for the metrics. Queues of others in the same Redis are not ours
// to show.
func (q *Queue) Lanes() (map[Lane]map[string]int, error) {
	known, err := q.inspector.Queues()
	if err != nil {
		return nil, fmt.Errorf("list the lanes: %w", err)
	}
	out := make(map[Lane]map[string]int, len(q.lanes))
	for name := range q.lanes {
		info := &asynq.QueueInfo{} // nothing was ever put into it
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

// Drop removes tasks from Redis that are archived or wait there: their deliveries go on without them.
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
	// maxDropped is how many of a delivery's tasks DropArchived looks for, the newest first; it asks for dropBatch of
	// them at a time.
	maxDropped = 5000
	dropBatch  = 500
)

// DropArchived removes the archived tasks of a delivery before task n from the web UI: they tell of an end that was not
// the last.
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

// dropTasks removes those of the tasks that are in one of these states, in whichever lane.
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
				if score == 0 { // it is not there: asynq's scores are times
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
