package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/records"
)

// Ledger and Records are the two halves of what Postgres stores. A Session has the methods of both.
type (
	Ledger  = store.Store
	Records = records.Store
)

// Session is the open ledger and the records, with the connections that belong to them. Close closes all of them.
type Session struct {
	*Ledger
	*Records
	Spool      auth.RenewalSpool // refresh tokens that Postgres could not store yet; nil if Redis is not available
	Dispatcher Dispatcher        // nil: released deliveries wait for the worker's reconciler
	// Effort reads the rest of an agent's effort budget from Redis; nil if Redis is not available.
	Effort func(ctx context.Context, agent store.Agent) (*effort.Usage, error)
	Close  func()
}

// Dispatcher puts tasks into Redis. Dispatch returns how many of them Redis accepted.
type Dispatcher interface {
	Dispatch(ctx context.Context, tasks []store.Task) int
}

// Dispatch puts tasks into Redis. After a failure the session does not try again: the worker's reconciler dispatches
// the tasks that Redis lacks.
func (s *Session) Dispatch(ctx context.Context, tasks []store.Task) {
	if s.Dispatcher != nil && s.Dispatcher.Dispatch(ctx, tasks) < len(tasks) {
		s.Dispatcher = nil
	}
}

// OpenStore opens the store without Redis, for changes that dispatch nothing or that may take long.
func (o *Operator) OpenStore(ctx context.Context) (*Session, error) {
	return o.Backend.OpenStore(ctx, StoreOptions{Wait: o.Timeout})
}

// OpenDispatching opens the store, and Redis if it is available, for changes that dispatch deliveries.
func (o *Operator) OpenDispatching(ctx context.Context) (*Session, error) {
	return o.Backend.OpenStore(ctx, StoreOptions{Wait: o.Timeout, Queue: true})
}

// ReadBounded opens the store and calls do. Both together take at most Timeout; then it returns a *LateError.
func (o *Operator) ReadBounded(ctx context.Context, do func(context.Context, *Session) error) error {
	began := time.Now()
	st, err := o.OpenStore(ctx)
	if err != nil {
		return err
	}
	defer st.Close()
	bounded, cancel := context.WithTimeoutCause(ctx, o.Timeout-time.Since(began), &LateError{o.Timeout})
	defer cancel()
	var late *LateError
	if err = do(bounded, st); errors.Is(err, context.DeadlineExceeded) && errors.As(context.Cause(bounded), &late) {
		return late
	}
	return err
}

// LateError reports that Postgres was reachable but did not answer within the time limit.
type LateError struct{ Within time.Duration }

func (e *LateError) Error() string {
	return fmt.Sprintf("the database took longer than %s to answer: try again, or give it longer with --timeout",
		e.Within)
}

// optionalStoreTimeout bounds the wait for a store that an action can also do without.
const optionalStoreTimeout = 5 * time.Second

// errNoStore: no database is configured, and no worker runs on the data folder.
var errNoStore = errors.New("no database is configured, and no worker runs here")

// StoreAtHand opens the configured store, or that of the worker that runs on this machine. It starts no services, and
// it tries an unreachable Postgres only once.
func (o *Operator) StoreAtHand(ctx context.Context) (*Session, error) {
	if o.Settings.DatabaseURL.IsZero() {
		if _, err := embedded.ReadRunFile(o.Backend.DataDir()); err != nil {
			return nil, errNoStore
		}
	}
	return o.Backend.OpenStore(ctx, StoreOptions{Wait: min(o.Timeout, optionalStoreTimeout), Once: true, Queue: true})
}
