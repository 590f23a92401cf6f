package queue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// TestDropArchived: archived tasks of a delivery's earlier dispatches are removed from all lanes. Other tasks stay.
func TestDropArchived(t *testing.T) {
	t.Parallel()
	q := open(t)
	id, other := uuid.New(), uuid.New()
	task := func(id uuid.UUID, n int, lane Lane) Task { return Task{DeliveryID: id, N: n, Kind: kind, Lane: lane} }
	gone := []Task{task(id, 1, First), task(id, 7, Retry), task(id, 2*dropBatch, Bulk)}
	last := 2*dropBatch + 3
	stays := []Task{task(id, last, Bulk), task(id, last+1, Retry), task(other, 1, First)}
	done := task(id, 3, First)
	for _, x := range append(append(gone, stays...), done) {
		enqueue(t, q, x)
	}
	serve(t, q, handler{deliver: func(_ context.Context, of uuid.UUID, n int) (string, error) {
		if of == id && n == done.N {
			return "waiting agent_busy", nil
		}
		return "", &ArchivedError{Text: "dead timeout"}
	}}, 4)
	for _, x := range append(gone, stays...) {
		heraldtest.Await(t, "all are archived", func() bool { return info(t, q, x).State == asynq.TaskStateArchived })
	}
	heraldtest.Await(t, "one is done", func() bool { return info(t, q, done).State == asynq.TaskStateCompleted })
	heraldtest.Must(t, q.DropArchived(heraldtest.Within(t, 10*time.Second), id, last))
	for _, x := range gone {
		_, err := q.inspector.GetTaskInfo(string(x.Lane), x.ID())
		heraldtest.Fails(t, fmt.Sprintf("%s is still there", x.ID()), err, asynq.ErrTaskNotFound)
	}
	for _, x := range stays {
		heraldtest.Equal(t, x.ID(), info(t, q, x).State, asynq.TaskStateArchived)
	}
	heraldtest.Equal(t, "a completed task is", info(t, q, done).State, asynq.TaskStateCompleted)
	for _, n := range []int{0, 1, 2, last, maxDropped + 100_000} { // no task, or no further task
		heraldtest.Must(t, q.DropArchived(heraldtest.Within(t, 10*time.Second), id, n))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	heraldtest.Fails(t, "without an answer", q.DropArchived(ctx, id, last))
}

// TestTrimArchives: a lane whose tasks failed long ago archives a task that fails today. Before, 9,000 tasks expire at
// once, which is more than asynq's script can delete.
func TestTrimArchives(t *testing.T) {
	t.Parallel()
	q := open(t)
	ctx := heraldtest.Within(t, 30*time.Second)
	old, young := time.Now().Add(-91*24*time.Hour), time.Now().Add(-88*24*time.Hour)
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range 9000 {
			id := fmt.Sprint("old-", i)
			p.HSet(ctx, "asynq:{bulk}:t:"+id, "msg", "", "state", "archived")
			p.ZAdd(ctx, "asynq:{bulk}:archived", redis.Z{Score: float64(old.Unix()), Member: id})
		}
		p.HSet(ctx, "asynq:{bulk}:t:young", "msg", "", "state", "archived")
		p.ZAdd(ctx, "asynq:{bulk}:archived", redis.Z{Score: float64(young.Unix()), Member: "young"})
		return nil
	})
	heraldtest.Must(t, err)
	heraldtest.Must(t, q.trimArchives(ctx))
	failed := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: Bulk}
	enqueue(t, q, failed)
	serve(t, q, handler{deliver: func(context.Context, uuid.UUID, int) (string, error) {
		return "", &ArchivedError{Text: "dead timeout"}
	}}, 1)
	heraldtest.Await(t, "the task is archived", func() bool {
		return info(t, q, failed).State == asynq.TaskStateArchived
	})
	ids, err := q.rdb.ZRange(ctx, "asynq:{bulk}:archived", 0, -1).Result()
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "archived tasks", ids, []string{"young", failed.ID()})
	keys, err := q.rdb.Keys(ctx, "asynq:{bulk}:t:*").Result()
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "keys of tasks", len(keys), 2)
}

// TestAsynqLines: asynq's log lines about Redis name Redis, lines about its own faults are errors, and lines about
// single tasks are logged at debug level.
func TestAsynqLines(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"Dequeue error: UNKNOWN: redis eval error: dial tcp: connection refused":  "level=ERROR about=Redis",
		"Failed to write server state data: UNKNOWN: redis command error":         "level=ERROR about=Redis",
		"recoverer: could not list lease expired tasks: NOT FOUND":                "level=ERROR about=Redis",
		"something that a later version of asynq says":                            "level=ERROR about=Redis",
		"Could not move task id=x type=\"NewFeedback\" from \"a\" to \"b\": EOF":  "level=DEBUG",
		"Could not remove task id=x type=\"NewFeedback\" from \"a\" err: EOF":     "level=DEBUG",
		"Lease reset failed for x; lease deadline: now":                           "level=DEBUG",
		"Failed to extend lease for tasks [x]: EOF":                               "level=DEBUG",
		"Retry exhausted for task id=x":                                           "level=DEBUG",
		"revoke task id=x":                                                        "level=DEBUG",
		"recovering from panic. See the stack trace below for details:\nmain.go:": "level=ERROR",
		"asynq: internal error: both timeout and deadline are not set":            "level=ERROR",
		"Quitting worker. task id=x":                                              "level=ERROR",
	} {
		log, said := record()
		newAsynqLogger(log).Error(line)
		heraldtest.Equal(t, fmt.Sprintf("%q is told", line), said(), want)
	}
}
