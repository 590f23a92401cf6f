package queue

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// AddCounts adds to integer fields of Redis hashes, all in one round trip. counts has the addend of each field: the
// outer keys are the keys of the hashes, the inner ones the names of their fields. A hash expires ttl after the last
// addition to it.
func (q *Queue) AddCounts(ctx context.Context, counts map[string]map[string]int64, ttl time.Duration) error {
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for key, named := range counts {
			for name, n := range named {
				p.HIncrBy(ctx, key, name, n)
			}
			p.Expire(ctx, key, ttl)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("add to counters in Redis: %w", err)
	}
	return nil
}

// Counts returns the fields of the Redis hashes with these keys, in the order of keys. For a missing hash it returns an
// empty map. It omits fields that are not integers.
func (q *Queue) Counts(ctx context.Context, keys []string) ([]map[string]int64, error) {
	answers := make([]*redis.MapStringStringCmd, len(keys))
	_, err := q.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			answers[i] = p.HGetAll(ctx, key)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read counters from Redis: %w", err)
	}
	out := make([]map[string]int64, len(keys))
	for i, a := range answers {
		out[i] = map[string]int64{}
		for name, digits := range a.Val() {
			if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
				out[i][name] = n
			}
		}
	}
	return out, nil
}
