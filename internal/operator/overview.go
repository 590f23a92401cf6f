package operator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/delivery/effort"
	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/store"
)

// Live is what only a running worker knows.
type Live interface {
	// Minutes are the outcomes of all workers, minute by minute, oldest first, for the last n minutes.
	Minutes(ctx context.Context, n int) ([]throughput.Minute, error)
	// Breaker is how the breaker of an endpoint stands as this worker saw it last: closed, open, half_open, or empty.
	Breaker(endpoint string) string
	// Effort is what is left of an agent's effort budget, and what ate it. nil: there are no budgets, or nobody knows.
	Effort(ctx context.Context, agent store.Agent) *effort.Usage
	// OpenBreakers is how many endpoints this worker leaves alone for now.
	OpenBreakers() int
}

// Overview is how Herald is doing.
type Overview struct {
	At             time.Time              `json:"at"`
	Open           map[store.Status]int64 `json:"open"`           // deliveries that are not final, by status
	OverdueSeconds float64                `json:"overdueSeconds"` // how late the most overdue one is
	Stuck          []Stuck                `json:"stuck"`          // what is held or overdue, by reason
	Minutes        []Minute               `json:"minutes"`        // the last hour of all workers, oldest first
	LastHour       LastHour               `json:"lastHour"`
	OpenBreakers   int                    `json:"openBreakers"` // of this worker
	Agents         map[string]int64       `json:"agents"`       // by state
	TokensSoon     int64                  `json:"tokensExpiringSoon"`
	TokensExpired  int64                  `json:"tokensExpired"`
	Chains         []ChainProgress        `json:"chains"` // that are followed
	Problems       []string               `json:"problems,omitempty"`
}

// Stuck is how many deliveries do not move, for one reason.
type Stuck struct {
	Status store.Status `json:"status"` // held; others are overdue
	Reason string       `json:"reason,omitempty"`
	Count  int64        `json:"count"`
}

// Minute is what a minute's attempts came to.
type Minute struct {
	At       time.Time              `json:"at"`
	Outcomes map[store.Status]int64 `json:"outcomes"`
}

// LastHour sums the last hour up. Seconds are from acceptance to the agent's answer, of what was delivered.
type LastHour struct {
	Outcomes   map[store.Status]int64 `json:"outcomes"`
	P50Seconds *float64               `json:"p50Seconds,omitempty"` // none: nothing was delivered
	P95Seconds *float64               `json:"p95Seconds,omitempty"`
}

// ChainProgress is how far a chain is read, as its follower noted it last.
type ChainProgress struct {
	ChainID   uint64    `json:"chainId"`
	Follower  string    `json:"follower"`
	NextBlock uint64    `json:"nextBlock"`
	HeadBlock uint64    `json:"headBlock,omitempty"`
	LagBlocks uint64    `json:"lagBlocks"`
	MovedAt   time.Time `json:"movedAt"`
}

// overviewMinutes is how far back the minutes go.
const overviewMinutes = 60

const (
	overviewFresh = 2 * time.Second  // however many look, Postgres counts once in this time
	overviewStale = 15 * time.Second // who comes while it counts gets what was counted this long ago at most
)

// overviewCache keeps the overview of a worker.
type overviewCache struct {
	reading chan struct{} // held by whoever reads it anew
	mu      sync.Mutex
	value   Overview
	err     error     // why the last reading failed
	failed  time.Time // when
}

// readCached is what was read in this time, if it was: a value, or why there is none.
func (c *overviewCache) readCached(younger time.Duration) (v Overview, err error, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil && time.Since(c.failed) < younger && c.failed.After(c.value.At) {
		return Overview{}, c.err, younger <= overviewFresh
	}
	return c.value, nil, time.Since(c.value.At) < younger
}

func (c *overviewCache) keepReading(v Overview, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err = err; err != nil {
		c.failed = time.Now()
		return
	}
	c.value = v
}

// ShowOverview tells how Herald is doing; in a worker, how it was a moment ago. What cannot be read is named in
// Problems.
func (o *Operator) ShowOverview(ctx context.Context) (v Overview, err error) {
	if o.Live == nil {
		return o.readOverview(ctx)
	}
	if v, err, ok := o.overview.readCached(overviewFresh); ok {
		return v, err
	}
	select {
	case o.overview.reading <- struct{}{}:
	default: // somebody reads it
		if v, err, ok := o.overview.readCached(overviewStale); ok {
			return v, err
		}
		select {
		case o.overview.reading <- struct{}{}:
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
	defer func() { <-o.overview.reading }()
	if v, err, ok := o.overview.readCached(overviewFresh); ok { // somebody was faster
		return v, err
	}
	v, err = o.readOverview(context.WithoutCancel(ctx)) // others wait for it too; it has a deadline of its own
	o.overview.keepReading(v, err)
	return v, err
}

func (o *Operator) readOverview(ctx context.Context) (v Overview, err error) {
	v = Overview{At: time.Now().UTC(), Stuck: []Stuck{}, Chains: []ChainProgress{},
		LastHour: LastHour{Outcomes: map[store.Status]int64{}}, Minutes: []Minute{}}
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error { return v.readStore(ctx, st) })
	if err != nil {
		return v, err
	}
	if o.Live == nil {
		return v, nil
	}
	v.OpenBreakers = o.Live.OpenBreakers()
	minutes, err := o.Live.Minutes(ctx, overviewMinutes)
	if err != nil {
		v.Problems = append(v.Problems, fmt.Sprintf("Redis does not tell what the last hour came to: %v", err))
		return v, nil
	}
	v.addMinutes(minutes)
	return v, nil
}

func (v *Overview) readStore(ctx context.Context, st *Session) error {
	depth, depthErr := st.Depth(ctx)
	stuck, stuckErr := st.ListStuck(ctx)
	tokens, tokensErr := st.TokensExpiring(ctx, tokenWarning)
	agents, agentsErr := st.CountAgents(ctx)
	cursors, cursorsErr := st.Cursors(ctx, 0)
	if err := errors.Join(depthErr, stuckErr, tokensErr, agentsErr, cursorsErr); err != nil {
		return err
	}
	v.Open, v.OverdueSeconds, v.Agents = depth.ByStatus, depth.Overdue.Seconds(), agents
	v.TokensSoon, v.TokensExpired = int64(tokens.Soon), int64(tokens.Expired)
	for _, s := range stuck {
		v.Stuck = append(v.Stuck, Stuck{s.Status, string(s.Reason), s.Count})
	}
	for _, c := range cursors {
		if c.End != nil {
			continue // a backfill ends by itself
		}
		p := ChainProgress{ChainID: c.ChainID, Follower: c.Follower, NextBlock: c.Next, HeadBlock: c.Head, MovedAt: c.MovedAt}
		if c.Head >= c.Next {
			p.LagBlocks = c.Head - c.Next + 1
		}
		v.Chains = append(v.Chains, p)
	}
	return nil
}

// tokenWarning is how long before it expires a token is warned of, as in the metrics.
const tokenWarning = 7 * 24 * time.Hour

func (v *Overview) addMinutes(minutes []throughput.Minute) {
	var latency throughput.Histogram
	for _, m := range minutes {
		shown := Minute{At: m.At, Outcomes: map[store.Status]int64{}}
		for status, n := range m.Outcomes {
			shown.Outcomes[status] += n
			v.LastHour.Outcomes[status] += n
		}
		v.Minutes = append(v.Minutes, shown)
		latency.Add(m.Latency)
	}
	if p50, ok := latency.Quantile(0.5); ok {
		p95, _ := latency.Quantile(0.95)
		v.LastHour.P50Seconds, v.LastHour.P95Seconds = &p50, &p95
	}
}
