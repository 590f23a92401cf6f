package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

// LookLedger is the part of the store that LookAgain uses.
type LookLedger interface {
	TakeLooks(ctx context.Context, limit int) ([]store.Look, error)
	EndLook(ctx context.Context, l store.Look, next *job.Job) ([]store.Task, error)
}

const (
	looksAtOnce = 16
	lookPause   = 2 * time.Second  // between two rounds
	lookTimeout = 30 * time.Second // bounds one round; the rest is due again after a minute
)

// LookAgain looks at the chain, until ctx ends, for deliveries that have ended or were called and for whose keys a job was
// sent that differs from their event. Chains without a follower have no other way to find that a reorg replaced an
// event. If the chain still has the event, nothing changes.
func (r *Runner) LookAgain(ctx context.Context, ledger LookLedger) {
	ticker := time.NewTicker(lookPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		r.executor.lookOnce(ctx, ledger)
	}
}

// lookOnce makes one round of LookAgain.
func (e *Executor) lookOnce(ctx context.Context, ledger LookLedger) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	looks, err := ledger.TakeLooks(ctx, looksAtOnce)
	for _, l := range looks {
		if err == nil {
			err = e.endLook(ctx, ledger, l)
		}
	}
	if err != nil && ctx.Err() == nil {
		e.Logger.Warn("events are not looked up again", logging.About(logging.Postgres), "error", err)
	}
}

// endLook ends one look, unless the chain has no answer yet.
func (e *Executor) endLook(ctx context.Context, ledger LookLedger, l store.Look) error {
	client, ok := e.Chain(l.Job.ChainID)
	if !ok || e.Verify == chain.VerifyOff {
		return nil
	}
	hints := append([]store.Hint{{Rank: -1, Job: l.Job}}, l.Hints...)
	s, err := e.findEvent(ctx, &attempt{}, client, hints)
	var failed *retry.Failure
	var next *job.Job
	switch notFound := errors.As(err, &failed) && failed.Reason == reason.EventNotFound; {
	case err != nil && !notFound, err == nil && !s.Event.SameEvent(l.Job) && !s.Confirmed:
		return nil // the look is due again
	case err == nil && !s.Event.SameEvent(l.Job):
		next = s.Event
		e.Logger.Info("a reorg replaced the event of a delivery", "delivery", l.ID, "key", l.Key)
	}
	tasks, err := ledger.EndLook(ctx, l, next)
	e.Dispatcher.Dispatch(ctx, tasks)
	return err
}
