package queue

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Lane is an asynq queue that Herald reads. There are few lanes, because asynq polls them one after another.
type Lane string

// The lanes, the most urgent first. Their weights are in lanes.
const (
	First  Lane = "first"  // first attempts
	Retry  Lane = "retry"  // later attempts, and tasks whose delivery waits
	Bulk   Lane = "bulk"   // all attempts of a backfill's deliveries, and first attempts of replays
	Upkeep Lane = "upkeep" // not used yet
)

// intakeLane is the queue in which an asynq client puts a task if it names no queue. Other programs put their tasks
// with whole jobs there.
const intakeLane = "default"

// lanes maps each lane to its weight. To fetch a task, asynq asks the queues in a random order, with one script call
// each, until one returns a task. A queue with a higher weight is more probably early in the order. With these weights,
// fetching a task of the lane First takes 1.25 calls on average. If all lanes are full, default and Retry each get one
// fetch in thirteen, Bulk and Upkeep one in 38 each.
var lanes = map[string]int{string(First): 30, intakeLane: 3, string(Retry): 3, string(Bulk): 1, string(Upkeep): 1}

const (
	retention = time.Hour       // time for which asynq keeps completed tasks, for the web UI
	maxRetry  = 1_000_000       // retries after which asynq archives a task; so large that no task reaches it
	netDelay  = 5 * time.Second // wait before asynq runs a task again after an unexpected error (retryDelay)

	announceTimeout = 5 * time.Second // bounds announceLanes
)

// Task is the task in Redis of a dispatched delivery.
type Task struct {
	DeliveryID uuid.UUID
	N          int    // dispatch counter; a task whose N is below the row's counter cannot claim the delivery
	Kind       string // the asynq task type, one of job.TaskTypes
	Lane       Lane
	At         time.Time // the earliest time at which a worker runs it; zero: now
}

// ID returns the asynq id of the task, "<deliveryId>:<n>".
func (t Task) ID() string { return fmt.Sprintf("%s:%d", t.DeliveryID, t.N) }

// payload is the JSON payload of a task.
type payload struct {
	DeliveryID uuid.UUID `json:"deliveryId"`
	N          int       `json:"n"`
}

// parsePayload parses the payload of a task that Herald enqueued. ok is false for a whole job, also for one that has a
// field deliveryId among others.
func parsePayload(body []byte) (p payload, ok bool) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(&p)
	return p, err == nil && p.DeliveryID != uuid.Nil && json.Valid(body) // Valid: nothing follows the object
}

// FormatPayload returns a task's payload for display in the web UI. A payload that is not Herald's own may be a whole
// job with secret headers. mask returns the beginning of such a payload without secrets.
func FormatPayload(body []byte, mask func([]byte) (string, bool)) string {
	p, ok := parsePayload(body)
	if !ok {
		shown, _ := mask(body)
		return fmt.Sprintf("a whole job, %d bytes, begins with: %s", len(body), shown)
	}
	return fmt.Sprintf(`{"deliveryId": %q, "n": %d}`, p.DeliveryID, p.N)
}

// Config configures a Queue.
type Config struct {
	URL secret.Secret // REDIS_URL; parseURL lists the accepted forms; required
	// NoIntake excludes the queue default (intakeLane): Herald does not fetch, count or list its tasks.
	NoIntake bool
	// DialOnce makes a call fail after one failed connection to Redis. Otherwise the driver tries to connect five times
	// within half a second. Programs that an operator runs set DialOnce, because they also work without Redis.
	DialOnce bool
	Logger   *slog.Logger // default slog.Default()
}

// Queue enqueues tasks in Redis and inspects them. It is safe for concurrent use.
type Queue struct {
	opt       options
	rdb       Redis
	put       putTask
	inspector inspector
	lanes     map[string]int // the lanes that this process reads, with their weights
	foreign   foreignTasks
	// opened is the time of Open. If Redis has no marker (Marker), enqueueWith stores this time as the marker.
	opened time.Time
	marked atomic.Bool // enqueueWith has called Marker
	log    *slog.Logger
}

// Open validates cfg and returns a Queue. It does not connect to Redis: if Redis is unreachable, the first call on the
// Queue returns the error.
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
	opt.ContextTimeoutEnabled = true // without it, a call to a frozen Redis ignores the deadline of its context
	// RESP3, the newer protocol of Redis, adds push messages and maintenance notifications, which Herald does not use.
	// Checking for them costs one more read per command.
	opt.Protocol = 2
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if cfg.DialOnce {
		opt.DialerRetries = 1
	}
	rdb := redis.NewUniversalClient(&opt.UniversalOptions)
	rdb.AddHook(dequeuePause{})
	read := maps.Clone(lanes)
	if cfg.NoIntake {
		delete(read, intakeLane)
	}
	return &Queue{opt: opt, rdb: rdb, put: newPutTask(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb),
		lanes: read, opened: time.Now(), log: cfg.Logger,
		foreign: foreignTasks{log: cfg.Logger, logged: map[string]bool{}}}, nil
}

// Close closes the connections to Redis.
func (q *Queue) Close() error { return q.rdb.Close() }

// Ping returns an error if Redis does not answer or takes no writes, for example because it is a replica or its memory
// is full. To check this, Ping writes an empty string, which changes nothing and creates no key.
func (q *Queue) Ping(ctx context.Context) error {
	err := q.rdb.SetRange(ctx, "herald:ping", 0, "").Err()
	refuses := func(code string) bool { return redis.HasErrorPrefix(err, code) }
	switch {
	case err == nil:
		return nil
	case slices.ContainsFunc([]string{"OOM", "READONLY", "MISCONF", "NOREPLICAS"}, refuses):
		return fmt.Errorf("Redis takes no writes: %w", err)
	case findRefusal("setrange", err) != nil:
		return findRefusal("setrange", err)
	}
	return fmt.Errorf("reach Redis: %w", err)
}

// Enqueue adds a task to its lane. It returns nil if the lane already has a task with the same id. If that task has
// ended, Enqueue replaces it. asynq does not run the task before t.At. asynq counts in whole seconds, so Enqueue rounds
// t.At up: a task must not run before its delivery is due.
func (q *Queue) Enqueue(ctx context.Context, t Task) error { return q.enqueueWith(ctx, t, nil) }

// enqueueWith is Enqueue with additional asynq headers of the task. Before the first task of the process, it calls
// Marker. So Redis has a marker (the time since which it has lost no task) that is not later than the task.
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
	if !q.marked.Load() {
		if _, err := q.Marker(ctx, q.opened); err != nil {
			return fmt.Errorf("put task %s into Redis: %w", t.ID(), err)
		}
		q.marked.Store(true)
	}
	err = q.put(ctx, t.Kind, body, headers, opts...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		// If Postgres lost the dispatch of an ended task, for example in a failover, this is another dispatch with the
		// same number. Until the ended task is deleted, asynq refuses its task.
		if err = q.dropTasks(ctx, []string{t.ID()}, "completed", "archived"); err == nil {
			err = q.put(ctx, t.Kind, body, headers, opts...)
		}
	}
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

// Location describes whether Redis has a task, and if and when a worker will run it.
type Location int

// The values of Location.
const (
	Nowhere   Location = iota // the task will not run: Redis does not have it, or it is completed or archived
	Pending                   // the task will run when a worker fetches it, or will be fetched within the time soon
	Active                    // a worker runs the task, or died while running it
	Postponed                 // the task waits for longer than the time soon
)

// soon is the time from now within which a scheduled task counts as Pending, not as Postponed. It exceeds netDelay plus
// the rounding to seconds, so a task that asynq runs again after an unexpected error counts as Pending.
const soon = 15 * time.Second

// Find returns the location of the task with the id of t. It searches t.Lane first, and then the other lanes for
// deliveries.
func (q *Queue) Find(t Task) (Location, error) {
	// The caller selected t.Lane by the delivery's present number of attempts. A free wait may have reduced this number
	// after the task was enqueued, so the task may be in another lane.
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

// announceLanes adds the lanes to asynq's set of queues in Redis. asynq's client adds a queue to that set only once per
// process. If Redis loses its data later, asynq still runs new tasks, but its inspector does not find them.
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

// ConnOpt returns asynq's connection options, for package webui.
func (q *Queue) ConnOpt() asynq.RedisConnOpt { return q.opt }

// Lanes returns the number of tasks by lane and asynq state. It does not count queues of other programs. It asks Redis
// for an answer first, because asynq's inspector accepts no context: if Redis is frozen, it waits for 10 s.
func (q *Queue) Lanes(ctx context.Context) (map[Lane]map[string]int, error) {
	if err := q.rdb.Ping(ctx).Err(); err != nil {
		return nil, fmt.Errorf("reach Redis: %w", err)
	}
	known, err := q.inspector.Queues()
	if err != nil {
		return nil, fmt.Errorf("list the lanes: %w", err)
	}
	out := make(map[Lane]map[string]int, len(q.lanes))
	for name := range q.lanes {
		info := &asynq.QueueInfo{} // zero counts, for a lane in which no task was ever enqueued
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

// Drop deletes tasks that their deliveries no longer need, if they are archived, scheduled or waiting for a retry. It
// does not delete pending and active tasks, which end when a worker runs them.
func (q *Queue) Drop(ctx context.Context, tasks []Task) error {
	for batch := range slices.Chunk(tasks, dropBatch) {
		ids := make([]string, len(batch))
		for i, t := range batch {
			ids[i] = t.ID()
		}
		if err := q.dropTasks(ctx, ids, "archived", "retry", "scheduled"); err != nil {
			return fmt.Errorf("remove tasks (%d) from Redis: %w", len(tasks), err)
		}
	}
	return nil
}

const (
	// maxDropped limits the ids of a delivery's tasks that DropArchived looks up, the newest first. Drop and
	// DropArchived look up dropBatch ids per round trip.
	maxDropped = 5000
	dropBatch  = 500
)

// DropArchived deletes the archived tasks of the delivery with this id whose dispatch counter is below n. Otherwise the
// web UI would show their outcomes, although the delivery has a later outcome.
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

// dropTasks deletes the tasks that have one of the ids and are in one of the asynq states, in any lane.
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
				if score == 0 { // the task is not in this state: asynq's scores are Unix times, never 0
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
