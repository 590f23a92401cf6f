//go:build chaos

package trial

import "testing"

// Twenty agents live at one origin; one hangs, one answers 500. The other 18 see no open breaker, and their p75, from acceptance to the
// call, is at most 1.5 times what it is without.
//
// Calls may take so long that the hanging agent's breaker stays closed while it is measured (less than ten end): it has the places that
// are its share all the time. What a busy machine adds to each call counts against the origin's places, so the rate is halved where the processors have no rest.
// One producer makes the load: several would send in step, and bursts of as many calls as the origin has places need all of them.
func TestChaosOneOrigin(t *testing.T) {
	const agents, rest = 20, 0.2
	c := comparison{
		name: "20 agents of one origin, one hangs, one answers 500",
		of: func(rate float64, bad ...Behaviour) load {
			return load{agents: agents, start: StartNeighbours, producers: 1, perSecond: rate, bad: bad, watched: true,
				workers: []string{"HERALD_CALL_TIMEOUT=6s", "HERALD_LEASE=20s"}}
		},
		bad: []Behaviour{hanging, func(Call) Act { return Act{How: Refuse, Status: 500} }},
		check: func(t *testing.T, m measuredLoad) {
			for agent := 2; agent < agents; agent++ {
				if m.open[agent] > 0 {
					t.Errorf("agent %d, which is well, waited for a breaker", agent)
				}
			}
			if m.open[1] == 0 {
				t.Error("the breaker of the agent that answers 500 did not open")
			}
			if m.failed < 12 { // ten until the breaker opens, and two that hang
				t.Errorf("%d calls failed", m.failed)
			}
		},
	}
	// 40 of the 100 calls a second that the origin may have; or half of it, rest or not.
	if c.compare(t, 2, rest) < rest {
		c.compare(t, 1, 0)
	}
}
