package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

func enqueue(t testing.TB, q *Queue, task Task) {
	t.Helper()
	heraldtest.Must(t, q.Enqueue(heraldtest.Within(t, 10*time.Second), task))
}

func info(t testing.TB, q *Queue, task Task) *asynq.TaskInfo {
	t.Helper()
	i, err := q.inspector.GetTaskInfo(string(task.Lane), task.ID())
	heraldtest.Must(t, err)
	return i
}

func locateTask(t testing.TB, q *Queue, task Task) Location {
	t.Helper()
	p, err := q.Find(task)
	heraldtest.Must(t, err)
	return p
}

func TestEnqueueTwiceIsOneTask(t *testing.T) {
	t.Parallel()
	q := open(t)
	task := Task{DeliveryID: uuid.New(), N: 3, Kind: kind, Lane: First}
	enqueue(t, q, task)
	enqueue(t, q, task)
	i := info(t, q, task)
	heraldtest.Equal(t, "the state", i.State, asynq.TaskStatePending)
	heraldtest.Equal(t, "the id", i.ID, task.DeliveryID.String()+":3")
	var got map[string]any
	if err := json.Unmarshal(i.Payload, &got); err != nil || len(got) != 2 || got["deliveryId"] != task.DeliveryID.String() || got["n"] != 3.0 {
		t.Errorf("payload %s", i.Payload)
	}
	heraldtest.Equal(t, "kept for", i.Retention, time.Hour)
	lanes, err := q.Lanes(t.Context())
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "pending", lanes[First]["pending"], 1)
	heraldtest.Equal(t, "lanes are shown", len(lanes), 5)
}

// TestEnqueueEndedTask: Redis still has the ended task of a dispatch that Postgres has lost, for example in a failover. The
// next dispatch has the same number, and its task runs too.
func TestEnqueueEndedTask(t *testing.T) {
	t.Parallel()
	q := open(t)
	results := make(chan error, 2)
	results <- nil
	results <- &ArchivedError{Text: "rejected"}
	runs := make(chan bool, 3)
	serve(t, q, handler{deliver: func(context.Context, uuid.UUID, int) (string, error) {
		runs <- true
		select {
		case err := <-results:
			return "", err
		default:
			return "", ErrDropped
		}
	}}, 1)
	task := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: First}
	for range 3 {
		enqueue(t, q, task)
		heraldtest.Receive(t, "the task runs", runs)
		heraldtest.Await(t, "the task has ended", func() bool { return locateTask(t, q, task) == Nowhere })
	}
}

func TestScheduledIsNeverEarly(t *testing.T) {
	t.Parallel()
	q := open(t)
	for _, at := range []time.Time{
		time.Now().Add(time.Hour).Truncate(time.Second).Add(time.Millisecond),
		time.Now().Add(time.Hour).Truncate(time.Second).Add(999 * time.Millisecond),
		time.Now().Add(time.Hour).Truncate(time.Second),
	} {
		task := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: Retry, At: at}
		enqueue(t, q, task)
		i := info(t, q, task)
		if i.State != asynq.TaskStateScheduled || i.NextProcessAt.Before(at) || i.NextProcessAt.Sub(at) >= time.Second {
			t.Errorf("at %s: %s at %s", at, i.State, i.NextProcessAt)
		}
		heraldtest.Equal(t, "a task of the next hour", locateTask(t, q, task), Postponed)
	}
	for ahead, want := range map[time.Duration]Location{-time.Minute: Pending, 5 * time.Second: Pending, time.Minute: Postponed} {
		task := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: Retry, At: time.Now().Add(ahead)}
		enqueue(t, q, task)
		heraldtest.Equal(t, fmt.Sprintf("a task in %s", ahead), locateTask(t, q, task), want)
		heraldtest.Equal(t, fmt.Sprintf("a task in %s is pending", ahead), info(t, q, task).State == asynq.TaskStatePending, ahead < 0)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	q := open(t)
	pending := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: Bulk}
	enqueue(t, q, pending)
	elsewhere := pending
	elsewhere.Lane = First
	for name, c := range map[string]struct {
		task Task
		want Location
	}{
		"unknown delivery": {Task{DeliveryID: uuid.New(), N: 1, Lane: First}, Nowhere},
		"another n":        {Task{DeliveryID: pending.DeliveryID, N: 2, Lane: Bulk}, Nowhere},
		"pending":          {pending, Pending},
		"in another lane":  {elsewhere, Pending},
	} {
		heraldtest.Equal(t, name, locateTask(t, q, c.task), c.want)
	}

	begun, finish := make(chan bool), make(chan bool)
	h := handler{deliver: func(context.Context, uuid.UUID, int) (string, error) {
		begun <- true
		<-finish
		return "done", nil
	}}
	serve(t, q, h, 1)
	heraldtest.Receive(t, "the task runs", begun)
	heraldtest.Equal(t, "a running task", locateTask(t, q, pending), Active)
	close(finish)
	heraldtest.Await(t, "the task is finished", func() bool { return locateTask(t, q, pending) == Nowhere })
}

// TestFindAfterRedisLostItsData: asynq's client registers a queue only once, and must register it again after Redis has
// lost its data.
func TestFindAfterRedisLostItsData(t *testing.T) {
	t.Parallel()
	q := open(t)
	task := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: First}
	enqueue(t, q, task)
	heraldtest.Must(t, q.rdb.FlushAll(heraldtest.Within(t, 10*time.Second)).Err())
	heraldtest.Equal(t, "a lost task", locateTask(t, q, task), Nowhere)
	task.N++
	enqueue(t, q, task)
	heraldtest.Equal(t, "a task put in after the loss", locateTask(t, q, task), Pending)
}

// TestPingWithWrongPassword: Redis takes writes, so the error must not say otherwise.
func TestPingWithWrongPassword(t *testing.T) {
	t.Parallel()
	q := openAt(t, strings.Replace(heraldtest.Redis(t), "://", "://nobody:wrong@", 1))
	heraldtest.Fails(t, "a ping", q.Ping(heraldtest.Within(t, 10*time.Second)), "reach Redis: WRONGPASS")
}

func TestErrorsWhenRedisIsAway(t *testing.T) {
	t.Parallel()
	q, err := Open(Config{URL: secret.New(heraldtest.Redis(t))})
	heraldtest.Must(t, err)
	heraldtest.Must(t, q.Close())
	task := Task{DeliveryID: uuid.New(), N: 1, Kind: kind, Lane: First}
	heraldtest.Fails(t, "to enqueue", q.Enqueue(heraldtest.Within(t, 10*time.Second), task))
	heraldtest.Fails(t, "to ping", q.Ping(heraldtest.Within(t, 10*time.Second)))
	_, err = q.Find(task) // not being able to look is not the same as not being there
	heraldtest.Fails(t, "to find", err)
	_, err = q.Lanes(t.Context())
	heraldtest.Fails(t, "to count", err)
}

func TestCheckServer(t *testing.T) {
	t.Parallel()
	q := open(t)
	heraldtest.Must(t, q.CheckServer(heraldtest.Within(t, 10*time.Second)))
	if err := q.rdb.ConfigSet(heraldtest.Within(t, 10*time.Second), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Skipf("this Redis has no such setting: %v", err) // miniredis
	}
	var unfit *UnfitError
	if err := q.CheckServer(heraldtest.Within(t, 10*time.Second)); !errors.As(err, &unfit) {
		t.Errorf("an evicting server: %v", err)
	}
	q.rdb.(redis.UniversalClient).AddHook(oldServer{})
	if err := q.CheckServer(heraldtest.Within(t, 10*time.Second)); !errors.As(err, &unfit) || unfit.Why != "Redis 6.0.16 is too old: Herald needs 6.2 or newer" {
		t.Errorf("an old server: %v", err)
	}
}

// oldServer answers every command INFO of a client.
type oldServer struct{}

func (oldServer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (oldServer) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		cmd.(*redis.StringCmd).SetVal("redis_version:6.0.16\r\nredis_mode:standalone\r\n")
		return nil
	}
}

func (oldServer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
