package effort

import (
	"context"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// Usage is the state of an agent's effort budget, in seconds.
type Usage struct {
	Budget      float64 `json:"budgetSeconds"`         // capacity, and refill per minute
	Left        float64 `json:"leftSeconds"`           // negative: the agent has used more than the budget
	Calls       float64 `json:"callSeconds"`           // worker time used for tool calls and not refilled yet
	Connections float64 `json:"connectionSeconds"`     // the same for new connections, registrations and access tokens
	Listings    float64 `json:"listingSeconds"`        // the same for tools/list requests
	Fetches     float64 `json:"fetchSeconds"`          // the same for fetching the files of feedback and responses
	Mean        float64 `json:"meanSeconds,omitempty"` // mean cost of an attempt, without fetching files; 0: unknown
	UnderWay    int     `json:"underWay,omitempty"`    // running attempts of this worker
}

// String returns the usage on one line: "12.3 s left of 60 s a minute; used: calls 40 s, connections 7.7 s".
func (u Usage) String() string {
	used := describeUsed([kindCount]float64{u.Calls * 1e6, u.Connections * 1e6, u.Listings * 1e6, u.Fetches * 1e6, 0})
	s := fmt.Sprintf("%s left of %s a minute; used: %s", formatMicros(u.Left*1e6), formatMicros(u.Budget*1e6), used)
	if u.Mean > 0 {
		s += fmt.Sprintf("; an attempt takes %g s",
			time.Duration(u.Mean*float64(time.Second)).Round(10*time.Millisecond).Seconds())
	}
	return s
}

func newUsage(r rules, k known) *Usage {
	const second = 1e6
	return &Usage{Budget: r.size / second, Left: (r.size - sumKinds(k.used)) / second, Calls: k.used[Calls] / second,
		Connections: k.used[Connections] / second, Listings: k.used[Listings] / second,
		Fetches: (k.used[Fetches] + k.used[ResponseFetches]) / second, Mean: k.mean / second}
}

// Usage returns the state of an agent's effort budget, from this worker's memory or else from Redis. It returns nil if
// b is nil, or if this worker does not know the agent and cannot read Redis. An agent that Redis does not know has a
// full budget.
func (b *Budgets) Usage(ctx context.Context, agent erc8004.Agent) *Usage {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	a, met := b.accounts.Peek(agent)
	ask := !met && !b.isAway()
	if met {
		defer b.mu.Unlock()
		a.addRefill(b.rules, b.readClock())
		u := newUsage(b.rules, known{a.mean, a.used})
		u.UnderWay = len(a.running)
		return u
	}
	b.mu.Unlock()
	if !ask {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	k, err := b.shared.readSpent(ctx, agent)
	if err != nil {
		return nil
	}
	return newUsage(b.rules, k)
}

// ReadUsage reads the state of an agent's effort budget from Redis. Charges that workers have not added there yet are
// missing: at most a sixtieth of a budget per worker. An agent that Redis does not know has a full budget.
func ReadUsage(ctx context.Context, client redis.Scripter, size time.Duration,
	agent erc8004.Agent) (*Usage, error) {
	r := newRules(float64(size.Microseconds()))
	k, err := newShared(client, r).readSpent(ctx, agent)
	if err != nil {
		return nil, err
	}
	return newUsage(r, k), nil
}

var (
	spentSeconds = prometheus.NewDesc("herald_effort_seconds_total",
		"Worker time that agents were charged for, by what they spent it on.", []string{"what"}, nil)
	agentsOver = prometheus.NewDesc("herald_agents_over_budget",
		"Agents whose effort budget is used up, as this worker knows it.", nil, nil)
)

// Describe implements prometheus.Collector: it sends the descriptions of the two metrics that Collect sends.
func (b *Budgets) Describe(ch chan<- *prometheus.Desc) { ch <- spentSeconds; ch <- agentsOver }

// Collect implements prometheus.Collector: it sends the worker time that this process charged for each kind of work,
// and the number of agents whose budget is used up.
func (b *Budgets) Collect(ch chan<- prometheus.Metric) {
	b.mu.Lock()
	totals, over, now := b.totals, 0, b.readClock()
	for _, a := range b.accounts.Values() {
		if a.addRefill(b.rules, now); a.sumUsed() >= b.rules.size {
			over++
		}
	}
	b.mu.Unlock()
	for w := range kindCount {
		ch <- prometheus.MustNewConstMetric(spentSeconds, prometheus.CounterValue, totals[w]/1e6, w.String())
	}
	ch <- prometheus.MustNewConstMetric(agentsOver, prometheus.GaugeValue, float64(over))
}
