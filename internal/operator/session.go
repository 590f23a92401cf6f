package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"golang.org/x/sync/semaphore"
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
	Effort func(ctx context.Context, agent erc8004.Agent) (*effort.Usage, error)
	Close  func()
}

// Dispatcher puts tasks into Redis. Dispatch returns how many of them Redis accepted.
type Dispatcher interface {
	Dispatch(ctx context.Context, tasks []ledger.Task) int
}

// Dispatch puts tasks into Redis. After a failure the session does not try again: the worker's reconciler dispatches
// the tasks that Redis lacks.
func (s *Session) Dispatch(ctx context.Context, tasks []ledger.Task) {
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

// maxReads bounds the reads of one caller at a time. A worker has six connections for all readers.
const maxReads = 4

type callerKey struct{}

// WithCaller returns a context for the reads of a caller over HTTP.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c.Name)
}

// shareReads waits until the caller in ctx has fewer than maxReads reads under way, and counts another one until
// release is called. It does nothing if ctx has no caller.
func (o *Operator) shareReads(ctx context.Context) (release func(), err error) {
	name, _ := ctx.Value(callerKey{}).(string)
	if name == "" {
		return func() {}, nil
	}
	found, _ := o.shares.LoadOrStore(name, semaphore.NewWeighted(maxReads)) // as many as tokens were used
	share := found.(*semaphore.Weighted)
	return func() { share.Release(1) }, share.Acquire(ctx, 1)
}

// ReadBounded opens the store and calls do. Both together take at most Timeout; then it returns a *LateError. A caller
// that has maxReads reads under way waits first, so that its slow reads do not block those of other callers.
func (o *Operator) ReadBounded(ctx context.Context, do func(context.Context, *Session) error) error {
	bounded, cancel := context.WithTimeoutCause(ctx, o.Timeout, &LateError{o.Timeout})
	defer cancel()
	explain := func(err error) error {
		var late *LateError
		if errors.Is(err, context.DeadlineExceeded) && errors.As(context.Cause(bounded), &late) {
			return late
		}
		return err
	}
	release, err := o.shareReads(bounded)
	if err != nil {
		return explain(err)
	}
	defer release()
	st, err := o.OpenStore(ctx)
	if err != nil {
		return err
	}
	defer st.Close()
	return explain(do(bounded, st))
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
