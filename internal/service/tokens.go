package service

import (
	"context"
	"log/slog"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/store"
	"github.com/prometheus/client_golang/prometheus"
)

// tokenGauge counts the tokens that expire when it is scraped.
type tokenGauge struct {
	store *store.Store
	log   *slog.Logger
	desc  *prometheus.Desc
}

func registerTokenGauge(reg prometheus.Registerer, st *store.Store, log *slog.Logger) error {
	return reg.Register(&tokenGauge{store: st, log: log, desc: prometheus.NewDesc("herald_tokens_expiring",
		"Stored tokens of agents that expire within 7 days (state soon), and that have expired and are not sent any more (state expired).", []string{"state"}, nil)})
}

// Describe implements prometheus.Collector.
func (g *tokenGauge) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect implements prometheus.Collector. What cannot be counted now is left out: a scrape must not fail with its
// source.
func (g *tokenGauge) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	e, err := g.store.TokensExpiring(ctx, agentauth.ExpiryWarning)
	if err != nil {
		g.log.Warn("metrics: tokens that expire could not be counted", logging.About(logging.Postgres), "error", err)
		return
	}
	ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(e.Soon), "soon")
	ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(e.Expired), "expired")
}
