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
	"github.com/agentherald/herald/internal/store/records"
	"github.com/google/uuid"
)

// Ledger is the part of the ledger that an operator needs.
type Ledger interface {
	Replay(ctx context.Context, ids []uuid.UUID, force bool) (int, map[uuid.UUID]string, []store.Task, error)
	Cancel(ctx context.Context, ids []uuid.UUID, force bool) (int, map[uuid.UUID]string, []store.Task, error)
	Delivery(ctx context.Context, id uuid.UUID) (store.Delivery, error)
	DeliveryByKey(ctx context.Context, key string) (store.Delivery, error)
	Depth(ctx context.Context) (store.Depth, error)
	Cursors(ctx context.Context, chainID uint64) ([]store.CursorState, error)
	auth.Ledger
}

// Records is the part of the records in Postgres that an operator needs.
type Records interface {
	auditor
	Audits(ctx context.Context, before int64, limit int) ([]records.Audit, error)
	Deliveries(ctx context.Context, f records.Filter) ([]store.Delivery, error)
	Count(ctx context.Context, f records.Filter) (map[store.Status]int64, error)
	Groups(ctx context.Context, statuses []store.Status, endedSince time.Time) ([]records.Group, error)
	Blocker(ctx context.Context, id uuid.UUID) (store.Delivery, error)
	Related(ctx context.Context, id uuid.UUID, key, blockHash string) ([]store.Delivery, error)
	ListStuck(ctx context.Context) ([]records.Stuck, error)
	CountEnded(ctx context.Context, since time.Time) (map[store.Status]int64, error)
	Workers(ctx context.Context) ([]records.Worker, error)

	AddAPIToken(ctx context.Context, t records.APIToken) error
	APITokens(ctx context.Context) ([]records.APIToken, error)
	GoodAPIToken(ctx context.Context, id string, hash []byte) (records.APIToken, error)
	RevokeAPIToken(ctx context.Context, id string) error

	RefreshAgent(ctx context.Context, g store.Agent) error
	Agents(ctx context.Context, f records.AgentFilter) ([]records.AgentRow, error)
	AgentsNamed(ctx context.Context, beginning string, limit int) ([]records.AgentRow, error)
	AgentRow(ctx context.Context, g store.Agent) (records.AgentRow, error)
	AgentNames(ctx context.Context, list []store.Agent) (map[store.Agent]string, error)
	AgentStats(ctx context.Context, g store.Agent, since time.Time) ([]records.AgentHour, error)
	CountAgents(ctx context.Context) (map[string]int64, error)
	Transfers(ctx context.Context, g store.Agent) ([]records.Transfer, error)
	EnableAgent(ctx context.Context, g store.Agent, enabled bool) (released int, _ []store.Task, _ error)
	ObserveAgent(ctx context.Context, g store.Agent, seen records.AgentObservation) error
	SetPolicy(ctx context.Context, g store.Agent, p store.Policy) error
	ReplacePolicy(ctx context.Context, g store.Agent, level policy.Level, p store.Policy) error

	SetToken(ctx context.Context, t records.Token) (released int, _ []store.Task, _ error)
	RemoveToken(ctx context.Context, g store.Agent, origin netguard.CredentialOrigin) (released int, _ []store.Task,
		_ error)
	auth.TokenRecords // tokens as they are sent and renewed
	TokensAfter(ctx context.Context, last *records.Token) ([]records.Token, error)
	AccessAfter(ctx context.Context, last *records.Token) ([]records.Token, error)
	TokensExpiring(ctx context.Context, within time.Duration) (records.Expiring, error)

	SealedAfter(ctx context.Context, last uuid.UUID) (_ []records.Sealed, next uuid.UUID, done bool, err error)
	Reseal(ctx context.Context, s records.Sealed, ciphertext []byte) (changed bool, err error)
	ResealToken(ctx context.Context, t records.Token, ciphertext []byte) (changed bool, err error)
	ResealAccess(ctx context.Context, t records.Token, ciphertext []byte) (changed bool, err error)

	signing.Records
	RotateSigningKey(ctx context.Context, k records.SigningKey, after, keep time.Duration) (records.SigningKey, error)
	ResealSigningKey(ctx context.Context, k records.SigningKey, ciphertext []byte) (changed bool, err error)
}

// Session is the open ledger and the records, with the connections that belong to them. Close closes all of them.
type Session struct {
	Ledger
	Records
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
