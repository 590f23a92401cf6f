package operator

import (
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestNeedsAttention checks the order of the needs and their commands, and that an idle installation needs nothing.
func TestNeedsAttention(t *testing.T) {
	t.Parallel()
	heraldtest.Equal(t, "needs of an idle installation",
		len((Overview{Open: map[outcome.Status]int64{outcome.Queued: 0}}).NeedsAttention()), 0)
	var got []string
	at := time.Date(2026, 11, 27, 21, 30, 0, 0, time.UTC)
	for _, n := range (Overview{Open: map[outcome.Status]int64{outcome.Queued: 3}, OpenBreakers: 2, TokensSoon: 1, TokensExpired: 4,
		Chains: []ChainProgress{{ChainID: 1, MovedAt: at}, {ChainID: 8453, MovedAt: at, StalledSince: &at},
			{ChainID: 10, MovedAt: at, StalledSince: &at}, {ChainID: 10, MovedAt: at.Add(time.Hour)}}, // a contract that is no longer read
		Stuck:         []Stuck{{outcome.Held, "auth_required", 1}, {outcome.Waiting, "timeout", 5}},
		EndedLastHour: map[outcome.Status]int64{outcome.Rejected: 21, outcome.Cancelled: 50},
		Agents:        map[string]int64{records.StateFailed: 7, records.StateConnected: 9}}).NeedsAttention() {
		got = append(got, n.About+": "+n.Text+" ("+n.Command+")")
	}
	want := []string{
		"workers: no worker is running, and 3 deliveries are open (worker)",
		"chains: chain 8453 is not read since 2026-11-27 21:30:00 (worker chain show 8453)",
		"deliveries: 21 deliveries were rejected in the last hour (worker delivery list --wide --status rejected --ended-since 1h)",
		"deliveries: 5 deliveries are overdue for more than a minute, and no worker takes them: waiting timeout (worker delivery list --wide --status waiting --reason timeout)",
		"deliveries: 1 delivery is held: auth_required (worker delivery list --wide --status held --reason auth_required)",
		"agents: 7 agents failed in the latest call (worker agent list --state failed)",
		"agents: 2 circuit breakers are open: Herald pauses the calls to an endpoint that fails (worker agent list --sort failing)",
		"tokens: 4 stored tokens are expired (worker token list)",
		"tokens: 1 stored token is expiring within 7 days (worker token list)",
	}
	heraldtest.Equal(t, "the needs", got, want)
}
