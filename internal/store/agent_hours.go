package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/reason"
	"github.com/jackc/pgx/v5"
)

// AgentHoursKept is how long the counts of an agent's calls are kept.
const AgentHoursKept = 90 * 24 * time.Hour

// latencyBounds are the upper bounds of the buckets of agent_hours.latency; slower calls go to a last bucket without a
// bound. Stored rows depend on these bounds, so they must not change.
var latencyBounds = [latencyBuckets - 1]time.Duration{10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second,
	5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute}

// latencyBuckets is the number of buckets. record.sql and record_group.sql spell it out.
const latencyBuckets = 14

// AgentHour counts the calls of an agent that were recorded in one hour. An attempt is a call if it sent one, or if it
// failed earlier by the agent's fault.
type AgentHour struct {
	Hour     time.Time // beginning of the hour, UTC
	Calls    int
	Failed   int                   // calls that failed by the agent's fault
	Failures map[reason.Reason]int // failed calls by reason
	Latency  []int                 // written calls by bucket of their own duration (latencyBounds)
}

// isCall reports whether the outcome is that of a call in the sense of AgentHour.
func (o Outcome) isCall() bool { return o.Called || o.AgentError != "" }

// latencyBucket returns the bucket of the call's duration, from 0, or -1 if no call was written or its duration is
// unknown.
func (o Outcome) latencyBucket() int {
	if !o.Called || o.CallTook <= 0 {
		return -1
	}
	i, _ := slices.BinarySearch(latencyBounds[:], o.CallTook)
	return i
}

// latencyVector returns the histogram of this one call: 1 in its bucket, 0 elsewhere.
func (o Outcome) latencyVector() []int32 {
	v := make([]int32, latencyBuckets)
	if i := o.latencyBucket(); i >= 0 {
		v[i] = 1
	}
	return v
}

// latencyPosition returns the bucket as a 1-based index for Postgres; nil: no bucket.
func (o Outcome) latencyPosition() *int32 {
	i := int32(o.latencyBucket() + 1)
	if i == 0 {
		return nil
	}
	return &i
}

// Count adds a recorded outcome, for stores that do not count in SQL.
func (h *AgentHour) Count(o Outcome) {
	if !o.isCall() {
		return
	}
	h.Calls++
	if o.AgentError != "" {
		h.addFailures(cmp.Or(o.Reason, reason.Reason(o.Status)), 1)
	}
	if i := o.latencyBucket(); i >= 0 {
		h.addLatency(i, 1)
	}
}

func (h *AgentHour) addFailures(r reason.Reason, n int) {
	if h.Failures == nil {
		h.Failures = map[reason.Reason]int{}
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

// CallSummary counts an agent's calls since a time.
type CallSummary struct {
	Since    time.Time             `json:"since"` // beginning of an hour
	Calls    int                   `json:"calls"`
	Failed   int                   `json:"failed"`
	Failures map[reason.Reason]int `json:"failures,omitempty"` // failed calls by reason
	P50Ms    *float64              `json:"p50Ms,omitempty"`    // of the written calls' durations, interpolated; or nil
	P95Ms    *float64              `json:"p95Ms,omitempty"`
}

// SummarizeHours adds up the hours from the hour of since.
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

// interpolateQuantile returns the duration in milliseconds that the share q of the calls does not exceed, or nil if
// there are no calls. It assumes that the calls of a bucket are evenly distributed. For the last bucket it returns the
// lower bound.
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

// AgentStats lists the hours in which calls of an agent were recorded, from the hour of since, oldest first. Hours
// older than AgentHoursKept are not listed.
func (s *Store) AgentStats(ctx context.Context, a Agent, since time.Time) (hours []AgentHour, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "read the counts of agent %d:%s", a.ChainID, a.ID)
	rows, _ := s.pool.Query(ctx, statement("agent_hours"), a.ChainID, a.Registry, a.ID, since, AgentHoursKept)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[AgentHour])
}

// DropAgentHours deletes hours that began more than age ago, the oldest first, at most limit rows. It returns how many
// rows it deleted; the caller repeats it while that equals limit.
func (s *Store) DropAgentHours(ctx context.Context, age time.Duration, limit int) (rows int, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "drop old counts of agents' calls")
	tag, err := s.pool.Exec(ctx, statement("drop_agent_hours"), age, limit)
	return int(tag.RowsAffected()), err
}
