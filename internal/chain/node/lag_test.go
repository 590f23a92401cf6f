package node

import (
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/chaintest"
)

// TestLagOfAQuietChain: some chains make blocks only for transactions. There the lag is the age of the first unread
// block, not the time since the block before it.
func TestLagOfAQuietChain(t *testing.T) {
	t.Parallel()
	for chainID, want := range map[uint64]time.Duration{42161: 5 * time.Second, 8453: time.Hour} {
		node := &chaintest.Script{Chain: chainID, Head: 100, Pace: time.Hour, HeadAt: time.Now().Add(-5 * time.Second)}
		lag, err := newScriptedPool(t, node).Lag(t.Context(), 99)
		if err != nil || lag.Blocks != 1 || (lag.Time-want).Abs() > 2*time.Second {
			t.Errorf("chain %d: %+v, %v; want %s", chainID, lag, err, want)
		}
	}
}
