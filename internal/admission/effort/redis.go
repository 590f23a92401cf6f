package effort

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/admission/versioned"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/redis/go-redis/v9"
)

// remembered is how long Redis keeps an agent's usage (known) after its last charge. The bucket refills much sooner,
// but the mean cost of an attempt is useful for as long as a success counts as recent (store.RecentSuccess).
const remembered = time.Hour

// shared accesses the usage of each agent (known) in Redis, to which all workers add.
type shared struct {
	client redis.Scripter
	rules  rules
	now    func() int64 // µs; nil: Redis' own clock. Only tests set it
}

func newShared(client redis.Scripter, r rules) *shared { return &shared{client: client, rules: r} }

// agentKey returns the Redis key of an agent's usage (known). The key contains a hash of the agent's name, so that all
// keys have the same length.
func agentKey(a erc8004.Agent) string {
	hash := sha256.Sum256([]byte(a.FullName()))
	return "herald:effort:" + hex.EncodeToString(hash[:16])
}

// known is the usage of an agent: the mean cost of its latest attempts in µs, and the used worker time in µs for
// each kind of work (calls, files, …).
type known struct {
	mean float64
	used [kindCount]float64
}

// storedUsage is the usage of an agent in Redis, as JSON.
type storedUsage struct {
	Mean float64
	Used [kindCount]float64
	At   int64 // the time at which Used was computed, in µs since 1970
}

// readSpent reads an agent's usage from Redis. It returns zeros if Redis has none.
func (s *shared) readSpent(ctx context.Context, a erc8004.Agent) (k known, _ error) {
	before, err := s.replaceUsage(ctx, a, versioned.ReadOnly, versioned.Value{})
	if before.known != nil {
		k = *before.known
	}
	return k, err
}

// addSpent adds spent, the worker time that this process charged to an agent, to the agent's usage in Redis, and
// returns the new usage. local is the usage as this process knows it, including spent. If Redis has lost the agent's
// usage, addSpent stores local.used instead of adding spent. If local.mean is not 0, it replaces the mean cost in
// Redis.
func (s *shared) addSpent(ctx context.Context, a erc8004.Agent, spent [kindCount]float64, local known) (known, error) {
	before, err := s.replaceUsage(ctx, a, versioned.ReadOnly, versioned.Value{})
	for err == nil { // until no other worker was faster
		sum := local
		if before.known != nil {
			sum = known{cmp.Or(local.mean, before.known.mean), before.known.used}
			for i := range sum.used {
				sum.used[i] += spent[i]
			}
		}
		var next versioned.Value
		if next, err = versioned.New(storedUsage{sum.mean, sum.used, before.now}); err != nil {
			break
		}
		before, err = s.replaceUsage(ctx, a, before.version, next)
		if err == nil && before.replaced {
			return sum, nil
		}
	}
	return known{}, err
}

// usageBefore is what replaceUsage found in Redis.
type usageBefore struct {
	*known          // refilled up to now; nil: Redis has no usage
	version  string // of the stored usage
	now      int64  // time of Redis in µs since 1970
	replaced bool   // the other fields are zero
}

// replaceUsage replaces an agent's usage in Redis, if it has the version old.
func (s *shared) replaceUsage(ctx context.Context, a erc8004.Agent, old string, next versioned.Value) (
	usageBefore, error) {
	answer, err := versioned.Replace(ctx, s.client, remembered,
		versioned.Replacement{Key: agentKey(a), Old: old, New: next})
	if err != nil {
		return usageBefore{}, fmt.Errorf("count an agent's effort: %w", err)
	}
	if answer.Replaced {
		return usageBefore{replaced: true}, nil
	}
	before := usageBefore{version: answer.Before[0].Version, now: answer.Time}
	if s.now != nil {
		before.now = s.now()
	}
	var u storedUsage
	if answer.Before[0].Read(&u) && u.isPossible() {
		b := bucket{used: u.Used, at: u.At}
		b.addRefill(s.rules, before.now)
		before.known = &known{u.Mean, b.used}
	}
	return before, nil
}

// isPossible reports whether Herald may have written the usage. Another program may have written an impossible sum, and
// the agent would wait for years.
func (u *storedUsage) isPossible() bool {
	for _, x := range append(u.Used[:], u.Mean) {
		if !(x >= 0 && x <= 3600e6) {
			return false
		}
	}
	return true
}
