//go:build chaos

package trial

import (
	"testing"
	"time"
)

// TestChaosSlowAgents: 50 of 500 agents answer after 25 s, and get more events than the slots of both workers suffice
// for. The p75 of the other 450, from acceptance to the call, is at most 1.5 times the p75 without slow agents. Every
// agent has answered before; TestChaosSilentOrigins tests agents that never answered, which share the newcomers' slots.
func TestChaosSlowAgents(t *testing.T) {
	const agents, slow = 500, 50
	bad := make([]Behaviour, slow)
	for i := range bad {
		bad[i] = Taking(25 * time.Second)
	}
	c := comparison{name: "50 of 500 agents take 25 s", bad: bad, of: func(bad ...Behaviour) load {
		return load{agents: agents, start: StartAgents, producers: 1, perSecond: 0.1, slots: 16, bad: bad, met: true,
			workers: []string{"HERALD_CALL_TIMEOUT=30s", "HERALD_LEASE_MARGIN=1m", "HERALD_LEASE=2m"}}
	}}
	c.compare(t)
}
