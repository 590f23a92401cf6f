package effort

import (
	"context"
	"crypto/sha256"
	_ "embed" // the script
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/agentherald/herald/internal/store"
	"github.com/redis/go-redis/v9"
)

// chargeSource is the script that adds to an agent's values in Redis and returns them (shared.runScript).
//
//go:embed lua/charge.lua
var chargeSource string

// remembered is how long Redis keeps an agent's values after its last charge. The used time refills much sooner, but
// the mean is useful for as long as a success counts as recent (store.RecentSuccess).
const remembered = time.Hour

// shared accesses the agents' values in Redis, to which all workers add.
type shared struct {
	client redis.UniversalClient
	script *redis.Script
	rules  rules
	now    func() int64 // µs; nil: Redis' own clock. Only tests set it
}

func newShared(client redis.UniversalClient, r rules) *shared {
	return &shared{client: client, script: redis.NewScript(chargeSource), rules: r}
}

// agentKey returns the Redis key of an agent's values. The key contains a hash of the agent, because anyone can
// register agents.
func agentKey(a store.Agent) string {
	hash := sha256.Sum256([]byte(a.FullName()))
	return "herald:effort:" + hex.EncodeToString(hash[:16])
}

// known is the usage of an agent: the mean cost of its latest attempts in µs, and the used worker time in µs for
// each kind of work (calls, files, …).
type known struct {
	mean float64
	used [kindCount]float64
}

// readSpent reads an agent's values from Redis. They are 0 if Redis has none.
func (s *shared) readSpent(ctx context.Context, a store.Agent) (known, error) {
	return s.runScript(ctx, a, "0", [kindCount]float64{}, known{})
}

// addSpent adds the charges in spent to an agent's values in Redis and returns the new values. The argument all
// contains the agent's values as this process knows them: the sum of all workers when Redis last answered, refilled
// since then, plus spent. If Redis has lost the agent's values, addSpent stores all.used instead of adding spent. If
// all.mean is not 0, it replaces the mean in Redis.
func (s *shared) addSpent(ctx context.Context, a store.Agent, spent [kindCount]float64, all known) (known, error) {
	return s.runScript(ctx, a, "1", spent, all)
}

// runScript runs charge.lua and returns the agent's values in Redis. add is "1" to add to these values (see addSpent),
// or "0" to read them only.
func (s *shared) runScript(ctx context.Context, a store.Agent, add string, spent [kindCount]float64, all known) (k known, _ error) {
	now := int64(0)
	if s.now != nil {
		now = s.now()
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	args := []any{now, number(s.rules.refill), remembered.Milliseconds(), number(all.mean), add}
	for _, parts := range [][kindCount]float64{spent, all.used} {
		for _, p := range parts {
			args = append(args, number(p))
		}
	}
	got, err := s.script.Run(ctx, s.client, []string{agentKey(a)}, args...).StringSlice()
	if err != nil {
		return k, fmt.Errorf("count an agent's effort: %w", err)
	}
	if len(got) != 1+int(kindCount) {
		return k, fmt.Errorf("count an agent's effort: Redis answers %d numbers instead of %d", len(got), 1+kindCount)
	}
	for i, text := range got {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || !(x >= 0 && x < 1e12) {
			return known{}, fmt.Errorf("count an agent's effort: Redis answers %.40q instead of a number", text)
		}
		if i == 0 {
			k.mean = x
		} else {
			k.used[i-1] = x
		}
	}
	return k, nil
}
