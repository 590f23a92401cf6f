package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/delivery/content"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/delivery/memory"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/resolver/servers"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel/trace"
)

// Ledger is the part of *store.Store that attempts use.
type Ledger interface {
	event.Ledger
	Claim(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (*ledger.Claim, error)
	Extend(ctx context.Context, c *ledger.Claim, d time.Duration) error
	Record(ctx context.Context, c *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error)
	Adopt(ctx context.Context, c *ledger.Claim, past ledger.SpooledOutcome) (ledger.Recorded, error)
}

// MemberLedger is the part of *store.Store that claims and releases the members of batches.
type MemberLedger interface {
	ClaimMembers(ctx context.Context, leader *ledger.Claim, n int, lease time.Duration) ([]ledger.Member, error)
	GiveBack(ctx context.Context, all []ledger.Member) error
}

// Resolver finds an agent's endpoint.
type Resolver interface {
	Resolve(ctx context.Context, a resolver.Agent) (resolver.Target, error)
}

// Caller lists and calls tools over MCP.
type Caller interface {
	Tools(ctx context.Context, e mcpcall.Endpoint, fresh bool) (mcpcall.ToolSet, error)
	Call(ctx context.Context, e mcpcall.Endpoint, r mcpcall.Request) (mcpcall.Answer, error)
}

// Throughput counts the outcomes of attempts for the overview page. age is the time from the delivery's acceptance to
// the agent's answer.
type Throughput interface {
	Count(status outcome.Status, age time.Duration)
}

// Config configures an Executor. A field is required unless its comment states a default or the meaning of nil.
type Config struct {
	Ledger     Ledger
	Chain      func(chainID uint64) (event.Chain, bool) // false: the chain has no RPC URL
	Resolver   Resolver
	Fetcher    content.Fetcher
	Caller     Caller
	Keys       event.Keys
	Dispatcher *dispatch.Dispatcher
	Spool      OutcomeSpool
	Schedule   outcome.Schedule

	Admission *admission.Gates  // the limits that an attempt must pass; nil: no limits
	Origins   admission.Origins // the limits of direct calls (CallDirect); zero: no limits

	// Servers returns the agent's entry in the servers file, or false if it has none. nil: there is no servers file.
	Servers func(a erc8004.Agent) (servers.Server, bool)
	// DefaultPolicy returns the default policy in force (HERALD_POLICY_FILE). nil: agents have no default policy.
	DefaultPolicy func() policy.Policy
	// MayRun reports whether a job for this agent may name the command argv as its endpoint (action.endpoint). nil:
	// every command may be named, and the Caller decides which ones it runs.
	MayRun func(chainID uint64, registry common.Address, agentID string, argv []string) bool
	// Authorizer adds the credentials that operators stored. nil: there are no credentials.
	Authorizer *auth.Authorizer
	// ToolAliases are further names under which agents offer a tool (HERALD_TOOL_ALIASES), in addition to the built-in
	// aliases.
	ToolAliases map[string][]string

	Verify      chain.Verify  // the check that an event must pass; default chain.VerifyReceipt
	HashPolicy  string        // content.HashStrict (default), HashRequire or HashAnnotate
	CallTimeout time.Duration // timeout of a call; a job or the servers file may set a shorter one
	Lease       time.Duration // at least CallTimeout + LeaseMargin
	LeaseMargin time.Duration // a lease must last this much longer than its call, or is extended before the call

	// SpoolTimeout is how long an attempt tries to read a spooled outcome from Redis. If Redis does not answer by then,
	// no call is made, and the delivery waits. Default 10 s.
	SpoolTimeout time.Duration
	// RecordTimeout bounds one try to record an outcome (default 5 s). RecordPause is the longest pause between two
	// tries (default 2 s). After an outage of Postgres, the reconciler expires no lease for a time that is much longer
	// than this pause (maintenance.ReconcilerConfig.Grace), so that workers record their outcomes before they lose
	// their claims.
	RecordTimeout, RecordPause time.Duration
	// Members claims the members of batches. nil: each delivery has its own call.
	Members MemberLedger
	// BatchSize is the largest number of deliveries in one call, if the agent offers tools.Batch. Default and maximum
	// 50; 1: no batches.
	BatchSize int
	// Decoding bounds the memory for the documents that the process decodes at a time. nil: no bound.
	Decoding *decode.Budget
	// MaxArgumentBytes bounds the memory for the arguments of all calls in flight, in bytes. Arguments of more than
	// memory.Small count three times their size, smaller ones not at all. Default 64 MiB.
	MaxArgumentBytes int64
	// FetchLimit is the size of the largest feedback or response file that is fetched, in bytes. Default 2 MiB.
	FetchLimit int64

	Metrics    *Metrics
	Throughput Throughput   // counts outcomes for the overview; nil: not counted
	Logger     *slog.Logger // default slog.Default()
	// Trace is called at the end of each step. It must not block. nil: not called.
	Trace func(Step)
	// Tracer creates the spans of attempts, with the ids of package tracecontext. nil: no spans.
	Tracer trace.Tracer
	Now    func() time.Time // default time.Now
	// Random returns a random number in [0, 1) for the jitter of waits. Default rand.Float64.
	Random func() float64
}

// maxObservedAgents is the number of agents in Executor.observed. For each of them the process remembers when the tool
// list in the agent's row was fetched. After it forgot an agent, the agent's next attempt stores the tools in the row
// again.
const maxObservedAgents = 4096

// NewExecutor validates cfg, sets its defaults, and returns an Executor.
func NewExecutor(cfg Config) (*Executor, error) {
	switch {
	case cfg.Ledger == nil || cfg.Chain == nil || cfg.Resolver == nil || cfg.Fetcher == nil || cfg.Caller == nil ||
		cfg.Keys == nil || cfg.Dispatcher == nil || cfg.Spool == nil || cfg.Metrics == nil:
		return nil, errors.New("delivery: an executor needs ledger, chain, resolver, fetcher, caller, keys, " +
			"dispatcher, spool and metrics")
	case cfg.Schedule.Attempts() < 2:
		return nil, errors.New("delivery: a retry schedule is needed")
	case cfg.CallTimeout <= 0 || cfg.LeaseMargin <= 0 || cfg.Lease < cfg.CallTimeout+cfg.LeaseMargin:
		return nil, errors.New("delivery: the lease must be at least the call timeout plus the margin")
	case cfg.BatchSize < 0 || cfg.BatchSize > MaxBatch:
		return nil, fmt.Errorf("delivery: a batch has at most %d deliveries", MaxBatch)
	}
	cfg.Verify = cmp.Or(cfg.Verify, chain.VerifyReceipt)
	cfg.HashPolicy = cmp.Or(cfg.HashPolicy, content.HashStrict)
	cfg.BatchSize = cmp.Or(cfg.BatchSize, MaxBatch)
	cfg.FetchLimit = cmp.Or(cfg.FetchLimit, 2<<20)
	cfg.MaxArgumentBytes = cmp.Or(cfg.MaxArgumentBytes, 64<<20)
	cfg.SpoolTimeout = cmp.Or(cfg.SpoolTimeout, 10*time.Second)
	cfg.RecordTimeout = cmp.Or(cfg.RecordTimeout, 5*time.Second)
	cfg.RecordPause = cmp.Or(cfg.RecordPause, 2*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	observed, err := lru.New[erc8004.Agent, time.Time](maxObservedAgents)
	if err != nil {
		return nil, err
	}
	batches, err := lru.New[erc8004.Agent, batchLimit](maxBatchAgents)
	events := &event.Checker{Ledger: cfg.Ledger, Chain: cfg.Chain, Verify: cfg.Verify, Keys: cfg.Keys,
		CountCorrected: cfg.Metrics.countCorrected}
	files := &content.Reader{Fetcher: cfg.Fetcher, Limit: cfg.FetchLimit, Policy: cfg.HashPolicy,
		Attempts: cfg.Schedule.Attempts(), Decoding: cfg.Decoding}
	return &Executor{Config: cfg, observed: observed, events: events, files: files, batches: batches,
		arguments:     memory.NewBudget(cfg.MaxArgumentBytes),
		memberFetches: make(chan struct{}, maxMemberFetches)}, err
}
