// Package versioned stores values in Redis that several workers change. A worker reads a value, computes the next one
// in Go, and replaces the value if no other worker has replaced it since. So the rules by which values change exist in
// Go only. The package does not retry, and does not interpret the values.
//
// Invariants:
//   - A value is replaced only while it has the state from which its replacement was computed. So no worker overwrites
//     a change that it has not read, even if an answer of Redis is lost.
//   - A replacement by the same state is not written. So it does not make the replacements of other workers fail, and
//     the TTL of the value does not change.
//   - Each value has a TTL.
package versioned

import (
	"context"
	"crypto/sha256"
	_ "embed" // the script
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/replace.lua
var source string

var script = redis.NewScript(source)

// length is the number of characters of a version. Each value in Redis begins with its version.
const length = 16

// ReadOnly is a version that no value has. If it is the Old of a replacement, Replace only reads the values.
const ReadOnly = "?"

// Value is a value in Redis. The zero Value means that Redis has none.
type Value struct {
	Version string // hash of the state
	State   []byte // JSON
}

// New returns state as a value. Equal states have the same version.
func New(state any) (Value, error) {
	text, err := json.Marshal(state)
	hash := sha256.Sum256(text)
	return Value{hex.EncodeToString(hash[:length/2]), text}, err
}

// Read parses the value into state, a pointer. It returns false if there is no value, or if it does not fit state.
func (v Value) Read(state any) bool { return v.Version != "" && json.Unmarshal(v.State, state) == nil }

// Replacement replaces the value of a key if that value has the version Old.
type Replacement struct {
	Key string
	Old string // "": if there is no value
	New Value
}

// Answer is the answer of Replace.
type Answer struct {
	Time     int64 // of Redis, in µs since 1970
	Replaced bool
	Before   []Value // the values before, in the order of the replacements; nil if Replaced is set
}

// Replace makes all replacements by one script call, or none if one value has another version than Old. The keys have
// to be in one hash slot of a Redis cluster. Redis deletes a key when ttl has passed since it was last written.
func Replace(ctx context.Context, client redis.Scripter, ttl time.Duration, all ...Replacement) (a Answer, _ error) {
	keys, args := make([]string, len(all)), make([]any, 1, 1+2*len(all))
	args[0] = ttl.Milliseconds()
	for i, r := range all {
		keys[i] = r.Key
		if r.New.Version == r.Old {
			args = append(args, r.Old, "") // only compare
			continue
		}
		args = append(args, r.Old, r.New.Version+string(r.New.State))
	}
	got, err := script.Run(ctx, client, keys, args...).Slice()
	if err != nil {
		return a, fmt.Errorf("replace a value in Redis: %w", err)
	}
	var ok bool
	if len(got) > 0 {
		a.Time, ok = got[0].(int64)
	}
	if a.Replaced = len(got) == 1; !ok || !a.Replaced && len(got) != 1+len(all) {
		return Answer{}, fmt.Errorf("replace a value in Redis: it answers %.40q", fmt.Sprint(got))
	}
	for _, value := range got[1:] {
		a.Before = append(a.Before, parseValue(value))
	}
	return a, nil
}

// parseValue splits a value that Redis returned. It returns a Value without a version if Redis has none.
func parseValue(value any) Value {
	if text, ok := value.(string); ok && len(text) >= length {
		return Value{text[:length], []byte(text[length:])}
	}
	return Value{}
}
