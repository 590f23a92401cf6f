// Package versioned stores values in Redis that several workers change. A worker reads a value, computes the next one
// in Go, and replaces the value if no other worker has replaced it since. So the rules by which values change exist in
// Go only. The package does not retry, and does not know what the values mean.
//
// Invariants:
//   - Of all replacements that were computed from the same version of a value, at most one is stored. It does not
//     matter whether the answer arrives.
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

// length is the length of a version. It begins each value.
const length = 16

// ReadOnly is a version that no value has. A replacement of it reads the value, and replaces nothing.
const ReadOnly = "?"

// Value is a value in Redis. If there is none, the version is "".
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

// Read parses the value into state, a pointer. If there is no value or state does not fit, the result is false.
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

// Replace makes all replacements by one script call, or none if the version of one value differs. Their keys have to be
// in one hash slot of a Redis cluster. Redis deletes the keys that it writes after ttl.
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
		a.Before = append(a.Before, parse(value))
	}
	return a, nil
}

// parse splits a value that Redis returned; nil: there is none.
func parse(value any) Value {
	if text, ok := value.(string); ok && len(text) >= length {
		return Value{text[:length], []byte(text[length:])}
	}
	return Value{}
}
