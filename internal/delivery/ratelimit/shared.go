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

//go:embed lua/enter.lua
var enterSource string

//go:embed lua/leave.lua
var leaveSource string

// shared is the state machine in Redis.
type shared struct {
	client       redis.UniversalClient
	direct       bool // the client honours contexts
	enterScript  *redis.Script
	leaveScript  *redis.Script
	now          func() int64 // µs; nil: Redis' own clock. Only tests have one.
	enterRules   []any        // ARGV[5] and on of enter.lua
	leaveRules   []any        // ARGV[5] and on of leave.lua
	keep, places time.Duration
}

func newShared(client redis.UniversalClient, r rules) *shared {
	// The state outlives everything that it says about the time to come, and a whole window.
	keep := buckets*r.bucket + r.openFor + r.hold + r.maxWait + r.burst*r.gap
	s := &shared{client: client, direct: honoursContexts(client), enterScript: redis.NewScript(enterSource), leaveScript: redis.NewScript(leaveSource),
		keep: time.Duration(keep)*time.Microsecond + time.Minute, places: time.Duration(r.hold)*time.Microsecond + time.Second}
	s.enterRules = []any{r.inflight, r.gap, r.burst, r.hold, r.openFor, r.minWait, r.maxWait,
		r.presence, r.slack, r.recent, maxWaiters, s.keep.Milliseconds(), s.places.Milliseconds(), r.keptAfter, r.bucket}
	s.leaveRules = []any{r.bucket, r.minCalls, strconv.FormatFloat(r.ratio, 'g', -1, 64), r.openFor, s.keep.Milliseconds()}
	return s
}

// keyOf names an origin's state: hashed, since strangers choose origins, and with one hash tag for all of it.
func keyOf(origin string) string {
	sum := sha256.Sum256([]byte(origin))
	return "herald:limits:{" + hex.EncodeToString(sum[:16]) + "}"
}

// idOf names an endpoint among those of its origin: hashed too, 12 characters without a space.
func idOf(endpoint string) string {
	sum := sha256.Sum256([]byte(endpoint))
	return base64.RawURLEncoding.EncodeToString(sum[:9])
}

func keyOfPlaces(key string) string { return key + ":places" }

func (s *shared) clock() int64 {
	if s.now == nil {
		return 0
	}
	return s.now()
}

func (s *shared) enter(ctx context.Context, key, id, token string, q question) (verdict, error) {
	args := append([]any{s.clock(), token, flag(q.attempt), flag(q.reserve)}, s.enterRules...)
	got, err := s.enterScript.Run(ctx, s.client, []string{key, keyOfPlaces(key), keyOfEndpoint(key, id)}, args...).Int64Slice()
	if err != nil {
		return verdict{}, fmt.Errorf("take a place: %w", err)
	}
	if len(got) != 4 {
		return verdict{}, fmt.Errorf("take a place: Redis answers %d numbers instead of 4", len(got))
	}
	return verdict{code: code(got[0]), wait: got[1], state: state(got[2]), left: got[3]}, nil
}

func (s *shared) leave(ctx context.Context, key, id, token string, result Result, took int64) (ending, error) {
	args := append([]any{s.clock(), token, int(result), took}, s.leaveRules...)
	got, err := s.leaveScript.Run(ctx, s.client, []string{keyOfPlaces(key), keyOfEndpoint(key, id)}, args...).Int64Slice()
	if err != nil {
		return ending{}, fmt.Errorf("give a place back: %w", err)
	}
	if len(got) != 3 {
		return ending{}, fmt.Errorf("give a place back: Redis answers %d numbers instead of 3", len(got))
	}
	return ending{known: got[0] == 1, state: state(got[1]), left: got[2]}, nil
}

// honoursContexts says whether a client gives a call up when its context ends, dialling included.
func honoursContexts(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	default:
		return false
	}
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
