package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// Keys of Herald's own in Redis.
const (
	resultKey  = "herald:result:"  // plus the delivery's id: an outcome that Postgres could not store
	renewalKey = "herald:renewal:" // plus the caller's key: a renewed credential, sealed, that Postgres could not store
	markerKey  = "herald:marker"   // the time since which Redis has held Herald's tasks, RFC 3339
)

const (
	// resultTTL is how long Redis keeps an outcome for the next claim of its delivery.
	resultTTL = 24 * time.Hour
	// renewalTTL is how long Redis keeps a renewed credential for the next renewal. If the credential is lost, a person
	// has to log in again. The time is as long as a delivery may be open, so the credential outlasts every delivery
	// that waits for it.
	renewalTTL = 30 * 24 * time.Hour
)

// SpoolOutcome stores a delivery's outcome in Redis for a day, because Postgres is unavailable. It replaces an earlier
// outcome of the delivery.
func (q *Queue) SpoolOutcome(ctx context.Context, id uuid.UUID, outcome []byte) error {
	if err := q.rdb.Set(ctx, resultKey+id.String(), outcome, resultTTL).Err(); err != nil {
		return fmt.Errorf("keep the outcome of delivery %s in Redis: %w", id, err)
	}
	return nil
}

// SpooledOutcome returns the outcome that SpoolOutcome stored for the delivery, or nil if Redis has none.
func (q *Queue) SpooledOutcome(ctx context.Context, id uuid.UUID) ([]byte, error) {
	b, err := q.readKey(ctx, resultKey+id.String())
	if err != nil {
		return nil, fmt.Errorf("look in Redis for a known outcome of delivery %s: %w", id, err)
	}
	return b, nil
}

// DropOutcome deletes the outcome stored by SpoolOutcome.
func (q *Queue) DropOutcome(ctx context.Context, id uuid.UUID) error {
	if err := q.rdb.Del(ctx, resultKey+id.String()).Err(); err != nil {
		return fmt.Errorf("drop the outcome of delivery %s in Redis: %w", id, err)
	}
	return nil
}

// SpoolRenewal stores a renewed, sealed credential under key in Redis for 30 days, because Postgres is unavailable. It
// replaces an earlier one.
func (q *Queue) SpoolRenewal(ctx context.Context, key string, sealed []byte) error {
	if err := q.rdb.Set(ctx, renewalKey+key, sealed, renewalTTL).Err(); err != nil {
		return fmt.Errorf("keep a renewed credential in Redis: %w", err)
	}
	return nil
}

// SpooledRenewal returns the credential that SpoolRenewal stored, or nil if Redis has no such credential.
func (q *Queue) SpooledRenewal(ctx context.Context, key string) ([]byte, error) {
	b, err := q.readKey(ctx, renewalKey+key)
	if err != nil {
		return nil, fmt.Errorf("look in Redis for a renewed credential: %w", err)
	}
	return b, nil
}

// DropRenewal deletes the credential stored by SpoolRenewal.
func (q *Queue) DropRenewal(ctx context.Context, key string) error {
	if err := q.rdb.Del(ctx, renewalKey+key).Err(); err != nil {
		return fmt.Errorf("drop a renewed credential in Redis: %w", err)
	}
	return nil
}

// maxSpooledBytes is the length to which readKey cuts a value. SpoolOutcome and SpoolRenewal store smaller values. A
// larger value is from another program that can write to Redis, and must not exhaust the worker's memory.
const maxSpooledBytes = 2 << 20

// readKey returns at most the first maxSpooledBytes of the value of key. It returns nil if the key does not exist or
// its value is empty, and an empty slice, not nil, if the value is not a string.
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

// Marker returns the time since which this Redis has held Herald's tasks: it has lost the tasks that were enqueued
// before. If Redis has no marker, Marker stores now as the marker. It returns the zero time if another program
// overwrote the marker.
//
// The reconciler passes Postgres' clock, which also dates the dispatches. The first Enqueue of a process passes the
// time of Open by the process' clock. If the two clocks differ, a task may be enqueued twice, or a lost task may be
// found only when its delivery is overdue. Neither does harm.
func (q *Queue) Marker(ctx context.Context, now time.Time) (time.Time, error) {
	for range 2 {
		if err := q.rdb.SetNX(ctx, markerKey, now.UTC().Format(time.RFC3339Nano), 0).Err(); err != nil {
			return time.Time{}, fmt.Errorf("mark Redis: %w", err)
		}
		text, err := q.rdb.Get(ctx, markerKey).Result()
		if errors.Is(err, redis.Nil) {
			continue // Redis was emptied in between
		}
		if err != nil {
			return time.Time{}, fmt.Errorf("read Redis' marker: %w", err)
		}
		born, err := time.Parse(time.RFC3339Nano, text)
		if err == nil {
			return born, nil
		}
		// Another program wrote this value. Lost tasks are then found because they are overdue.
		return time.Time{}, nil
	}
	return time.Time{}, errors.New("mark Redis: it loses its data")
}

// idleConns is the number of idle connections that a client from Client keeps open, because connecting would take most
// of the time of a call.
const idleConns = 4

// Client returns a Redis client with connections of its own, on which no call takes longer than timeout, even if Redis
// is frozen. The caller closes the client before it closes the queue.
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
