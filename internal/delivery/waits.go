package delivery

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
	// summaryInterval is how often SummarizeWaits logs.
	summaryInterval = time.Minute
	// maxSummarizedAgents bounds the agents that have a line of their own in one summary. All other agents share one
	// line.
	maxSummarizedAgents = 100
)

// waitSummary counts attempts that ended in a free wait without a call (throttled, agent_busy, …). Under load most
// attempts end like this, so a log line for each would be useless. It is safe for concurrent use.
type waitSummary struct {
	mu     sync.Mutex
	agents map[store.Agent]map[string]int // number of attempts by reason
	others map[string]int                 // the same for all agents beyond maxSummarizedAgents together
}

func newWaitSummary() *waitSummary {
	return &waitSummary{agents: map[store.Agent]map[string]int{}, others: map[string]int{}}
}

func (s *waitSummary) add(agent store.Agent, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := s.agents[agent]
	switch {
	case counts != nil:
	case len(s.agents) < maxSummarizedAgents:
		counts = map[string]int{}
		s.agents[agent] = counts
	default:
		counts = s.others
	}
	counts[reason]++
}

// drain returns the counts of s and resets them.
func (s *waitSummary) drain() (agents map[store.Agent]map[string]int, others map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	agents, others = s.agents, s.others
	s.agents, s.others = map[store.Agent]map[string]int{}, map[string]int{}
	return agents, others
}

// SummarizeWaits logs, once a minute and when ctx ends, how many attempts ended in a free wait without a call. It logs
// one line per agent, with a count per reason. It returns when ctx ends.
func (e *Executor) SummarizeWaits(ctx context.Context) {
	last := e.Now()
	summarize := func() {
		e.logWaits(e.Now().Sub(last))
		last = e.Now()
	}
	for range loop.Every(ctx, summaryInterval) {
		summarize()
	}
	summarize()
}

// logWaits logs the counts and resets them: one line per agent, the agents with most waits first. within is how long
// the waits were counted.
func (e *Executor) logWaits(within time.Duration) {
	agents, others := e.waits.drain()
	busiest := func(a, b store.Agent) int { return sumCounts(agents[b]) - sumCounts(agents[a]) }
	for _, a := range slices.SortedFunc(maps.Keys(agents), busiest) {
		e.logAgentWaits(a.String(), agents[a], within)
	}
	if len(others) > 0 {
		e.logAgentWaits("all others", others, within)
	}
}

func (e *Executor) logAgentWaits(agent string, counts map[string]int, within time.Duration) {
	var reasons []any
	for _, r := range slices.Sorted(maps.Keys(counts)) {
		reasons = append(reasons, slog.Int(r, counts[r]))
	}
	e.Logger.Info("deliveries put off, nothing was attempted", "agent", agent, "within", within.Round(time.Second),
		"count", sumCounts(counts), slog.Group("reasons", reasons...))
}

func sumCounts(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
