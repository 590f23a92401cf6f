package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/delivery/effort"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/servers"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel/trace"
)

// Ledger is the store as a delivery needs it.
type Ledger interface {
	Claim(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (*store.Claim, error)
	Extend(ctx context.Context, c *store.Claim, d time.Duration) error
	Record(ctx context.Context, c *store.Claim, o store.Outcome) (store.Recorded, error)
	Adopt(ctx context.Context, c *store.Claim, past store.SpooledOutcome) (store.Recorded, error)
	Delivery(ctx context.Context, id uuid.UUID) (store.Delivery, error)
	DeliveryByKey(ctx context.Context, key string) (store.Delivery, error)
}

// FollowerLedger is the store as batches need it.
type FollowerLedger interface {
	ClaimFollowers(ctx context.Context, leader *store.Claim, n int, lease time.Duration) ([]store.Follower, error)
	GiveBack(ctx context.Context, all []store.Follower) error
}

// Chain is one chain as a delivery needs it.
type Chain interface {
	Check(ctx context.Context, j job.Job, v chain.Verify) (chain.Standing, error)
}

// Resolver finds an agent's endpoint.
type Resolver interface {
	Resolve(ctx context.Context, a resolver.Agent) (resolver.Target, error)
}

// Fetcher brings content by URI.
type Fetcher interface {
	Fetch(ctx context.Context, uri string, limit int64) (ipfs.Document, error)
}

// Caller speaks MCP.
type Caller interface {
	Tools(ctx context.Context, e mcpcall.Endpoint, fresh bool) (mcpcall.ToolSet, error)
	Call(ctx context.Context, e mcpcall.Endpoint, r mcpcall.Request) (mcpcall.Answer, error)
}

// Sealer encrypts what is spooled in Redis.
type Sealer interface {
	Seal(plain []byte, b secret.Binding) ([]byte, error)
}

// Throughput counts outcomes; age is from acceptance to the agent's answer.
type Throughput interface {
	Count(status store.Status, age time.Duration)
}

// Opener decrypts a job's secret headers.
type Opener interface {
	Open(cipher []byte, b secret.Binding) ([]byte, error)
}

// Config makes an Executor. Everything without a default is needed.
type Config struct {
	Ledger     Ledger
	Chain      func(chainID uint64) (Chain, bool) // false: no RPC URL is configured for it
	Resolver   Resolver
	Fetcher    Fetcher
	Caller     Caller
	Opener     Opener
	Sealer     Sealer // of spooled outcomes
	Dispatcher *Dispatcher
	Spool      OutcomeSpool
	Schedule   retry.Schedule

	Limiter        Limiter         // per origin; nil: none
	UnboundLimiter Limiter         // instead of Limiter for agents that nothing binds to their endpoint; nil: no other
	Newcomers      *Newcomers      // what agents without a recent success get of the slots; nil: all
	Efforts        *effort.Budgets // worker time that each agent has; nil: as much as it takes
	Turns          Turns           // of agents that asked for fewer calls a second; nil: nobody heeds that

	// Servers is what the operator says about an agent in the servers file; nil: there is none.
	Servers func(a store.Agent) (servers.Server, bool)
	// MayRun tells whether an agent's job may name a command itself; nil: what the Caller takes.
	MayRun func(chainID uint64, registry common.Address, agentID string, argv []string) bool
	// Authorizer gives endpoints the credentials that operators stored; nil: there are none.
	Authorizer *agentauth.Authorizer
	// ToolAliases are names under which a tool is looked for beside its built-in ones (HERALD_TOOL_ALIASES).
	ToolAliases map[string][]string

	Verify      chain.Verify  // default: receipt where the chain is configured
	HashPolicy  string        // strict (default), require, annotate
	CallTimeout time.Duration // longest call; a job may ask for less
	Lease       time.Duration // at least CallTimeout + LeaseMargin
	LeaseMargin time.Duration

	// SpoolPatience is how long a claim asks Redis for the outcome of an attempt that never ended, before the delivery
	// waits. Default 10 s.
	SpoolPatience time.Duration
	// RecordTimeout is for one try to record (default 5 s), RecordPause the longest pause between tries (default 2 s):
	// after Postgres is back, the reconciler waits much longer.
	RecordTimeout, RecordPause time.Duration
	// Followers claims what goes in one call with another delivery; nil: each goes alone.
	Followers FollowerLedger
	// BatchSize is how many deliveries go in one call of an agent that offers BatchTool, at most. Default and most 50;
	// 1: one.
	BatchSize int
	// Decoding bounds the documents that are decoded at a time, in the whole process; nil: not bounded.
	Decoding *decode.Budget
	// MaxArgumentBytes bounds what calls in flight hold of arguments, in the whole process; small ones are not counted.
	// Default 64 MiB.
	MaxArgumentBytes int64
	// FetchLimit is the longest feedback file, in bytes. Default 2 MiB.
	FetchLimit int64

	Metrics    *Metrics
	Throughput Throughput // counts outcomes for the overview; nil: nobody does
	Logger     *slog.Logger
	// Trace hears of every step as it ends; nil: nobody. It must not block.
	Trace func(Step)
	// Tracer makes the spans of attempts, with the ids that package tracecontext says; nil: none are made.
	Tracer trace.Tracer
	Now    func() time.Time // default time.Now
	// Random spreads waits: [0, 1). Default rand.Float64.
	Random func() float64
}

// maxObservedAgents bounds the cache of when the recorded tools of an agent were listed; on a miss they are recorded
// again.
const maxObservedAgents = 4096

// NewExecutor checks the configuration.
func NewExecutor(cfg Config) (*Executor, error) {
	switch {
	case cfg.Ledger == nil || cfg.Chain == nil || cfg.Resolver == nil || cfg.Fetcher == nil || cfg.Caller == nil ||
		cfg.Opener == nil || cfg.Sealer == nil || cfg.Dispatcher == nil || cfg.Spool == nil || cfg.Metrics == nil:
		return nil, errors.New("delivery: an executor needs ledger, chain, resolver, fetcher, caller, opener, sealer, " +
			"dispatcher, spool and metrics")
	case cfg.Schedule.Attempts() < 2:
		return nil, errors.New("delivery: a retry schedule is needed")
	case cfg.CallTimeout <= 0 || cfg.LeaseMargin <= 0 || cfg.Lease < cfg.CallTimeout+cfg.LeaseMargin:
		return nil, errors.New("delivery: the lease must be at least the call timeout plus the margin")
	case cfg.BatchSize < 0 || cfg.BatchSize > MaxBatch:
		return nil, fmt.Errorf("delivery: a batch has at most %d deliveries", MaxBatch)
	}
	cfg.Verify = cmp.Or(cfg.Verify, chain.VerifyReceipt)
	cfg.HashPolicy = cmp.Or(cfg.HashPolicy, HashStrict)
	cfg.BatchSize = cmp.Or(cfg.BatchSize, MaxBatch)
	cfg.FetchLimit = cmp.Or(cfg.FetchLimit, 2<<20)
	cfg.MaxArgumentBytes = cmp.Or(cfg.MaxArgumentBytes, 64<<20)
	cfg.SpoolPatience = cmp.Or(cfg.SpoolPatience, 10*time.Second)
	cfg.RecordTimeout = cmp.Or(cfg.RecordTimeout, 5*time.Second)
	cfg.RecordPause = cmp.Or(cfg.RecordPause, 2*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	observed, err := lru.New[store.Agent, time.Time](maxObservedAgents)
	if err != nil {
		return nil, err
	}
	batches, err := lru.New[store.Agent, batchLimit](maxBatchAgents)
	return &Executor{Config: cfg, observed: observed, batches: batches, waits: newWaitSummary(),
		arguments: argumentBudget{most: cfg.MaxArgumentBytes, held: map[string]int64{}}}, err
}
