package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/redis/go-redis/v9"
)

const (
	// archiveAge is how long the web UI shows archived tasks. asynq deletes a lane's archived tasks after 90 days, but
	// only when it archives another task there, and only up to 8,000 of them: with more, its script fails after it has
	// removed the task from the list of active ones. So TrimArchives deletes them a day earlier.
	archiveAge  = 89 * 24 * time.Hour
	trimBatch   = 1000 // tasks that one script deletes
	trimTimeout = 10 * time.Second
	trimPause   = 10 * time.Minute
)

// trimArchive is a Lua script that deletes archived tasks of a lane, the oldest first. It returns their number.
//
// KEYS: the lane's key archived. ARGV: the Unix time in seconds up to which they were archived, the largest number of
// tasks, and the prefix of the keys of tasks.
var trimArchive = redis.NewScript(`
local ids = redis.call("ZRANGEBYSCORE", KEYS[1], "-inf", ARGV[1], "LIMIT", 0, ARGV[2])
for _, id in ipairs(ids) do
	redis.call("DEL", ARGV[3] .. id)
	redis.call("ZREM", KEYS[1], id)
end
return #ids`)

// TrimArchives deletes archived tasks that are older than archiveAge, at once and every ten minutes until ctx ends.
func (q *Queue) TrimArchives(ctx context.Context) {
	_ = q.trimArchives(ctx)
	for range loop.Every(ctx, trimPause) {
		_ = q.trimArchives(ctx) // the outage of Redis is logged elsewhere
	}
}

// trimArchives deletes the archived tasks of each lane that are older than archiveAge.
func (q *Queue) trimArchives(ctx context.Context) error {
	before := time.Now().Add(-archiveAge).Unix()
	for lane := range q.lanes {
		prefix := "asynq:{" + lane + "}:"
		for deleted := trimBatch; deleted == trimBatch; {
			within, cancel := context.WithTimeout(ctx, trimTimeout)
			var err error
			deleted, err = trimArchive.Run(within, q.rdb, []string{prefix + "archived"}, before, trimBatch,
				prefix+"t:").Int()
			cancel()
			if err != nil {
				return fmt.Errorf("delete old archived tasks of lane %s: %w", lane, err)
			}
		}
	}
	return nil
}
