package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/store"
)

const (
	// summaryInterval is how often attempts at which nothing was attempted are told.
	summaryInterval = time.Minute
	// maxSummarizedAgents is how many agents have a line of their own in one summary; the others share one.
	maxSummarizedAgents = 100
)

// waitSummary counts attempts at which nothing was attempted: they ended in a wait that costs none (throttled,
// agent_busy …). In a flood they are most of what happens, and each of them alone says nothing. Safe for concurrent
// use.
type waitSummary struct {
	mu     sync.Mutex
	agents map[store.Agent]map[string]int // by reason
	others map[string]int                 // of agents beyond maxSummarized
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

// drain gives away what was counted and begins anew.
func (s *waitSummary) drain() (agents map[store.Agent]map[string]int, others map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	agents, others = s.agents, s.others
	s.agents, s.others = map[store.Agent]map[string]int{}, map[string]int{}
	return agents, others
}

// SummarizeWaits tells once a minute, and when ctx ends, how many attempts put their delivery off before anything was
// attempted: one line per agent, with a count per reason. ticks: nil for a minute's.
func (e *Executor) SummarizeWaits(ctx context.Context, ticks <-chan time.Time) {
	if ticks == nil {
		ticker := time.NewTicker(summaryInterval)
		defer ticker.Stop()
		ticks = ticker.C
	}
	for last := e.Now(); ; last = e.Now() {
		done := false
		select {
		case <-ctx.Done():
			done = true
		case <-ticks:
		}
		e.logWaits(e.Now().Sub(last))
		if done {
			return
		}
	}
}

func (e *Executor) logWaits(within time.Duration) {
	agents, others := e.waits.drain()
	busiest := func(a, b store.Agent) int { return sumCounts(agents[b]) - sumCounts(agents[a]) }
	for _, a := range slices.SortedFunc(maps.Keys(agents), busiest) {
		e.logAgentWaits(fmt.Sprintf("%d:%s", a.ChainID, a.ID), agents[a], within)
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
