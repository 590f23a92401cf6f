package legacy

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of a Consumer.
type Metrics struct {
	taken *prometheus.CounterVec
	depth prometheus.Gauge
}

// NewMetrics creates the metrics and registers them with reg.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		taken: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_legacy_jobs_total",
			Help: "Jobs taken from the list HERALD_LEGACY_QUEUE by what became of them: accepted, known, conflict or " +
				"rejected."}, []string{"verdict"}),
		depth: prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_legacy_queue_depth",
			Help: "Jobs in the list HERALD_LEGACY_QUEUE when this worker looked last."})}
	return m, errors.Join(reg.Register(m.taken), reg.Register(m.depth))
}
