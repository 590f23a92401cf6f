// Package waits counts attempts that ended in a free wait without a call (throttled, agent_busy, …), and logs the
// counts once a minute. Under load most attempts end like this, so a log line for each would be useless.
//
// Invariant: the memory is bounded for any number of agents.
package waits

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/store"
)

const (
	// Interval is how often Log logs.
	Interval = time.Minute
	// MaxAgents bounds the agents that have a line of their own in one summary. All other agents share one line.
	MaxAgents = 100
)

// Summary counts the attempts since the last log lines. It is safe for concurrent use.
type Summary struct {
	mu     sync.Mutex
	agents map[store.Agent]map[string]int // number of attempts by reason
	others map[string]int                 // the same for all agents beyond MaxAgents together
}

// NewSummary returns an empty Summary.
func NewSummary() *Summary {
	return &Summary{agents: map[store.Agent]map[string]int{}, others: map[string]int{}}
}

// Add counts an attempt.
func (s *Summary) Add(agent store.Agent, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := s.agents[agent]
	switch {
	case counts != nil:
	case len(s.agents) < MaxAgents:
		counts = map[string]int{}
		s.agents[agent] = counts
	default:
		counts = s.others
	}
	counts[reason]++
}

// drainCounts returns the counts of s and resets them.
func (s *Summary) drainCounts() (agents map[store.Agent]map[string]int, others map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	agents, others = s.agents, s.others
	s.agents, s.others = map[store.Agent]map[string]int{}, map[string]int{}
	return agents, others
}

// Log logs, once a minute and when ctx ends, how many attempts ended in a free wait without a call. It logs one line
// per agent, with a count per reason. It returns when ctx ends.
func (s *Summary) Log(ctx context.Context, logger *slog.Logger, now func() time.Time) {
	last := now()
	summarize := func() {
		s.logCounts(logger, now().Sub(last))
		last = now()
	}
	for range loop.Every(ctx, Interval) {
		summarize()
	}
	summarize()
}

// logCounts logs the counts and resets them: one line per agent, the agents with most waits first. within is how long
// the waits were counted.
func (s *Summary) logCounts(logger *slog.Logger, within time.Duration) {
	agents, others := s.drainCounts()
	busiest := func(a, b store.Agent) int { return sumCounts(agents[b]) - sumCounts(agents[a]) }
	for _, a := range slices.SortedFunc(maps.Keys(agents), busiest) {
		logAgent(logger, a.String(), agents[a], within)
	}
	if len(others) > 0 {
		logAgent(logger, "all others", others, within)
	}
}

func logAgent(logger *slog.Logger, agent string, counts map[string]int, within time.Duration) {
	var reasons []any
	for _, r := range slices.Sorted(maps.Keys(counts)) {
		reasons = append(reasons, slog.Int(r, counts[r]))
	}
	logger.Info("deliveries put off, nothing was attempted", "agent", agent, "within", within.Round(time.Second),
		"count", sumCounts(counts), slog.Group("reasons", reasons...))
}

func sumCounts(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
