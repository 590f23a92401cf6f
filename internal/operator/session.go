package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/delivery/effort"
	"github.com/agentherald/herald/internal/embedded"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/signing"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// Store is Postgres as an operator needs it.
type Store interface {
	auditor
	ledger
	Replay(ctx context.Context, ids []uuid.UUID, force bool) (int, map[uuid.UUID]string, []store.Task, error)
	Cancel(ctx context.Context, ids []uuid.UUID, force bool) (int, map[uuid.UUID]string, []store.Task, error)
	Audits(ctx context.Context, before int64, limit int) ([]store.Audit, error)
	Cursors(ctx context.Context, chainID uint64) ([]store.CursorState, error)
	DeliveryByKey(ctx context.Context, key string) (store.Delivery, error)
	Blocker(ctx context.Context, id uuid.UUID) (store.Delivery, error)

	AddAPIToken(ctx context.Context, t store.APIToken) error
	APITokens(ctx context.Context) ([]store.APIToken, error)
	GoodAPIToken(ctx context.Context, id string, hash []byte) (store.APIToken, error)
	RevokeAPIToken(ctx context.Context, id string) error

	Depth(ctx context.Context) (store.Depth, error)
	ListStuck(ctx context.Context) ([]store.Stuck, error)
	TokensExpiring(ctx context.Context, within time.Duration) (store.Expiring, error)
	CountAgents(ctx context.Context) (map[string]int64, error)

	RefreshAgent(ctx context.Context, g store.Agent) error
	Agents(ctx context.Context, f store.AgentFilter) ([]store.AgentRow, error)
	AgentRow(ctx context.Context, g store.Agent) (store.AgentRow, error)
	AgentStats(ctx context.Context, g store.Agent, since time.Time) ([]store.AgentHour, error)
	Transfers(ctx context.Context, g store.Agent) ([]store.Transfer, error)
	EnableAgent(ctx context.Context, g store.Agent, enabled bool) (released int, _ []store.Task, _ error)
	ObserveAgent(ctx context.Context, g store.Agent, seen store.AgentObservation) error
	SetPolicy(ctx context.Context, g store.Agent, p store.Policy) error
	ClearPreferences(ctx context.Context, g store.Agent) error

	SetToken(ctx context.Context, t store.Token) (released int, _ []store.Task, _ error)
	RemoveToken(ctx context.Context, g store.Agent, origin netguard.CredentialOrigin) (released int, _ []store.Task,
		_ error)
	agentauth.TokenLedger // of tokens that are sent and renewed
	TokensAfter(ctx context.Context, last *store.Token) ([]store.Token, error)
	AccessAfter(ctx context.Context, last *store.Token) ([]store.Token, error)

	SealedAfter(ctx context.Context, last uuid.UUID) (_ []store.Sealed, next uuid.UUID, done bool, err error)
	Reseal(ctx context.Context, s store.Sealed, ciphertext []byte) (changed bool, err error)
	ResealToken(ctx context.Context, t store.Token, ciphertext []byte) (changed bool, err error)
	ResealAccess(ctx context.Context, t store.Token, ciphertext []byte) (changed bool, err error)

	Workers(ctx context.Context) ([]store.Worker, error)

	signing.Ledger
	RotateSigningKey(ctx context.Context, k store.SigningKey, after, keep time.Duration) (store.SigningKey, error)
	ResealSigningKey(ctx context.Context, k store.SigningKey, ciphertext []byte) (changed bool, err error)
}

// Session is a Store with what has to be closed after it.
type Session struct {
	Store
	Spool      agentauth.RenewalSpool // where refresh tokens wait that Postgres could not take; nil: no Redis is at hand
	Dispatcher Dispatcher             // nil: what is dispatched waits for the worker's reconciler
	// Effort reads from Redis what is left of an agent's effort budget; nil: no Redis is at hand.
	Effort func(ctx context.Context, agent store.Agent) (*effort.Usage, error)
	Close  func()
}

// Dispatcher puts tasks into Redis and returns how many it took.
type Dispatcher interface {
	Dispatch(ctx context.Context, tasks []store.Task) int
}

// Dispatch puts tasks into Redis. A Redis that does not take one is not asked again: the reconciler finds what it
// lacks.
func (s *Session) Dispatch(ctx context.Context, tasks []store.Task) {
	if s.Dispatcher != nil && s.Dispatcher.Dispatch(ctx, tasks) < len(tasks) {
		s.Dispatcher = nil
	}
}

// OpenStore is for a change that puts nothing into Redis, or that may take long.
func (o *Operator) OpenStore(ctx context.Context) (*Session, error) {
	return o.Backend.OpenStore(ctx, StoreOptions{Wait: o.Timeout})
}

// OpenDispatching is for a change whose tasks go into Redis, when there is one at hand.
func (o *Operator) OpenDispatching(ctx context.Context) (*Session, error) {
	return o.Backend.OpenStore(ctx, StoreOptions{Wait: o.Timeout, Queue: true})
}

// ReadBounded reads one list or page. Opening the store and reading take at most Timeout together.
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

// LateError means that the database answered at first, and then not in time.
type LateError struct{ Within time.Duration }

func (e *LateError) Error() string {
	return fmt.Sprintf("the database took longer than %s to answer: try again, or give it longer with --timeout",
		e.Within)
}

// storePatience is how long an answer that can do without a store waits for one.
const storePatience = 5 * time.Second

// errNoStore: neither is one configured, nor does a worker run here.
var errNoStore = errors.New("no database is configured, and no worker runs here")

// StoreAtHand is the configured store, or that of the worker that runs on this machine. Nothing is started for it, and a
// Postgres that is away is asked once.
func (o *Operator) StoreAtHand(ctx context.Context) (*Session, error) {
	if o.Settings.DatabaseURL.IsZero() {
		if _, err := embedded.ReadRunFile(o.Backend.DataDir()); err != nil {
			return nil, errNoStore
		}
	}
	return o.Backend.OpenStore(ctx, StoreOptions{Wait: min(o.Timeout, storePatience), Once: true, Queue: true})
}
