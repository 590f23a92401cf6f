package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/mcpcall/signing"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// Store is the part of Postgres that an operator needs.
type Store interface {
	auditor
	ledger
	Replay(ctx context.Context, ids []uuid.UUID, force bool) (int, map[uuid.UUID]string, []store.Task, error)
	Cancel(ctx context.Context, ids []uuid.UUID, force bool) (int, map[uuid.UUID]string, []store.Task, error)
	Audits(ctx context.Context, before int64, limit int) ([]store.Audit, error)
	DeliveryByKey(ctx context.Context, key string) (store.Delivery, error)
	Blocker(ctx context.Context, id uuid.UUID) (store.Delivery, error)
	Related(ctx context.Context, id uuid.UUID, key, blockHash string) ([]store.Delivery, error)

	AddAPIToken(ctx context.Context, t store.APIToken) error
	APITokens(ctx context.Context) ([]store.APIToken, error)
	GoodAPIToken(ctx context.Context, id string, hash []byte) (store.APIToken, error)
	RevokeAPIToken(ctx context.Context, id string) error

	StateReader
	Groups(ctx context.Context, statuses []store.Status, endedSince time.Time) ([]store.Group, error)

	RefreshAgent(ctx context.Context, g store.Agent) error
	Agents(ctx context.Context, f store.AgentFilter) ([]store.AgentRow, error)
	AgentsNamed(ctx context.Context, beginning string, limit int) ([]store.AgentRow, error)
	AgentRow(ctx context.Context, g store.Agent) (store.AgentRow, error)
	AgentNames(ctx context.Context, list []store.Agent) (map[store.Agent]string, error)
	AgentStats(ctx context.Context, g store.Agent, since time.Time) ([]store.AgentHour, error)
	Transfers(ctx context.Context, g store.Agent) ([]store.Transfer, error)
	EnableAgent(ctx context.Context, g store.Agent, enabled bool) (released int, _ []store.Task, _ error)
	ObserveAgent(ctx context.Context, g store.Agent, seen store.AgentObservation) error
	SetPolicy(ctx context.Context, g store.Agent, p store.Policy) error
	ReplacePolicy(ctx context.Context, g store.Agent, level policy.Level, p store.Policy) error

	SetToken(ctx context.Context, t store.Token) (released int, _ []store.Task, _ error)
	RemoveToken(ctx context.Context, g store.Agent, origin netguard.CredentialOrigin) (released int, _ []store.Task,
		_ error)
	auth.TokenLedger // tokens as they are sent and renewed
	TokensAfter(ctx context.Context, last *store.Token) ([]store.Token, error)
	AccessAfter(ctx context.Context, last *store.Token) ([]store.Token, error)

	SealedAfter(ctx context.Context, last uuid.UUID) (_ []store.Sealed, next uuid.UUID, done bool, err error)
	Reseal(ctx context.Context, s store.Sealed, ciphertext []byte) (changed bool, err error)
	ResealToken(ctx context.Context, t store.Token, ciphertext []byte) (changed bool, err error)
	ResealAccess(ctx context.Context, t store.Token, ciphertext []byte) (changed bool, err error)

	signing.Ledger
	RotateSigningKey(ctx context.Context, k store.SigningKey, after, keep time.Duration) (store.SigningKey, error)
	ResealSigningKey(ctx context.Context, k store.SigningKey, ciphertext []byte) (changed bool, err error)
}

// Session is an open Store with the connections that belong to it. Close closes all of them.
type Session struct {
	Store
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
