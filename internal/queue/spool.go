package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// Keys in Redis.
const (
	resultKey  = "herald:result:"  // followed by a delivery's id: its spooled outcome
	renewalKey = "herald:renewal:" // followed by the key of SpoolRenewal: a renewed credential, encrypted
	markerKey  = "herald:marker"   // the result of Marker, in RFC 3339
)

const (
	// resultTTL is the time after which Redis deletes a spooled outcome. The delivery's next claim reads the outcome,
	// usually soon after Postgres is available again. An outcome that no claim reads within resultTTL is lost.
	resultTTL = 24 * time.Hour
	// renewalTTL is the time after which Redis deletes a spooled credential. It is the default of HERALD_EXPIRY, after
	// which no delivery is open. If the credential were lost earlier, a person would have to log in again.
	renewalTTL = 30 * 24 * time.Hour
)

// SpoolOutcome stores the outcome of an attempt at the delivery with this id in Redis for resultTTL, because Postgres
// is unavailable. It replaces an earlier outcome of the delivery. The caller has encrypted the outcome.
func (q *Queue) SpoolOutcome(ctx context.Context, id uuid.UUID, outcome []byte) error {
	if err := q.rdb.Set(ctx, resultKey+id.String(), outcome, resultTTL).Err(); err != nil {
		return fmt.Errorf("keep the outcome of delivery %s in Redis: %w", id, err)
	}
	return nil
}

// SpooledOutcome returns the outcome that SpoolOutcome stored for the delivery with this id, or nil if Redis has none.
func (q *Queue) SpooledOutcome(ctx context.Context, id uuid.UUID) ([]byte, error) {
	b, err := q.readKey(ctx, resultKey+id.String())
	if err != nil {
		return nil, fmt.Errorf("look in Redis for a known outcome of delivery %s: %w", id, err)
	}
	return b, nil
}

// DropOutcome deletes the outcome that SpoolOutcome stored.
func (q *Queue) DropOutcome(ctx context.Context, id uuid.UUID) error {
	if err := q.rdb.Del(ctx, resultKey+id.String()).Err(); err != nil {
		return fmt.Errorf("drop the outcome of delivery %s in Redis: %w", id, err)
	}
	return nil
}

// SpoolRenewal stores a renewed credential under key in Redis for renewalTTL, because Postgres is unavailable. It
// replaces an earlier credential under the same key. The caller has encrypted the credential.
func (q *Queue) SpoolRenewal(ctx context.Context, key string, sealed []byte) error {
	if err := q.rdb.Set(ctx, renewalKey+key, sealed, renewalTTL).Err(); err != nil {
		return fmt.Errorf("keep a renewed credential in Redis: %w", err)
	}
	return nil
}

// SpooledRenewal returns the credential that SpoolRenewal stored under key, or nil if Redis has none.
func (q *Queue) SpooledRenewal(ctx context.Context, key string) ([]byte, error) {
	b, err := q.readKey(ctx, renewalKey+key)
	if err != nil {
		return nil, fmt.Errorf("look in Redis for a renewed credential: %w", err)
	}
	return b, nil
}

// DropRenewal deletes the credential that SpoolRenewal stored under key.
func (q *Queue) DropRenewal(ctx context.Context, key string) error {
	if err := q.rdb.Del(ctx, renewalKey+key).Err(); err != nil {
		return fmt.Errorf("drop a renewed credential in Redis: %w", err)
	}
	return nil
}

// maxSpooledBytes limits how much readKey reads of a value. Herald stores only smaller values. The limit protects the
// worker's memory against another program that can write to Redis.
const maxSpooledBytes = 2 << 20

// readKey returns the value of key, at most its first maxSpooledBytes. It returns nil if Redis has no such key or the
// value is empty. If another program stored a value that is not a string, it returns an empty slice that is not nil:
// the caller cannot decrypt it, and so ignores the value.
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

// Marker returns the marker, a time that Redis stores under markerKey. Redis has lost no task of Herald that was
// enqueued after that time; it may have lost earlier ones. If Redis has no marker, for example because it lost its
// data, Marker stores the given time as the marker and returns it. If another program overwrote the marker with another
// value, Marker returns the zero time.
//
// The reconciler passes the time by Postgres' clock, by which dispatches are dated. The first Enqueue of a process
// passes the time at which Open was called, by the clock of the process' machine. The two clocks may differ. A task may
// then be enqueued twice, which is harmless, or the reconciler may replace a lost task only when its delivery is
// overdue.
func (q *Queue) Marker(ctx context.Context, now time.Time) (time.Time, error) {
	for range 2 {
		if err := q.rdb.SetNX(ctx, markerKey, now.UTC().Format(time.RFC3339Nano), 0).Err(); err != nil {
			return time.Time{}, fmt.Errorf("mark Redis: %w", err)
		}
		text, err := q.rdb.Get(ctx, markerKey).Result()
		if errors.Is(err, redis.Nil) {
			continue // Redis lost its data after SetNX
		}
		if err != nil {
			return time.Time{}, fmt.Errorf("read Redis' marker: %w", err)
		}
		born, err := time.Parse(time.RFC3339Nano, text)
		if err == nil {
			return born, nil
		}
		// Another program wrote this value. Without a marker, the reconciler replaces a lost task when its delivery is
		// overdue.
		return time.Time{}, nil
	}
	return time.Time{}, errors.New("mark Redis: it loses its data")
}

// idleConns is the number of idle connections that a client returned by Client keeps open, because connecting takes
// longer than a call.
const idleConns = 4

// Client returns a new Redis client with its own connections. A call on the client returns within timeout even if Redis
// does not answer. The caller closes the client before it closes the queue.
func (q *Queue) Client(timeout time.Duration) Redis {
	o := q.opt.(options).UniversalOptions
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
	o.MaxRetries, o.MinIdleConns = -1, idleConns
	return redis.NewUniversalClient(&o)
}
