package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
)

// Live is state that only a running worker has.
type Live interface {
	// Minutes returns the outcomes of all workers for each of the last n minutes, oldest first.
	Minutes(ctx context.Context, n int) ([]throughput.Minute, error)
	// Hours returns the same for each of the last n hours.
	Hours(ctx context.Context, n int) ([]throughput.Minute, error)
	// Breaker returns the state of an endpoint's circuit breaker in this worker: closed, open or half_open; empty if
	// unknown.
	Breaker(endpoint string) string
	// Effort returns an agent's effort budget and its use. It returns nil if budgets are off or the use is unknown.
	Effort(ctx context.Context, agent erc8004.Agent) *effort.Usage
	// OpenBreakers returns how many circuit breakers are open or half open in this worker.
	OpenBreakers() int
	// Missing returns the services and chains that this worker cannot use now, each with the reason.
	Missing() map[string]string
}

// Overview summarizes the state of Herald.
type Overview struct {
	At             time.Time                `json:"at"`
	Open           map[outcome.Status]int64 `json:"open"`           // deliveries that are not final, by status
	OverdueSeconds float64                  `json:"overdueSeconds"` // delay of the most overdue delivery
	Stuck          []Stuck                  `json:"stuck"`          // counts of held and overdue deliveries, by reason
	Minutes        []throughput.Minute      `json:"minutes"`        // the last hour of all workers, oldest first
	Hours          []throughput.Minute      `json:"hours"`          // the last week by hour, oldest first
	LastHour       LastHour                 `json:"lastHour"`
	OpenBreakers   int                      `json:"openBreakers"` // of this worker; open or half open
	Agents         map[string]int64         `json:"agents"`       // by state
	TokensSoon     int64                    `json:"tokensExpiringSoon"`
	TokensExpired  int64                    `json:"tokensExpired"`
	Chains         []ChainProgress          `json:"chains"`             // the chains that are followed
	Problems       []string                 `json:"problems,omitempty"` // services and data that this worker cannot use
	Workers        int                      `json:"workers"`            // running workers
	EndedLastHour  map[outcome.Status]int64 `json:"endedLastHour"`      // ended without success, by status
	Needs          []Need                   `json:"needs"`              // states that need a person
}

// Stuck counts deliveries that do not progress, for one reason.
type Stuck struct {
	Status outcome.Status `json:"status"` // held; with every other status they are overdue
	Reason string         `json:"reason,omitempty"`
	Count  int64          `json:"count"`
}

// LastHour sums up the last hour. The percentiles are seconds from acceptance to the agent's answer, of deliveries that
// were delivered.
type LastHour struct {
	Outcomes   map[outcome.Status]int64 `json:"outcomes"`
	P50Seconds *float64                 `json:"p50Seconds,omitempty"` // missing if nothing was delivered
	P95Seconds *float64                 `json:"p95Seconds,omitempty"`
}

// ChainProgress is how far a contract was read at the last move of its cursor.
type ChainProgress struct {
	ChainID   uint64    `json:"chainId"`
	Contract  string    `json:"contract"`
	NextBlock uint64    `json:"nextBlock"`
	HeadBlock uint64    `json:"headBlock,omitempty"`
	LagBlocks uint64    `json:"lagBlocks"`
	MovedAt   time.Time `json:"movedAt"`

	StalledSince *time.Time `json:"stalledSince,omitempty"` // since when its blocks cannot be read
}

// overviewMinutes and overviewHours are how many of them an overview covers.
const overviewMinutes, overviewHours = 60, 7 * 24

// overviewFresh is how long an overview is cached: Postgres is read at most once in this time, however many requests
// arrive.
const overviewFresh = 2 * time.Second

// overviewCache caches the overview of a worker, or the error of the last reading.
type overviewCache struct {
	mu    sync.Mutex // held while the overview is read: other callers wait for the same reading
	value Overview
	err   error
	read  time.Time
}

// ShowOverview returns the current overview. In a worker it may be cached for overviewFresh, and Problems names the
// services and chains that the worker cannot use. It returns an error if Postgres cannot be read.
func (o *Operator) ShowOverview(ctx context.Context) (Overview, error) {
	if o.Live == nil {
		return o.readOverview(ctx)
	}
	c := &o.overview
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.read) >= overviewFresh {
		// Other callers wait for it too, so it has its own deadline and is not a read of this caller.
		c.value, c.err = o.readOverview(WithCaller(context.WithoutCancel(ctx), Caller{}))
		c.read = time.Now()
	}
	return c.value, c.err
}

func (o *Operator) readOverview(ctx context.Context) (v Overview, err error) {
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		v, err = ReadState(ctx, st)
		return err
	})
	if err != nil || o.Live == nil {
		return v, err
	}
	v.OpenBreakers = o.Live.OpenBreakers()
	missing := o.Live.Missing()
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		v.Problems = append(v.Problems, name+" cannot be used: "+strings.TrimPrefix(missing[name], name+": "))
	}
	v.Needs = v.NeedsAttention()
	minutes, err := o.Live.Minutes(ctx, overviewMinutes)
	hours, hoursErr := o.Live.Hours(ctx, overviewHours)
	if err := errors.Join(err, hoursErr); err != nil {
		v.Problems = append(v.Problems, fmt.Sprintf("Redis does not return the figures of the last hours: %v", err))
		return v, nil
	}
	v.Minutes, v.Hours = minutes, hours
	v.sumMinutes()
	return v, nil
}

// ReadState returns the part of an overview that Postgres has.
func ReadState(ctx context.Context, st *Session) (Overview, error) {
	v := Overview{At: time.Now().UTC(), Stuck: []Stuck{}, Chains: []ChainProgress{},
		LastHour: LastHour{Outcomes: map[outcome.Status]int64{}}, Minutes: []throughput.Minute{},
		Hours: []throughput.Minute{}}
	depth, depthErr := st.Depth(ctx)
	stuck, stuckErr := st.ListStuck(ctx)
	tokens, tokensErr := st.TokensExpiring(ctx, auth.ExpiryWarning)
	agents, agentsErr := st.CountAgents(ctx)
	ended, endedErr := st.CountEnded(ctx, v.At.Add(-time.Hour))
	workers, workersErr := st.Workers(ctx)
	cursors, cursorsErr := st.Cursors(ctx, 0)
	if err := errors.Join(depthErr, stuckErr, tokensErr, agentsErr, endedErr, workersErr, cursorsErr); err != nil {
		return v, err
	}
	v.EndedLastHour, v.Workers = ended, len(workers)
	v.Open, v.OverdueSeconds, v.Agents = depth.ByStatus, depth.Overdue.Seconds(), agents
	v.TokensSoon, v.TokensExpired = int64(tokens.Soon), int64(tokens.Expired)
	for _, s := range stuck {
		v.Stuck = append(v.Stuck, Stuck{s.Status, string(s.Reason), s.Count})
	}
	for _, c := range cursors {
		if c.End != nil {
			continue // a backfill ends by itself
		}
		p := ChainProgress{ChainID: c.ChainID, Contract: c.Contracts, NextBlock: c.Next,
			HeadBlock: c.Head, MovedAt: c.MovedAt, StalledSince: c.StalledSince}
		if c.Head >= c.Next {
			p.LagBlocks = c.Head - c.Next + 1
		}
		v.Chains = append(v.Chains, p)
	}
	v.Needs = v.NeedsAttention()
	return v, nil
}

// sumMinutes sets the sums of the last hour.
func (v *Overview) sumMinutes() {
	var latency throughput.Histogram
	for _, m := range v.Minutes {
		for status, n := range m.Outcomes {
			v.LastHour.Outcomes[status] += n
		}
		latency.Add(m.Latency)
	}
	if p50, ok := latency.Quantile(0.5); ok {
		p95, _ := latency.Quantile(0.95)
		v.LastHour.P50Seconds, v.LastHour.P95Seconds = &p50, &p95
	}
}
