package app

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/google/uuid"
)

// signOffTimeout bounds the deletion of the worker's record at its stop.
const signOffTimeout = 2 * time.Second

// newWorkerRecord returns a service that keeps the worker's record in Postgres from its start to its stop.
func (a *assembly) newWorkerRecord() service {
	host, _ := os.Hostname()
	w := records.Worker{ID: uuid.New(), Host: cmp.Or(host, "unknown"), SealsWith: a.keys.PrimaryID()}
	for _, k := range a.keys.Keys() {
		w.Keys = append(w.Keys, k.ID)
	}
	report := func(ctx context.Context) {
		if err := a.store.ReportVerified(ctx, a.verifiedChains()); err != nil && ctx.Err() == nil {
			a.log.Warn("it could not be stored which chains this worker verifies", logging.About(logging.Postgres),
				"error", err)
		}
		if err := a.records.ReportWorker(ctx, w); err != nil && ctx.Err() == nil {
			a.log.Warn("the worker's record could not be written, so a rotation of keys may not see this worker",
				logging.About(logging.Postgres), "error", err)
		}
	}
	return newLoop("worker record", func(ctx context.Context) {
		for range loop.Every(ctx, records.WorkerReports) {
			report(ctx)
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), signOffTimeout)
		defer cancel()
		_ = a.records.RemoveWorker(last, w.ID) // otherwise it counts as running for ledger.WorkerGone
	}).startAfter(func(ctx context.Context) error {
		report(ctx)
		return nil
	})
}

// verifiedChains returns the chains whose events this worker verifies.
func (a *assembly) verifiedChains() []uint64 {
	if chain.Verify(a.cfg.VerifyEvent) == chain.VerifyOff {
		return nil
	}
	return a.chainIDs()
}
