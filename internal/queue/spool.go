package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// markerKey is the key in Redis of the result of Marker, in RFC 3339.
const markerKey = "herald:marker"

// Spool stores encrypted values in Redis while Postgres is unavailable.
type Spool struct {
	rdb    Redis
	prefix string // of the keys in Redis
	ttl    time.Duration
	what   string // the kind of the values, for errors
}

// Outcomes returns the spool of the outcomes of attempts, whose keys are the ids of deliveries. The delivery's next
// claim reads the outcome, usually soon after Postgres is available again. An outcome that no claim reads within a day
// is lost.
func (q *Queue) Outcomes() Spool { return Spool{q.rdb, "herald:result:", 24 * time.Hour, "outcome"} }

// Renewals returns the spool of renewed credentials. They are kept for the default of HERALD_EXPIRY, after which no
// delivery is open. If a credential were lost earlier, a person would have to log in again.
func (q *Queue) Renewals() Spool {
	return Spool{q.rdb, "herald:renewal:", 30 * 24 * time.Hour, "renewed credential"}
}

// Put stores a value, and replaces an earlier one with the same key. Redis deletes it after the spool's TTL.
func (s Spool) Put(ctx context.Context, key string, sealed []byte) error {
	if err := s.rdb.Set(ctx, s.prefix+key, sealed, s.ttl).Err(); err != nil {
		return fmt.Errorf("store %s %s in Redis: %w", s.what, key, err)
	}
	return nil
}

// PutMissing stores a value, unless Redis has one with the same key. Redis deletes it after the spool's TTL.
func (s Spool) PutMissing(ctx context.Context, key string, sealed []byte) error {
	if err := s.rdb.SetNX(ctx, s.prefix+key, sealed, s.ttl).Err(); err != nil {
		return fmt.Errorf("store %s %s in Redis again: %w", s.what, key, err)
	}
	return nil
}

// Get returns the first maxSpooledBytes of the value with this key, or nil if Redis has no such value. If another
// program stored a value that is not a string, it returns an empty slice that is not nil: the caller cannot decrypt it,
// and so ignores the value.
func (s Spool) Get(ctx context.Context, key string) ([]byte, error) {
	b, err := s.rdb.GetRange(ctx, s.prefix+key, 0, maxSpooledBytes-1).Bytes()
	switch {
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return []byte{}, nil
	case err != nil:
		return nil, fmt.Errorf("look in Redis for %s %s: %w", s.what, key, err)
	case len(b) == 0:
		return nil, nil
	}
	return b, nil
}

// Delete deletes the value with this key.
func (s Spool) Delete(ctx context.Context, key string) error {
	if err := s.rdb.Del(ctx, s.prefix+key).Err(); err != nil {
		return fmt.Errorf("delete %s %s in Redis: %w", s.what, key, err)
	}
	return nil
}

// maxSpooledBytes limits how much Get reads of a value. Herald stores only smaller values. The limit protects the
// worker's memory against another program that can write to Redis.
const maxSpooledBytes = 2 << 20

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
	o := q.opt.UniversalOptions
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
	o.MaxRetries, o.MinIdleConns = -1, idleConns
	return redis.NewUniversalClient(&o)
}
