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

// chargeSource is the script that adds to an agent's usage (known) in Redis and returns it (shared.runScript).
//
//go:embed lua/charge.lua
var chargeSource string

// remembered is how long Redis keeps an agent's usage (known) after its last charge. The bucket refills much sooner,
// but the mean cost of an attempt is useful for as long as a success counts as recent (store.RecentSuccess).
const remembered = time.Hour

// shared accesses the usage of each agent (known) in Redis, to which all workers add.
type shared struct {
	client redis.Scripter
	script *redis.Script
	rules  rules
	now    func() int64 // µs; nil: Redis' own clock. Only tests set it
}

func newShared(client redis.Scripter, r rules) *shared {
	return &shared{client: client, script: redis.NewScript(chargeSource), rules: r}
}

// agentKey returns the Redis key of an agent's usage (known). The key contains a hash of the agent's name, so that all
// keys have the same length.
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

// readSpent reads an agent's usage from Redis. It returns zeros if Redis has none.
func (s *shared) readSpent(ctx context.Context, a store.Agent) (known, error) {
	return s.runScript(ctx, a, "0", [kindCount]float64{}, known{})
}

// addSpent adds spent, the worker time that this process charged to an agent, to the agent's usage in Redis, and
// returns the new usage. local is the usage as this process knows it, including spent. If Redis has lost the agent's
// usage, addSpent stores local.used instead of adding spent. If local.mean is not 0, it replaces the mean cost in
// Redis.
func (s *shared) addSpent(ctx context.Context, a store.Agent, spent [kindCount]float64, local known) (known, error) {
	return s.runScript(ctx, a, "1", spent, local)
}

// runScript runs charge.lua and returns the agent's usage in Redis. add is "1" to add to that usage (see addSpent), or
// "0" to read it only.
func (s *shared) runScript(ctx context.Context, a store.Agent, add string, spent [kindCount]float64,
	local known) (k known, _ error) {
	now := int64(0)
	if s.now != nil {
		now = s.now()
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	args := []any{now, number(s.rules.refill), remembered.Milliseconds(), number(local.mean), add}
	for _, parts := range [][kindCount]float64{spent, local.used} {
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
