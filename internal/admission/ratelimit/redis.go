package ratelimit

import (
	"context"
	"crypto/sha256"
	_ "embed" // the scripts
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// acquireSource is the script with the rules of originState.acquire.
//
//go:embed lua/acquire.lua
var acquireSource string

// releaseSource is the script with the rules of originState.release.
//
//go:embed lua/release.lua
var releaseSource string

// redisState applies the rules (doc.go) with the scripts in lua/ to the state in Redis, which all workers share.
type redisState struct {
	client          redis.Scripter
	acquireScript   *redis.Script
	releaseScript   *redis.Script
	now             func() int64  // µs; nil: Redis' own clock. Only tests set it
	acquireRules    []any         // ARGV[5] and later of acquire.lua
	releaseRules    []any         // ARGV[5] and later of release.lua
	ttl, permitsTTL time.Duration // TTL of the keys of an origin and its endpoints; TTL of the key of its permits
}

func newRedisState(client redis.Scripter, r rules) *redisState {
	// A key must exist until each time that it contains has passed, and at least for a window of the breaker.
	keep := buckets*r.bucket + r.openFor + r.hold + r.maxWait + r.burst*r.gap
	s := &redisState{client: client, acquireScript: redis.NewScript(acquireSource),
		releaseScript: redis.NewScript(releaseSource),
		ttl:           time.Duration(keep)*time.Microsecond + time.Minute,
		permitsTTL:    time.Duration(r.hold)*time.Microsecond + time.Second}
	s.acquireRules = []any{r.inflight, r.gap, r.burst, r.hold, r.openFor, r.minWait, r.maxWait,
		r.presence, r.slack, r.recent, maxWaitingEndpoints, s.ttl.Milliseconds(), s.permitsTTL.Milliseconds(),
		r.keptAfter, r.bucket}
	s.releaseRules = []any{r.bucket, r.minCalls, strconv.FormatFloat(r.ratio, 'g', -1, 64), r.openFor,
		s.ttl.Milliseconds()}
	return s
}

// originKey returns the Redis key of an origin's state. The key contains a hash of the origin, because an agent could
// choose a very long origin. The hash is also the key's hash tag, so that all keys of an origin are in one hash slot of
// a Redis cluster.
func originKey(origin string) string {
	sum := sha256.Sum256([]byte(origin))
	return "herald:limits:{" + hex.EncodeToString(sum[:16]) + "}"
}

// endpointID returns the id of an endpoint within its origin: a hash of 12 characters without a space.
func endpointID(endpoint string) string {
	sum := sha256.Sum256([]byte(endpoint))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

func permitsKey(key string) string { return key + ":places" }

func (s *redisState) clock() int64 {
	if s.now == nil {
		return 0
	}
	return s.now()
}

// acquire runs acquire.lua, which applies the rules of originState.acquire to the state in Redis. key is the result of
// originKey, id that of endpointID, and token that of permitToken.
func (s *redisState) acquire(ctx context.Context, key, id, token string, q question) (acquireAnswer, error) {
	args := append([]any{s.clock(), token, boolArg(q.attempt), boolArg(q.reserve)}, s.acquireRules...)
	if q.gap > 0 {
		args[5], args[6] = q.gap, 1
	}
	got, err := s.acquireScript.Run(ctx, s.client, []string{key, permitsKey(key), endpointKey(key, id)},
		args...).Int64Slice()
	if err != nil {
		return acquireAnswer{}, fmt.Errorf("acquire a permit: %w", err)
	}
	if len(got) != 4 {
		return acquireAnswer{}, fmt.Errorf("acquire a permit: Redis answers %d numbers instead of 4", len(got))
	}
	return acquireAnswer{code: code(got[0]), wait: got[1], state: state(got[2]), left: got[3]}, nil
}

// release runs release.lua, which applies the rules of originState.release to the state in Redis. key, id and token are
// those of acquire. took is the duration of the call in µs; 0: unknown.
func (s *redisState) release(ctx context.Context, key, id, token string, result Result,
	took int64) (releaseAnswer, error) {
	args := append([]any{s.clock(), token, int(result), took}, s.releaseRules...)
	got, err := s.releaseScript.Run(ctx, s.client, []string{permitsKey(key), endpointKey(key, id)},
		args...).Int64Slice()
	if err != nil {
		return releaseAnswer{}, fmt.Errorf("release a permit: %w", err)
	}
	if len(got) != 3 {
		return releaseAnswer{}, fmt.Errorf("release a permit: Redis answers %d numbers instead of 3", len(got))
	}
	return releaseAnswer{known: got[0] == 1, state: state(got[1]), left: got[2]}, nil
}

func boolArg(b bool) int {
	if b {
		return 1
	}
	return 0
}
