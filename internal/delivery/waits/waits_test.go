package waits

import (
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestBounded: the memory for a summary is bounded, for any number of agents.
func TestBounded(t *testing.T) {
	t.Parallel()
	s, log := &Summary{}, &heraldtest.Log{}
	for i := range 3 * MaxAgents {
		s.Add(erc8004.Agent{ChainID: 8453, ID: strconv.Itoa(i)}, "throttled")
	}
	heraldtest.Equal(t, "agents that are remembered, and all others", len(s.counts), MaxAgents+1)
	s.logCounts(log.Logger(slog.LevelInfo), time.Minute)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != MaxAgents+1 || !strings.Contains(lines[0], `agent="all others"`) || !strings.Contains(lines[0], "count=200 ") {
		t.Errorf("%d lines, the first %s", len(lines), lines[0])
	}
}
