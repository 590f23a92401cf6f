package records

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/jackc/pgx/v5"
)

// latencyMiddles has the middles of the buckets in milliseconds, as an SQL array. The last one is its lower bound.
const latencyMiddles = `'{5,15,35,75,150,350,750,1500,3500,7500,15000,25000,45000,60000}'::float8[]`

// latencyBuckets is the length of AgentHour.Latency: one bucket for each of ledger.LatencyBounds, and one for slower
// calls.
const latencyBuckets = len(ledger.LatencyBounds) + 1

// AgentHour counts the calls of an agent that were recorded in one hour. An attempt counts as a call if it sent a call,
// completely or partly. It also counts if it failed earlier by the agent's fault, for example because it could not
// connect.
type AgentHour struct {
	Hour     time.Time // beginning of the hour, UTC
	Calls    int
	Failed   int                    // calls that failed by the agent's fault
	Failures map[outcome.Reason]int // failed calls by reason
	Latency  []int                  // calls that were sent, by bucket of their duration (ledger.LatencyBounds)
}

func (h *AgentHour) addFailures(r outcome.Reason, n int) {
	if h.Failures == nil {
		h.Failures = map[outcome.Reason]int{}
	}
	h.Failed += n
	h.Failures[r] += n
}

func (h *AgentHour) addLatency(bucket, n int) {
	if h.Latency == nil {
		h.Latency = make([]int, latencyBuckets)
	}
	h.Latency[bucket] += n
}

// CallSummary sums up an agent's calls since a time.
type CallSummary struct {
	Since    time.Time              `json:"since"` // beginning of an hour
	Calls    int                    `json:"calls"`
	Failed   int                    `json:"failed"`
	Failures map[outcome.Reason]int `json:"failures,omitempty"` // failed calls by reason
	// estimated median of the calls' durations; nil: no calls
	P50Ms *float64 `json:"p50Ms,omitempty"`
	P95Ms *float64 `json:"p95Ms,omitempty"` // estimated 95th percentile of the calls' durations
}

// SummarizeHours adds up the counts of hours. It ignores hours that ended before since.
func SummarizeHours(hours []AgentHour, since time.Time) CallSummary {
	sum := AgentHour{Hour: since.UTC().Truncate(time.Hour)}
	for _, h := range hours {
		if h.Hour.Before(sum.Hour) {
			continue
		}
		sum.Calls += h.Calls
		for r, n := range h.Failures {
			sum.addFailures(r, n)
		}
		for i, n := range h.Latency {
			sum.addLatency(i, n)
		}
	}
	return CallSummary{Since: sum.Hour, Calls: sum.Calls, Failed: sum.Failed, Failures: sum.Failures,
		P50Ms: interpolateQuantile(sum.Latency, 0.50), P95Ms: interpolateQuantile(sum.Latency, 0.95)}
}

// interpolateQuantile estimates the duration in milliseconds that a share q (0 to 1) of the calls does not exceed.
// latency is the histogram of the calls. interpolateQuantile assumes that the calls of a bucket are evenly distributed.
// For the last bucket it returns the lower bound. It returns nil if there are no calls.
func interpolateQuantile(latency []int, q float64) *float64 {
	total := 0
	for _, n := range latency {
		total += n
	}
	if total == 0 {
		return nil
	}
	rank, below, from := q*float64(total), 0.0, 0.0
	for i, n := range latency {
		if i == len(ledger.LatencyBounds) {
			break
		}
		end := float64(ledger.LatencyBounds[i]) / float64(time.Millisecond)
		if share := rank - below; n > 0 && share <= float64(n) {
			ms := from + share/float64(n)*(end-from)
			return &ms
		}
		below, from = below+float64(n), end
	}
	return &from
}

// AgentStats lists the counts of an agent's calls for each hour with a call, oldest first. It omits hours that ended
// before since, and hours older than retention.AgentHoursKept.
func (s *Store) AgentStats(ctx context.Context, a erc8004.Agent, since time.Time) (hours []AgentHour, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "read the counts of agent %s", a)
	defer end()
	rows, _ := s.db.Conns.Query(ctx, statements.Text("agent_hours"), a.ChainID, a.Registry, a.ID, since,
		retention.AgentHoursKept)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[AgentHour])
}
