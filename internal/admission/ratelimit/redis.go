package ratelimit

import (
	"context"
	"crypto/sha256"
	_ "embed" // the script
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/replace.lua
var replaceSource string

var replaceScript = redis.NewScript(replaceSource)

// versionLength is the length of the version with which each value in Redis begins.
const versionLength = 16

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

// stored is the value of a key in Redis: a version and a state, which is JSON.
type stored struct {
	version string // "": there is no value
	state   []byte
}

// newStored returns state as a value with a new version.
func newStored(state any) (stored, error) {
	text, err := json.Marshal(state)
	return stored{version: fmt.Sprintf("%016x", rand.Uint64()), state: text}, err
}

// parseStored splits a value that Redis returned; nil: there is none.
func parseStored(value any) stored {
	if text, ok := value.(string); ok && len(text) >= versionLength {
		return stored{version: text[:versionLength], state: []byte(text[versionLength:])}
	}
	return stored{}
}

// replacement replaces the value of a key if that value has the version old.
type replacement struct {
	key string
	old string // "": if there is no value
	new stored
}

// replaceAnswer is the answer of replaceValues.
type replaceAnswer struct {
	time     int64 // of Redis, in µs since 1970
	replaced bool
	before   []stored // the values before, in the order of the replacements
}

// replaceValues makes all replacements, or none if the version of one value differs. Redis deletes the keys after ttl.
func replaceValues(ctx context.Context, client redis.Scripter, ttl time.Duration, all []replacement,
) (a replaceAnswer, _ error) {
	keys, args := make([]string, len(all)), make([]any, 1, 1+2*len(all))
	args[0] = ttl.Milliseconds()
	for i, r := range all {
		keys[i] = r.key
		args = append(args, r.old, r.new.version+string(r.new.state))
	}
	got, err := replaceScript.Run(ctx, client, keys, args...).Slice()
	if err != nil {
		return a, fmt.Errorf("replace the state of an origin: %w", err)
	}
	if want := 2 + len(all); len(got) != want {
		return a, fmt.Errorf("replace the state of an origin: Redis answers %d values instead of %d", len(got), want)
	}
	var ok bool
	if a.time, ok = got[0].(int64); !ok {
		return a, fmt.Errorf("replace the state of an origin: Redis answers the time %.40q", fmt.Sprint(got[0]))
	}
	a.replaced = got[1] == int64(1)
	for _, value := range got[2:] {
		a.before = append(a.before, parseStored(value))
	}
	return a, nil
}
