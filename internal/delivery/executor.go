package delivery

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/servers"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/semaphore"
)

// Ledger is the store as a delivery needs it.
type Ledger interface {
	Claim(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (*store.Claim, error)
	Extend(ctx context.Context, c *store.Claim, d time.Duration) error
	Record(ctx context.Context, c *store.Claim, o store.Outcome) (store.Recorded, error)
	Adopt(ctx context.Context, c *store.Claim, past store.Past) (store.Recorded, error)
	Delivery(ctx context.Context, id uuid.UUID) (store.Delivery, error)
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
	Sealer     Sealer // of the outcomes in Results
	Dispatcher *Dispatcher
	Results    Results
	Limits     Limits     // per origin; nil: none
	Unbound    Limits     // instead of Limits for agents that nothing binds to their endpoint; nil: they have no others
	Newcomers  *Newcomers // what agents without a recent success get of the slots; nil: all
	Schedule   retry.Schedule

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

	// RecallPatience is how long a claim asks Redis for the known outcome of an attempt that never ended, before the delivery waits.
	// Default 10 s.
	RecallPatience time.Duration
	// RecordTimeout is for one try to record (default 5 s), RecordPause the longest pause between tries (default 2 s): after Postgres is
	// back, the sweep waits much longer.
	RecordTimeout, RecordPause time.Duration
	// Decoding bounds the documents that are decoded at a time, in the whole process; nil: not bounded.
	Decoding *decode.Budget
	// MaxArgumentBytes bounds what calls in flight hold of arguments, in the whole process; small ones are not counted. Default 64 MiB.
	MaxArgumentBytes int64
	// FetchLimit is the longest feedback file, in bytes. Default 2 MiB.
	FetchLimit int64

	Metrics *Metrics
	Logger  *slog.Logger
	// Trace hears of every step as it ends; nil: nobody. It must not block.
	Trace func(Step)
	Now   func() time.Time // default time.Now
	// Random spreads waits: [0, 1). Default rand.Float64.
	Random func() float64
}

// Step is one part of an attempt that has ended, for people who watch.
type Step struct {
	DeliveryID uuid.UUID
	Attempt    int
	Name       string // claim check resolve fetch compose call record
	Detail     string // a phrase: where from, how verified, what was answered
	Took       time.Duration
	At         time.Time
}

// Executor delivers. Safe for concurrent use.
type Executor struct {
	Config
	told  *lru.Cache[store.Agent, time.Time] // when what was recorded of an agent's tools was listed
	waits *waitSummary

	arguments *semaphore.Weighted // bytes of them in flight

	resultWarned atomic.Int64 // when ignoreResult warned last, in ns
}

// maxTold is of how many agents it is remembered what is recorded of them; of another one it is recorded again.
const maxTold = 4096

// New checks the configuration.
func New(cfg Config) (*Executor, error) {
	switch {
	case cfg.Ledger == nil || cfg.Chain == nil || cfg.Resolver == nil || cfg.Fetcher == nil || cfg.Caller == nil ||
		cfg.Opener == nil || cfg.Sealer == nil || cfg.Dispatcher == nil || cfg.Results == nil || cfg.Metrics == nil:
		return nil, errors.New("delivery: ledger, chain, resolver, fetcher, caller, opener, sealer, dispatcher, results and metrics are needed")
	case cfg.Schedule.Attempts() < 2:
		return nil, errors.New("delivery: a retry schedule is needed")
	case cfg.CallTimeout <= 0 || cfg.LeaseMargin <= 0 || cfg.Lease < cfg.CallTimeout+cfg.LeaseMargin:
		return nil, errors.New("delivery: the lease must be at least the call timeout plus the margin")
	}
	if cfg.HashPolicy == "" {
		cfg.HashPolicy = HashStrict
	}
	if cfg.FetchLimit <= 0 {
		cfg.FetchLimit = 2 << 20
	}
	if cfg.MaxArgumentBytes <= 0 {
		cfg.MaxArgumentBytes = 64 << 20
	}
	setDefault(&cfg.RecallPatience, 10*time.Second)
	setDefault(&cfg.RecordTimeout, 5*time.Second)
	setDefault(&cfg.RecordPause, 2*time.Second)
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	told, err := lru.New[store.Agent, time.Time](maxTold)
	if err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	return &Executor{Config: cfg, told: told, waits: newWaitSummary(), arguments: semaphore.NewWeighted(cfg.MaxArgumentBytes)}, nil
}

// claimTimeout bounds the claim: one statement, or the database is in trouble.
const claimTimeout = 10 * time.Second

// Deliver runs one hand-out of a delivery: task n of delivery id. A result with Refused means that the claim was not given
// and nothing was done. An error means that nothing is known to be recorded; the task may be tried again.
//
// The context is the process', not the task's: when it ends, the attempt is cut off, and what it led to is still recorded once.
func (p *Executor) Deliver(ctx context.Context, id uuid.UUID, n int) (Result, error) {
	a, err := p.claim(ctx, id, n)
	if a == nil {
		if err != nil && ctx.Err() == nil {
			p.Logger.Warn("a delivery cannot be claimed; its task comes again", logging.About(logging.Postgres),
				"delivery", id, "error", err)
		}
		return Result{Refused: err == nil}, err
	}
	var past *store.Past
	if err == nil {
		past, err = p.recall(ctx, a)
	}
	if past != nil {
		return p.adopt(ctx, a, *past)
	}
	return p.proceed(ctx, a, err)
}

// proceed makes the attempt, unless err says already what becomes of it, and records what it led to.
func (p *Executor) proceed(ctx context.Context, a *attempt, err error) (Result, error) {
	if err == nil {
		// The lease is extended once at most, before the call.
		run, cancel := context.WithTimeout(ctx, 2*p.Lease)
		if err = p.Newcomers.acquireSlot(run, a); err == nil {
			err = p.attempt(run, a)
		}
		cancel()
		a.file.Content = nil // recording may take long
		p.releaseArguments(a)
	}
	defer a.leaveSlots(ctx, 0) // the record is part of what a slot is for
	return p.record(ctx, a, err)
}

// attempt is one try, from the claimed row to the agent's answer.
func (p *Executor) attempt(ctx context.Context, a *attempt) (err error) {
	defer func() { p.depart(ctx, a, err) }()
	for _, step := range []step{
		{"check", p.check},
		{"resolve", p.resolve},
		{"fetch", p.fetch},
		{"compose", p.compose},
		{"call", p.call},
	} {
		a.out.Stage = step.name
		began := p.Now()
		detail, err := p.safely(ctx, a, step)
		p.trace(a, step.name, detail, err, began)
		if err != nil {
			return err
		}
	}
	return nil
}

type step struct {
	name string
	run  func(context.Context, *attempt) (detail string, err error)
}

// safely turns a panic over a stranger's bytes into a failed attempt, so that it is recorded and its attempts are counted.
func (p *Executor) safely(ctx context.Context, a *attempt, s step) (detail string, err error) {
	defer func() {
		if v := recover(); v != nil {
			p.Logger.Error("a step panicked", "delivery", a.claim.ID, "step", s.name, "panic", v, "stack", string(debug.Stack()))
			a.out.Called = a.out.Called || s.name == "call"
			err = retry.Fail(retry.InternalError, "a fault of Herald's own in step "+s.name+": its log has the stack")
		}
	}()
	return s.run(ctx, a)
}

// attempt is what one try learns on its way.
type attempt struct {
	claim    *store.Claim
	began    time.Time // this process' monotonic clock, before the claim was asked for
	lease    time.Duration
	job      job.Job
	server   servers.Server
	target   mcpcall.Endpoint
	file     job.File
	tool     mcpcall.Tool
	tools    []mcpcall.Tool // that the agent offers, when it was asked
	args     map[string]any
	sent     [sha256.Size]byte        // of args as JSON
	cleaned  bool                     // control characters were taken out of what the agent receives
	own      bool                     // the credentials are the job's own
	listed   bool                     // the servers file has something to say about the agent: server
	unbound  bool                     // nothing binds the agent to the endpoint that its registration, or the job, names
	hurried  bool                     // the call ran out of less time than it would have had without the job's timeoutMs
	bare     bool                     // out has lost what Postgres would not take
	kept     bool                     // Redis has out, because Postgres did not take it at once
	away     bool                     // it failed because Postgres or Redis was away
	auth     *agentauth.Authorization // the target with the credential that goes to it; nil: not authorized yet
	place    Permit                   // at the origin
	reserved int64                    // bytes for args
	slots    []slot                   // among the newcomers
	offered  time.Time                // when the tools in out were listed
	out      store.Outcome
}

// onUnknown is what becomes of a call of which nobody knows whether the agent took it.
func (a *attempt) onUnknown() string { return cmp.Or(a.server.OnUnknown, a.claim.Policy.OnUnknown) }

// leaseLeft is a lower bound of what is left of the lease, by this process' monotonic clock.
func (a *attempt) leaseLeft(now time.Time) time.Duration { return a.lease - now.Sub(a.began) }

// claim takes the row for this process; nil without error: refused.
func (p *Executor) claim(ctx context.Context, id uuid.UUID, n int) (*attempt, error) {
	began := p.Now()
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	c, err := p.Ledger.Claim(ctx, id, n, p.Lease)
	if c == nil {
		return nil, err
	}
	a := &attempt{claim: c, began: began, lease: p.Lease, job: c.Job, out: store.Outcome{Stage: "claim"}}
	if p.Servers != nil {
		a.server, a.listed = p.Servers(c.Agent())
	}
	p.trace(a, "claim", "", err, began)
	return a, err
}

func (p *Executor) trace(a *attempt, name, detail string, err error, began time.Time) {
	now := p.Now()
	if err != nil {
		detail = err.Error()
	}
	p.Logger.Debug("step", "delivery", a.claim.ID, "attempt", a.claim.Attempt, "step", name, "detail", detail, "took", now.Sub(began))
	if p.Trace != nil {
		p.Trace(Step{DeliveryID: a.claim.ID, Attempt: a.claim.Attempt, Name: name, Detail: detail, Took: now.Sub(began), At: now})
	}
}

func (a *attempt) agent() resolver.Agent {
	return resolver.Agent{ChainID: a.job.ChainID, Registry: a.job.IdentityRegistry, ID: new(big.Int).Set(a.job.AgentID), Epoch: a.claim.Epoch}
}

// HeaderBinding ties a job's secret headers to its agent (registry in any case, decimal id) and to the origin of the URL they are for.
func HeaderBinding(chainID uint64, registry, agentID, rawURL string) secret.Binding {
	return secret.Binding{Purpose: "job.headers.v1", ChainID: chainID, Registry: common.HexToAddress(registry).Hex(), AgentID: agentID,
		Origin: origin(rawURL)}
}

func headerBinding(j job.Job, rawURL string) secret.Binding {
	return HeaderBinding(j.ChainID, j.IdentityRegistry.Hex(), j.AgentID.String(), rawURL)
}

// asJSON is v as JSON, or nil when v has none: it is only shown.
func asJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}
