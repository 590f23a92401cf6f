package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// Keys of our own, beside asynq's.
const (
	resultKey  = "herald:result:"  // and the delivery's id: an outcome that Postgres could not take
	renewalKey = "herald:renewal:" // and the caller's key: a renewed credential that Postgres could not take, sealed
	markerKey  = "herald:marker"   // since when Redis has held our tasks, RFC 3339
)

const (
	// resultTTL is how long an outcome waits for its delivery to be claimed again.
	resultTTL = 24 * time.Hour
	// renewalTTL is how long a renewed credential waits for the next renewal. Without it a person has to log in again,
	// so that it outlasts whatever waits for it: deliveries expire after as long.
	renewalTTL = 30 * 24 * time.Hour
)

// SpoolOutcome keeps a delivery's outcome for a day while Postgres cannot take it. A later one replaces it.
func (q *Queue) SpoolOutcome(ctx context.Context, id uuid.UUID, outcome []byte) error {
	if err := q.rdb.Set(ctx, resultKey+id.String(), outcome, resultTTL).Err(); err != nil {
		return fmt.Errorf("keep the outcome of delivery %s in Redis: %w", id, err)
	}
	return nil
}

// SpooledOutcome returns what SpoolOutcome keeps; nil: nothing.
func (q *Queue) SpooledOutcome(ctx context.Context, id uuid.UUID) ([]byte, error) {
	b, err := q.readKey(ctx, resultKey+id.String())
	if err != nil {
		return nil, fmt.Errorf("look in Redis for a known outcome of delivery %s: %w", id, err)
	}
	return b, nil
}

// DropOutcome ends what SpoolOutcome keeps.
func (q *Queue) DropOutcome(ctx context.Context, id uuid.UUID) error {
	if err := q.rdb.Del(ctx, resultKey+id.String()).Err(); err != nil {
		return fmt.Errorf("drop the outcome of delivery %s in Redis: %w", id, err)
	}
	return nil
}

// SpoolRenewal keeps a sealed renewal under a key for 30 days, while Postgres cannot take it.
func (q *Queue) SpoolRenewal(ctx context.Context, key string, sealed []byte) error {
	if err := q.rdb.Set(ctx, renewalKey+key, sealed, renewalTTL).Err(); err != nil {
		return fmt.Errorf("keep a renewed credential in Redis: %w", err)
	}
	return nil
}

// SpooledRenewal returns what SpoolRenewal keeps; nil: nothing.
func (q *Queue) SpooledRenewal(ctx context.Context, key string) ([]byte, error) {
	b, err := q.readKey(ctx, renewalKey+key)
	if err != nil {
		return nil, fmt.Errorf("look in Redis for a renewed credential: %w", err)
	}
	return b, nil
}

// DropRenewal ends what SpoolRenewal keeps.
func (q *Queue) DropRenewal(ctx context.Context, key string) error {
	if err := q.rdb.Del(ctx, renewalKey+key).Err(); err != nil {
		return fmt.Errorf("drop a renewed credential in Redis: %w", err)
	}
	return nil
}

// maxSpooledBytes is more than what SpoolOutcome and SpoolRenewal are given. Who else can write to Redis must not fill
// the worker's memory.
const maxSpooledBytes = 2 << 20

// readKey is nil without error when there is no such key. What is longer than maxSpooledBytes is cut; what is no text
// is empty.
func (q *Queue) readKey(ctx context.Context, key string) ([]byte, error) {
	b, err := q.rdb.GetRange(ctx, key, 0, maxSpooledBytes-1).Bytes()
	switch {
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return []byte{}, nil
	case len(b) == 0:
		return nil, err
	}
	return b, err
}

// Marker tells since when this Redis has held our tasks; one that does not know is marked with now. What was put in
// before that time is lost. The reconciler gives Postgres' clock, which dispatches are dated by; whoever
// enqueues first gives its own, and a difference between the two costs a task that claims nothing, or a wait until the
// dispatch is late.
func (q *Queue) Marker(ctx context.Context, now time.Time) (time.Time, error) {
	for range 2 {
		if err := q.rdb.SetNX(ctx, markerKey, now.UTC().Format(time.RFC3339Nano), 0).Err(); err != nil {
			return time.Time{}, fmt.Errorf("mark Redis: %w", err)
		}
		text, err := q.rdb.Get(ctx, markerKey).Result()
		if errors.Is(err, redis.Nil) {
			continue // emptied in between
		}
		if err != nil {
			return time.Time{}, fmt.Errorf("read Redis' marker: %w", err)
		}
		born, err := time.Parse(time.RFC3339Nano, text)
		if err == nil {
			return born, nil
		}
		// Somebody else wrote there. What is lost then shows by being late.
		return time.Time{}, nil
	}
	return time.Time{}, errors.New("mark Redis: it loses what it is told")
}

// idleConns are kept by Client: connecting would take most of its time.
const idleConns = 4

// Client makes connections of their own for calls that must not wait longer than timeout, whatever Redis does; the
// caller closes it, before the queue.
func (q *Queue) Client(timeout time.Duration) (redis.UniversalClient, error) {
	switch c := q.rdb.(type) {
	case *redis.Client:
		o := withoutPush(*c.Options())
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
		o.MaxRetries, o.MinIdleConns, o.ContextTimeoutEnabled = -1, idleConns, true
		return redis.NewClient(&o), nil
	case *redis.ClusterClient:
		o := *c.Options()
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
		o.MaxRetries, o.MinIdleConns, o.ContextTimeoutEnabled = -1, idleConns, true
		return redis.NewClusterClient(&o), nil
	}
	return nil, fmt.Errorf("queue: clients of type %T cannot be made again", q.rdb)
}
