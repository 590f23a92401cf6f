package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/jackc/pgx/v5"
)

// AgentHoursKept is how long the hourly counts of an agent's calls are kept.
const AgentHoursKept = 90 * 24 * time.Hour

// latencyBounds are the upper bounds of the buckets of agent_hours.latency, the histogram of the calls' durations. A
// last bucket, without a bound, counts slower calls. The bounds must not change, because stored rows depend on them.
var latencyBounds = [latencyBuckets - 1]time.Duration{10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute}

// latencyMiddles has the middles of the buckets in milliseconds, as an SQL array. The last one is its lower bound.
const latencyMiddles = `'{5,15,35,75,150,350,750,1500,3500,7500,15000,25000,45000,60000}'::float8[]`

// latencyBuckets is the length of AgentHour.Latency: one bucket for each bound of latencyBounds, and one for slower
// calls. record.sql contains it as a literal.
const latencyBuckets = 14

// AgentHour counts the calls of an agent that were recorded in one hour. An attempt counts as a call if it sent a call,
// completely or partly. It also counts if it failed earlier by the agent's fault, for example because it could not
// connect.
type AgentHour struct {
	Hour     time.Time // beginning of the hour, UTC
	Calls    int
	Failed   int                    // calls that failed by the agent's fault
	Failures map[outcome.Reason]int // failed calls by reason
	Latency  []int                  // calls that were sent, by bucket of their duration (latencyBounds)
}

// isCall reports whether the attempt with outcome o counts as a call (AgentHour).
func (o Outcome) isCall() bool { return o.Called || o.AgentError != "" }

// latencyBucket returns the index of the bucket of the call's duration, from 0. It returns -1 if no call was sent or
// its duration is unknown.
func (o Outcome) latencyBucket() int {
	if !o.Called || o.CallTook <= 0 {
		return -1
	}
	i, _ := slices.BinarySearch(latencyBounds[:], o.CallTook)
	return i
}

// latencyPosition returns latencyBucket plus one, since Postgres counts the elements of an array from 1. It returns nil
// if latencyBucket returns -1.
func (o Outcome) latencyPosition() *int32 {
	i := int32(o.latencyBucket() + 1)
	if i == 0 {
		return nil
	}
	return &i
}

// Count adds one recorded attempt, with outcome o, to the counts of h. Only stores that do not count in SQL need it
// (store/model).
func (h *AgentHour) Count(o Outcome) {
	if !o.isCall() {
		return
	}
	h.Calls++
	if o.AgentError != "" {
		h.addFailures(cmp.Or(o.Reason, outcome.Reason(o.Status)), 1)
	}
	if i := o.latencyBucket(); i >= 0 {
		h.addLatency(i, 1)
	}
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
		if i == len(latencyBounds) {
			break
		}
		end := float64(latencyBounds[i]) / float64(time.Millisecond)
		if share := rank - below; n > 0 && share <= float64(n) {
			ms := from + share/float64(n)*(end-from)
			return &ms
		}
		below, from = below+float64(n), end
	}
	return &from
}

// AgentStats lists the counts of an agent's calls for each hour with a call, oldest first. It omits hours that ended
// before since, and hours older than AgentHoursKept.
func (s *Store) AgentStats(ctx context.Context, a Agent, since time.Time) (hours []AgentHour, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "read the counts of agent %s", a)
	rows, _ := s.pool.Query(ctx, statement("agent_hours"), a.ChainID, a.Registry, a.ID, since, AgentHoursKept)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[AgentHour])
}

// DropAgentHours deletes the counts of hours that began more than age ago, oldest first, at most limit rows. It returns
// how many rows it deleted; the caller repeats the call while that equals limit.
func (s *Store) DropAgentHours(ctx context.Context, age time.Duration, limit int) (rows int, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "drop old counts of agents' calls")
	tag, err := s.pool.Exec(ctx, statement("drop_agent_hours"), age, limit)
	return int(tag.RowsAffected()), err
}
