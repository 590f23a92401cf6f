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
	"github.com/agentherald/herald/internal/erc8004"
)

const (
	// Interval is how often Log logs.
	Interval = time.Minute
	// MaxAgents bounds the agents that have a line of their own in one summary. All other agents share one line.
	MaxAgents = 100
)

// Summary counts the attempts since the last log lines. It is safe for concurrent use. The zero value is empty.
type Summary struct {
	mu     sync.Mutex
	counts map[string]map[string]int // number of attempts by agent (or others) and reason
}

// others is the name of all agents beyond MaxAgents together.
const others = "all others"

// Add counts an attempt.
func (s *Summary) Add(agent erc8004.Agent, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := agent.String()
	if s.counts[name] == nil && len(s.counts) >= MaxAgents {
		name = others
	}
	if s.counts == nil {
		s.counts = map[string]map[string]int{}
	}
	if s.counts[name] == nil {
		s.counts[name] = map[string]int{}
	}
	s.counts[name][reason]++
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
	s.mu.Lock()
	counts := s.counts
	s.counts = nil
	s.mu.Unlock()
	busiest := func(a, b string) int { return sumCounts(counts[b]) - sumCounts(counts[a]) }
	for _, agent := range slices.SortedFunc(maps.Keys(counts), busiest) {
		var reasons []any
		for _, r := range slices.Sorted(maps.Keys(counts[agent])) {
			reasons = append(reasons, slog.Int(r, counts[agent][r]))
		}
		logger.Info("deliveries put off, nothing was attempted", "agent", agent, "within", within.Round(time.Second),
			"count", sumCounts(counts[agent]), slog.Group("reasons", reasons...))
	}
}

func sumCounts(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
