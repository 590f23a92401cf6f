package app

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/google/uuid"
)

// signOffTimeout bounds the deletion of the worker's record at its stop.
const signOffTimeout = 2 * time.Second

// newWorkerRecord returns a service that keeps the worker's record in Postgres from its start to its stop.
func (a *assembly) newWorkerRecord(log *slog.Logger) Service {
	host, _ := os.Hostname()
	w := records.Worker{ID: uuid.New(), Host: cmp.Or(host, "unknown"), SealsWith: a.keys.PrimaryID()}
	for _, k := range a.keys.Keys() {
		w.Keys = append(w.Keys, k.ID)
	}
	report := func(ctx context.Context) {
		if err := a.store.ReportVerified(ctx, a.verifies); err != nil && ctx.Err() == nil {
			log.Warn("it could not be stored which chains this worker verifies", logging.About(logging.Postgres),
				"error", err)
		}
		if err := a.records.ReportWorker(ctx, w); err != nil && ctx.Err() == nil {
			log.Warn("the worker's record could not be written, so a rotation of keys may not see this worker",
				logging.About(logging.Postgres), "error", err)
		}
	}
	refresh := newLoop("worker record", func(ctx context.Context) {
		ticker := time.NewTicker(records.WorkerReports)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				last, cancel := context.WithTimeout(context.WithoutCancel(ctx), signOffTimeout)
				defer cancel()
				_ = a.records.RemoveWorker(last, w.ID) // otherwise it counts as running for store.WorkerGone
				return
			case <-ticker.C:
				report(ctx)
			}
		}
	})
	return &funcService{name: refresh.Name(), stop: refresh.Stop, start: func(ctx context.Context) error {
		report(ctx)
		return refresh.Start(ctx)
	}}
}
