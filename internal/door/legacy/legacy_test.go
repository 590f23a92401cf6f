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
	"github.com/redis/go-redis/v9"
)

// TestTakesInOrder: of several workers one reads the list, so that its elements are committed in order and once. They
// leave no keys in Redis.
func TestTakesInOrder(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		l := newLedger()
		push(t, rdb, 0, 2000)
		stop := run(t, newConsumer(t, rdb, l), newConsumer(t, rdb, l), newConsumer(t, rdb, l))
		heraldtest.Await(t, "all jobs", func() bool { return l.count() == 2000 })
		push(t, rdb, 2000, 2010)
		heraldtest.Await(t, "the later ones", func() bool { return l.count() == 2010 })
		stop()
		if !slices.IsSorted(l.order) || len(l.order) != 2010 {
			t.Errorf("%d commits, in order: %v", len(l.order), slices.IsSorted(l.order))
		}
		heraldtest.Equal(t, "keys in Redis", keysOf(t, rdb), []string{})
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

// TestElementsOfDeadWorker: another worker reads the elements of a dead worker, in order, once the dead worker's id has
// expired.
func TestElementsOfDeadWorker(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		push(t, rdb, 0, 150)
		pushed := rdb.LRange(t.Context(), listOfJobs, 0, -1).Val()
		lists := newList(rdb, listOfJobs)
		b := read(t, lists, "dead", nil)
		if len(b.elements) != maxBatch || b.length != 150 {
			t.Fatalf("%d read of %d", len(b.elements), b.length)
		}
		if ttl := rdb.PTTL(t.Context(), lists.readerKey()).Val(); ttl <= 0 || ttl > time.Minute {
			t.Errorf("it counts as alive for %s", ttl)
		}
		if other := read(t, lists, "other", nil); len(other.elements) != 0 || other.length != 150 {
			t.Errorf("beside a worker that lives another one read %d of %d", len(other.elements), other.length)
		}
		heraldtest.Equal(t, "the list", rdb.LRange(t.Context(), listOfJobs, 0, -1).Val(), pushed)

		rdb.Del(t.Context(), lists.readerKey()) // it expires
		l := newLedger()
		stop := run(t, newConsumer(t, rdb, l))
		heraldtest.Await(t, "all jobs", func() bool { return l.count() == 150 })
		stop()
		heraldtest.Equal(t, "commits in order", len(l.order) == 150 && slices.IsSorted(l.order), true)
		heraldtest.Equal(t, "keys in Redis", keysOf(t, rdb), []string{})
	})
}

// TestDelayedScripts: a script that Redis runs after its caller gave up removes only committed elements.
func TestDelayedScripts(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		push(t, rdb, 0, 350)
		lists := newList(rdb, listOfJobs)
		next := func(worker string, done []any, oldest string, length int64) []any {
			t.Helper()
			b := read(t, lists, worker, done)
			heraldtest.Equal(t, "the length", b.length, length)
			heraldtest.Equal(t, "the oldest element", string(b.elements[0].Body), oldest)
			return b.hashes
		}
		first := next("w", nil, "job 00000", 350)
		next("w", nil, "job 00000", 350) // the answer was lost
		second := next("w", first, "job 00100", 250)
		next("w", first, "job 00100", 250) // again, or late
		third := next("w", second, "job 00200", 150)
		// Another program takes elements of the third batch. Then none of those after them is removed.
		heraldtest.Must(t, rdb.RPopCount(t.Context(), listOfJobs, 30).Err())
		fourth := next("w", third, "job 00230", 120)
		// A worker that counted as dead removes only the jobs that it committed.
		rdb.Del(t.Context(), lists.readerKey())
		next("other", nil, "job 00230", 120)
		if late := read(t, lists, "w", fourth); len(late.elements) != 0 || late.length != 20 {
			t.Errorf("a worker that does not read got %d of %d", len(late.elements), late.length)
		}
		next("other", fourth, "job 00330", 20)
	})
}

func read(t *testing.T, l *list, worker string, done []any) batch {
	t.Helper()
	b, err := l.readBatch(t.Context(), worker, time.Minute, done)
	heraldtest.Must(t, err)
	return b
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
		lists := newList(rdb, listOfJobs)
		b := read(t, lists, "w", nil)
		if len(b.elements) != 4 {
			t.Fatalf("%d elements", len(b.elements))
		}
		if e := b.elements[2]; e.Length != int64(len(huge)) || len(e.Body) != maxElement {
			t.Errorf("of %d bytes %d are read, and it says %d", len(huge), len(e.Body), e.Length)
		}
		heraldtest.Equal(t, "the second element", string(b.elements[1].Body), "\x00\xff")
		heraldtest.Equal(t, "the last element", string(b.elements[3].Body), "last")
		heraldtest.Equal(t, "the length without them", read(t, lists, "w", b.hashes).length, 0)
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
		b := read(t, newList(rdb, listOfJobs), "w", nil)
		heraldtest.Equal(t, "elements", len(b.elements), maxBatchBytes/job.MaxBytes)
	})
}

// TestForeignKeys: keys of the wrong type cause a log line. When they are gone, the consumer continues.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		heraldtest.Must(t, rdb.HSet(t.Context(), "{action_jobs}:reader", "no", "string").Err())
		rdb.Set(t.Context(), listOfJobs, "no list", 0)
		l := newLedger()
		var log heraldtest.Log
		run(t, newConsumer(t, rdb, l, func(c *Config) { c.Logger = log.Logger(slog.LevelInfo) }))
		heraldtest.Await(t, "the line in the log", func() bool { return log.Count("WRONGTYPE") == 1 })
		rdb.Del(t.Context(), listOfJobs)
		push(t, rdb, 0, 1)
		rdb.Del(t.Context(), "{action_jobs}:reader")
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

func TestParseBatch(t *testing.T) {
	t.Parallel()
	for _, answer := range [][]any{nil, {"2"}, {int64(1), "hash"}, {int64(1), "hash", int64(5)},
		{int64(1), "hash", "5", "hello"}, {int64(1), "hash", int64(5), nil}} {
		if b, err := parseBatch(answer); !errors.Is(err, errAnswer) || b.elements != nil {
			t.Errorf("%v: %+v, %v", answer, b, err)
		}
	}
	b, err := parseBatch([]any{int64(3), "hash", int64(5), "hello"})
	if err != nil || b.length != 3 || b.hashes[0] != "hash" || string(b.elements[0].Body) != "hello" {
		t.Errorf("%+v, %v", b, err)
	}
}
