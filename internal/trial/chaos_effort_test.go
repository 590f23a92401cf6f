//go:build chaos

package trial

import (
	"testing"
	"time"
)

// Of 500 agents 50 answer after 25 s, and get more events than the slots of both workers could call them for. The p75 of the other 450,
// from acceptance to the call, is at most 1.5 times what it is without. Every agent has answered one before: how slow agents get the
// newcomers' slots only is TestChaosSilentOrigins.
func TestChaosSlowAgents(t *testing.T) {
	const agents, slow, perSecond = 500, 50, 0.2
	bad := make([]Behaviour, slow)
	for i := range bad {
		bad[i] = Taking(25 * time.Second)
	}
	c := comparison{name: "50 of 500 agents take 25 s", bad: bad, of: func(rate float64, bad ...Behaviour) load {
		return load{agents: agents, start: StartAgents, producers: 1, perSecond: rate, bad: bad, met: true,
			workers: []string{"HERALD_CALL_TIMEOUT=30s", "HERALD_LEASE_MARGIN=1m", "HERALD_LEASE=2m"}}
	}}
	c.compare(t, perSecond, 0)
}
