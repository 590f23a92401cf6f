package legacy

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// TestTakesInOrder: the elements of the list are committed in order, once, and leave no keys in Redis.
func TestTakesInOrder(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		l := newLedger()
		push(t, rdb, 0, 250)
		stop := run(t, newConsumer(t, rdb, l))
		heraldtest.Await(t, "all jobs", func() bool { return l.count() == 250 })
		push(t, rdb, 250, 260)
		heraldtest.Await(t, "the later ones", func() bool { return l.count() == 260 })
		stop()
		if !slices.IsSorted(l.order) || len(l.order) != 260 {
			t.Errorf("%d commits, in order: %v", len(l.order), slices.IsSorted(l.order))
		}
		heraldtest.Equal(t, "keys in Redis", keysOf(t, rdb), []string{})
	})
}

// TestWorkersShareList: several workers share a list, and none takes another's elements.
func TestWorkersShareList(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		l := newLedger()
		push(t, rdb, 0, 2000)
		stop := run(t, newConsumer(t, rdb, l), newConsumer(t, rdb, l), newConsumer(t, rdb, l))
		heraldtest.Await(t, "all jobs", func() bool { return l.count() == 2000 })
		stop()
		heraldtest.Equal(t, "commits", len(l.order), 2000)
	})
}

// TestCommitFails: elements that cannot be committed stay in Redis, and are retried after a pause.
func TestCommitFails(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		l := newLedger()
		failures := 0
		l.fail = func() error {
			if failures++; failures <= 2 {
				return errors.New("no")
			}
			return nil
		}
		push(t, rdb, 0, 3)
		var log heraldtest.Log
		stop := run(t, newConsumer(t, rdb, l, func(c *Config) { c.Logger = log.Logger(slog.LevelInfo) }))
		heraldtest.Await(t, "the jobs", func() bool { return l.count() == 3 })
		heraldtest.Await(t, "the line in the log", func() bool { return log.Count("are read from the old backend's list again") == 1 })
		stop()
		if failures != 3 || len(l.order) != 3 || log.Count("could not be stored") != 1 {
			t.Errorf("%d tries, %v; the log:\n%s", failures, l.order, &log)
		}
	})
}

// TestPutsBackElementsOfDeadWorker: the elements of a dead worker are put back in order, and only when its keep-alive
// key has expired.
func TestPutsBackElementsOfDeadWorker(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		push(t, rdb, 0, 150)
		pushed := rdb.LRange(t.Context(), listOfJobs, 0, -1).Val()
		lists := newList(rdb, listOfJobs)
		dead := uuid.NewString()
		b, err := lists.takeBatch(t.Context(), dead, batch{}, time.Minute)
		if err != nil || len(b.elements) != maxBatch || b.waiting != 50 {
			t.Fatalf("%d taken, %d left, %v", len(b.elements), b.waiting, err)
		}
		if n, err := lists.putBack(t.Context(), dead); n != -1 || err != nil {
			t.Fatalf("of a worker that lives %d were put back, %v", n, err)
		}
		alive := lists.keysOf(dead)[3]
		if ttl := rdb.PTTL(t.Context(), alive).Val(); ttl <= 0 || ttl > time.Minute {
			t.Errorf("it counts as alive for %s", ttl)
		}
		expire := func() { rdb.Del(t.Context(), alive) } // the keep-alive key of the dead worker
		expire()
		if n, err := lists.putBack(t.Context(), dead); n != maxBatch || err != nil {
			t.Fatal(n, err)
		}
		heraldtest.Equal(t, "the list", rdb.LRange(t.Context(), listOfJobs, 0, -1).Val(), pushed)

		_, err = lists.takeBatch(t.Context(), dead, batch{}, time.Minute)
		heraldtest.Must(t, err)
		expire()
		l := newLedger()
		stop := run(t, newConsumer(t, rdb, l))
		heraldtest.Await(t, "all jobs", func() bool { return l.count() == 150 })
		stop()
		heraldtest.Equal(t, "commits", len(l.order), 150)
		heraldtest.Equal(t, "keys in Redis", keysOf(t, rdb), []string{})
	})
}

// TestDelayedScripts: a script that Redis runs after its caller gave up changes nothing that later scripts rely on.
func TestDelayedScripts(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		push(t, rdb, 0, 350)
		lists := newList(rdb, listOfJobs)
		worker := uuid.NewString()
		take := func(done batch) batch {
			t.Helper()
			b, err := lists.takeBatch(t.Context(), worker, done, time.Minute)
			if err != nil || len(b.elements) == 0 {
				t.Fatalf("%+v, %v", b, err)
			}
			return b
		}
		first := take(batch{})
		if again := take(batch{}); again.token != first.token || string(again.elements[0].Body) != string(first.elements[0].Body) {
			t.Error("the answer that was lost is not given again")
		}
		second := take(first)
		if late := take(first); late.token != second.token || string(late.elements[0].Body) != "job 00100" {
			t.Errorf("a late acknowledgement of the first batch took %q", late.elements[0].Body)
		}
		third := take(second)
		heraldtest.Equal(t, "the third batch", string(third.elements[0].Body), "job 00200")
		heraldtest.Equal(t, "waiting", third.waiting, 50)
		// A worker that was considered dead acknowledges no elements that others have now.
		rdb.Del(t.Context(), lists.keysOf(worker)[3])
		if n, err := lists.putBack(t.Context(), worker); n != 100 || err != nil {
			t.Fatal(n, err)
		}
		heraldtest.Equal(t, "the batch after it counted as dead", string(take(third).elements[0].Body), "job 00200")
	})
}

// TestForeignElements: any other text in the list is an element, too. At most the bytes that a job may have are read of
// it.
func TestForeignElements(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		huge := strings.Repeat("x", 3*job.MaxBytes)
		for _, e := range []string{"", "\x00\xff", huge, "last"} {
			heraldtest.Must(t, rdb.LPush(t.Context(), listOfJobs, e).Err())
		}
		b, err := newList(rdb, listOfJobs).takeBatch(t.Context(), uuid.NewString(), batch{}, time.Minute)
		if err != nil || len(b.elements) != 4 {
			t.Fatalf("%d elements, %v", len(b.elements), err)
		}
		if e := b.elements[2]; e.Length != int64(len(huge)) || len(e.Body) != maxElement {
			t.Errorf("of %d bytes %d are read, and it says %d", len(huge), len(e.Body), e.Length)
		}
		heraldtest.Equal(t, "the second element", string(b.elements[1].Body), "\x00\xff")
		heraldtest.Equal(t, "the last element", string(b.elements[3].Body), "last")
	})
}

// TestBatchIsBounded: a batch has a bounded size, so that a filled Redis does not exhaust the worker's memory.
func TestBatchIsBounded(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		big := strings.Repeat("x", job.MaxBytes)
		for range 40 {
			rdb.LPush(t.Context(), listOfJobs, big)
		}
		b, err := newList(rdb, listOfJobs).takeBatch(t.Context(), uuid.NewString(), batch{}, time.Minute)
		if want := maxBatchBytes / job.MaxBytes; err != nil || len(b.elements) != want {
			t.Errorf("%d elements, want %d, %v", len(b.elements), want, err)
		}
	})
}

// TestForeignKeys: keys of the wrong type, or invalid worker ids, cause a log line. When they are gone, the consumer
// continues.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		heraldtest.Must(t, rdb.HSet(t.Context(), "{action_jobs}:workers", "not a worker", "x", strings.Repeat("y", 1e5), "").Err())
		rdb.Set(t.Context(), listOfJobs, "no list", 0)
		l := newLedger()
		var log heraldtest.Log
		run(t, newConsumer(t, rdb, l, func(c *Config) { c.Logger = log.Logger(slog.LevelInfo) }))
		heraldtest.Await(t, "the line in the log", func() bool { return log.Count("WRONGTYPE") == 1 })
		rdb.Del(t.Context(), listOfJobs)
		push(t, rdb, 0, 1)
		heraldtest.Await(t, "the job", func() bool { return l.count() == 1 })
	})
}

// TestRedisAway: while Redis is down, nothing is lost, and requests are retried at intervals.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	direct := heraldtest.RealRedis(t)
	gate, url := heraldtest.RedisGate(t, direct)
	gate.Open()
	rdb := newClient(t, direct)
	l := newLedger()
	var log heraldtest.Log
	stop := run(t, newConsumer(t, newClient(t, url), l, func(c *Config) { c.Logger = log.Logger(slog.LevelInfo) }))
	push(t, rdb, 0, 10)
	heraldtest.Await(t, "the first jobs", func() bool { return l.count() == 10 })
	gate.Close()
	heraldtest.Await(t, "the line in the log", func() bool { return log.Count("could not be read") == 1 })
	push(t, rdb, 10, 20)
	gate.Open()
	heraldtest.Await(t, "the jobs after the outage", func() bool { return l.count() == 20 })
	stop()
	heraldtest.Equal(t, "commits", len(l.order), 20)
	heraldtest.Equal(t, "lines about the outage", log.Count("could not be read"), 1)
}

func TestReadBatch(t *testing.T) {
	t.Parallel()
	for _, answer := range [][]any{nil, {"token"}, {int64(1), int64(2)}, {"token", "2"}, {"token", int64(0), int64(1)},
		{"token", int64(0), "x", "y"}, {"token", int64(0), int64(1), nil}} {
		if b, err := readBatch(answer); !errors.Is(err, errAnswer) || b.elements != nil {
			t.Errorf("%v: %+v, %v", answer, b, err)
		}
	}
	b, err := readBatch([]any{"token", int64(3), int64(5), "hello"})
	if err != nil || b.token != "token" || b.waiting != 3 || string(b.elements[0].Body) != "hello" {
		t.Errorf("%+v, %v", b, err)
	}
}
