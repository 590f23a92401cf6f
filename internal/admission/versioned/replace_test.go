package versioned

import (
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

func replace(t *testing.T, rdb redis.Scripter, all ...Replacement) Answer {
	t.Helper()
	a, err := Replace(t.Context(), rdb, time.Minute, all...)
	heraldtest.Must(t, err)
	return a
}

func value(t *testing.T, state any) Value {
	t.Helper()
	v, err := New(state)
	heraldtest.Must(t, err)
	return v
}

// TestReplaceAllOrNone: several values are replaced together, or not at all. Each has a TTL then, and the answer has the
// values before and the time of Redis.
func TestReplaceAllOrNone(t *testing.T) {
	t.Parallel()
	heraldtest.EachRedis(t, func(t *testing.T, url string) {
		rdb := heraldtest.RedisClient(t, url)
		one, two := value(t, 1), value(t, 2)
		a := replace(t, rdb, Replacement{"a", "", one})
		if age := time.Since(time.UnixMicro(a.Time)); !a.Replaced || age < -time.Minute || age > time.Minute {
			t.Fatalf("%+v", a)
		}
		a = replace(t, rdb, Replacement{"b", "", two}, Replacement{"a", "", two})
		var n int
		if a.Replaced || a.Before[0].Read(&n) || !a.Before[1].Read(&n) || n != 1 || a.Before[1].Version != one.Version {
			t.Fatalf("%+v", a)
		}
		a = replace(t, rdb, Replacement{"a", ReadOnly, two}, Replacement{"b", "", two})
		heraldtest.Equal(t, "b, which was to be replaced together with a, exists", a.Before[1].Version, "")
		a = replace(t, rdb, Replacement{"b", "", two}, Replacement{"a", one.Version, two})
		heraldtest.Equal(t, "replaced", a.Replaced, true)
		for _, key := range []string{"a", "b"} {
			ttl, err := rdb.PTTL(t.Context(), key).Result()
			if err != nil || ttl <= 0 || ttl > time.Minute {
				t.Errorf("%s has the TTL %s, %v", key, ttl, err)
			}
		}
	})
}

// TestSameState: a replacement by the same state is not written, so it does not make the replacement of another worker
// fail. If the value was replaced since, it fails nevertheless.
func TestSameState(t *testing.T) {
	t.Parallel()
	heraldtest.EachRedis(t, func(t *testing.T, url string) {
		rdb := heraldtest.RedisClient(t, url)
		one, two := value(t, 1), value(t, 2)
		replace(t, rdb, Replacement{"a", "", one})
		heraldtest.Must(t, rdb.Persist(t.Context(), "a").Err())
		heraldtest.Equal(t, "the state is the same", replace(t, rdb, Replacement{"a", one.Version, one}).Replaced, true)
		ttl, err := rdb.TTL(t.Context(), "a").Result()
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "it was written: the TTL", ttl, -1)
		heraldtest.Equal(t, "another worker replaces it", replace(t, rdb, Replacement{"a", one.Version, two}).Replaced, true)
		heraldtest.Equal(t, "the state was the same", replace(t, rdb, Replacement{"a", one.Version, one}).Replaced, false)
	})
}

// TestForeignValues: values that Herald did not write are replaced.
func TestForeignValues(t *testing.T) {
	t.Parallel()
	rdb := heraldtest.RedisClient(t, heraldtest.RealRedis(t))
	heraldtest.Must(t, rdb.Set(t.Context(), "short", "x", 0).Err())
	heraldtest.Must(t, rdb.HSet(t.Context(), "hash", "a", "b").Err())
	heraldtest.Must(t, rdb.Set(t.Context(), "long", "0123456789abcdef no JSON", 0).Err())
	for _, key := range []string{"short", "hash", "long"} {
		before := replace(t, rdb, Replacement{key, ReadOnly, Value{}}).Before[0]
		var state any
		heraldtest.Equal(t, key+" has a state", before.Read(&state), false)
		heraldtest.Equal(t, key+" is replaced", replace(t, rdb, Replacement{key, before.Version, value(t, 1)}).Replaced, true)
	}
}

// TestConcurrentChanges: of several workers that change a value at the same time, none overwrites the change of another.
func TestConcurrentChanges(t *testing.T) {
	t.Parallel()
	rdb := heraldtest.RedisClient(t, heraldtest.RealRedis(t))
	const workers, each = 8, 25
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			var known Value
			for done := 0; done < each; {
				n := 0
				known.Read(&n)
				next, err := New(n + 1)
				if err != nil {
					t.Error(err)
					return
				}
				a, err := Replace(t.Context(), rdb, time.Minute, Replacement{"n", known.Version, next})
				switch {
				case err != nil:
					t.Error(err)
					return
				case a.Replaced:
					known = next
					done++
				default:
					known = a.Before[0]
				}
			}
		})
	}
	all.Wait()
	n := 0
	replace(t, rdb, Replacement{"n", ReadOnly, Value{}}).Before[0].Read(&n)
	heraldtest.Equal(t, "changes", n, workers*each)
}
