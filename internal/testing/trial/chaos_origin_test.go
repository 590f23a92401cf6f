//go:build chaos

package trial

import "testing"

// TestChaosOneOrigin: twenty agents have one origin. One hangs and one answers 500. The other 18 see no open breaker,
// and their p75, from acceptance to the call, is at most 1.5 times the p75 without those two.
//
// The call timeout is so long that the hanging agent's breaker stays closed during the measurement (fewer than ten
// calls end), so it holds its share of the origin's slots all the time. The rate is 20 of the 100 calls a second that
// the origin may have. One producer makes the load. Several producers would send in step, and bursts of as many calls
// as the origin has slots would need all of them.
func TestChaosOneOrigin(t *testing.T) {
	const agents = 20
	c := comparison{
		name: "20 agents of one origin, one hangs, one answers 500",
		of: func(bad ...Behaviour) load {
			return load{agents: agents, start: StartNeighbours, producers: 1, perSecond: 1, slots: 32, bad: bad, watched: true,
				workers: []string{"HERALD_CALL_TIMEOUT=8s", "HERALD_LEASE=25s"}}
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
	c.compare(t)
}
