package delivery

import (
	"slices"
	"strconv"
	"time"

	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the Prometheus metrics of deliveries and calls. No agent, key or endpoint is a label, because strangers
// could create any number of series.
type Metrics struct {
	calls      *prometheus.CounterVec
	callTime   *prometheus.HistogramVec
	deliveries *prometheus.CounterVec
	latency    prometheus.Histogram
	batchSize  prometheus.Histogram
	corrected  *prometheus.CounterVec
	filtered   *prometheus.CounterVec

	ignoredOutcomes *prometheus.CounterVec
}

// NewMetrics creates the metrics and registers them with reg.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mcp_calls_total",
			Help: "Calls of agents' tools by how they ended: success or failed."}, []string{"tool_name", "status"}),
		callTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "mcp_call_duration_seconds",
			Help:    "Time of one call of an agent's tool.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}}, []string{"tool_name"}),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_deliveries_total",
			Help: "Outcomes recorded, final ones and waits, by kind, status and reason.",
		}, []string{"kind", "status", "reason"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "herald_delivery_latency_seconds",
			Help: "Time from acceptance to the agent's answer, for delivered ones.",
			Buckets: []float64{.005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30,
				60, 300, 1800, 7200, 36000, 86400}}),
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "herald_batch_size",
			Help:    "Deliveries in one call of an agent's " + tools.Batch + ".",
			Buckets: []float64{2, 5, 10, 20, 30, 40, MaxBatch}}),
		corrected: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_jobs_corrected_total",
			Help: "Fields of jobs that the event on the chain contradicts. The agent gets the event."},
			[]string{"field"}),
		filtered: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_filtered_total",
			Help: "Events that a filter skipped, by the level of its policy and its number there."},
			[]string{"level", "rule"}),
		ignoredOutcomes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_spooled_outcomes_ignored_total",
			Help: "Outcomes found in Redis that no delivery ended by: " +
				"unreadable (not sealed by Herald for this delivery) or old."}, []string{"why"}),
	}
	for _, c := range []prometheus.Collector{m.calls, m.callTime, m.deliveries, m.latency, m.batchSize, m.corrected,
		m.filtered, m.ignoredOutcomes} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	// Prometheus' increase() shows a first death only if its counter began at 0.
	for _, why := range outcome.Reasons() {
		if why.Ending() == outcome.Dead || why.Ending() == outcome.Waiting && !why.Free() {
			for _, kind := range append(job.DeliveredKinds(), "other") {
				m.deliveries.WithLabelValues(string(kind), string(outcome.Dead), string(why))
			}
		}
	}
	return m, nil
}

// CountFiltered counts an event that a filter skipped. There are at most policy.MaxRules numbers per level.
func (m *Metrics) CountFiltered(d policy.Decision) {
	m.filtered.WithLabelValues(string(d.Level), strconv.Itoa(d.Rule)).Inc()
}

// countCorrected counts a field of a job that the event on the chain contradicts.
func (m *Metrics) countCorrected(field string) { m.corrected.WithLabelValues(field).Inc() }

// toolLabel returns the label of a tool in the metrics: its name if it is documented, otherwise "other". A job may name
// any tool that begins with agent.receive, so the names in jobs must not become labels.
func toolLabel(tool string) string {
	switch tool {
	case tools.Feedback, tools.Batch, "agent.receiveRevocation", "agent.receiveResponse", "agent.receiveValidation":
		return tool
	}
	return "other"
}

// countCall counts one call of a tool, which took this time. ok says that the agent answered without an error.
func (m *Metrics) countCall(tool string, ok bool, took time.Duration) {
	tool = toolLabel(tool)
	status := "success"
	if !ok {
		status = "failed"
	}
	m.calls.WithLabelValues(tool, status).Inc()
	m.callTime.WithLabelValues(tool).Observe(took.Seconds())
}

// CountDead counts n deliveries that became dead for the reason why, and that no attempt ended. Their kind is "other".
func (m *Metrics) CountDead(why outcome.Reason, n int) {
	m.deliveries.WithLabelValues("other", string(outcome.Dead), string(why)).Add(float64(n))
}

// countOutcome counts the recorded outcome o of a job of kind k. age is the time since the delivery was accepted. If
// the agent accepted the call, it also observes age as the latency.
func (m *Metrics) countOutcome(k job.Kind, o ledger.Outcome, age time.Duration) {
	if !slices.Contains(job.DeliveredKinds(), k) {
		k = "other"
	}
	m.deliveries.WithLabelValues(string(k), string(o.Status), string(o.Reason)).Inc()
	if o.AgentOK {
		m.latency.Observe(age.Seconds())
	}
}
