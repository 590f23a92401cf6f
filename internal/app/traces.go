package app

import (
	"context"
	"log/slog"

	"github.com/agentherald/herald/internal/base/buildinfo"
	"github.com/agentherald/herald/internal/base/tracing"
	"github.com/agentherald/herald/internal/operator/config"
)

// openTraces prepares the sending of spans to a collector, if one is configured.
func (a *assembly) openTraces(cfg *config.Config, log *slog.Logger) (err error) {
	if !cfg.Traces.On() {
		return nil
	}
	a.spans, err = tracing.Open(tracing.Config{Endpoint: cfg.Traces.Endpoint(), Headers: cfg.Traces.Headers(),
		Service: cfg.Traces.Service, Version: buildinfo.Version(), Logger: log})
	return err
}

// newTraces returns a service whose Stop sends the last spans. It stops after all services that create spans.
func (a *assembly) newTraces(log *slog.Logger) Service {
	return &funcService{name: "traces",
		start: func(context.Context) error {
			if a.spans != nil {
				log.Info("deliveries are traced", "collector", a.spans.Collector())
			}
			return nil
		},
		stop: func() {
			if a.spans != nil {
				a.spans.Close()
			}
		},
	}
}
