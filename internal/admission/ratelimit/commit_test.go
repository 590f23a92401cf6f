package ratelimit

import (
	"testing"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestFasterWorkers: a worker does not acquire a permit of another worker, even if other workers replace the origin's
// state before each of its tries.
func TestFasterWorkers(t *testing.T) {
	t.Parallel()
	rdb := client(t, heraldtest.RealRedis(t))
	adapt := func(c *Config) { c.Inflight, c.MaxWaiters = 1, -1 }
	fast := newLimits(t, rdb, adapt)
	p := enter(t, fast, site, "fast")
	tries := 0
	slow := newLimits(t, watched{rdb, func() {
		tries++
		fast.takeStep(p.endpoint, func(m *originState, _ *circuit, _ int64) { m.TAT++ })
	}}, adapt)
	refused(t, slow, site, "slow", outcome.AgentBusy)
	heraldtest.Equal(t, "tries", tries, maxTries)
	heraldtest.Equal(t, "there is an outage", slow.Stats().Local, false)
	p.Release(OK)
	enter(t, slow, site, "slow").Release(OK)
}
