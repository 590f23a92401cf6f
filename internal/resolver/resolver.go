package resolver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/ethereum/go-ethereum/common"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
)

// Chain reads the tokenURI (ERC-721) of an agent from its identity registry. For an agent that does not exist, it
// returns an error in which errors.As finds a method NoSuchAgent() bool that returns true. Resolve returns other errors
// to its caller.
type Chain interface {
	TokenURI(ctx context.Context, chainID uint64, registry common.Address, id *big.Int) (string, error)
}

// Fetcher fetches a document of at most limit bytes. *ipfs.Fetcher implements it. The errors are those of package ipfs.
type Fetcher interface {
	Fetch(ctx context.Context, uri string, limit int64) (ipfs.Document, error)
	// FetchIf is Fetch with a conditional request. It returns ipfs.ErrUnchanged if the server reports that the
	// document still has the validators v.
	FetchIf(ctx context.Context, uri string, limit int64, v ipfs.Validators) (ipfs.Document, error)
}

// Config configures a Resolver. Zero values select the defaults.
type Config struct {
	Chain   Chain   // required
	Fetcher Fetcher // required

	// StdioCommands (HERALD_STDIO_COMMANDS) are the commands that an agent's document may name, each with all its
	// arguments. Default: none.
	StdioCommands [][]string
	// MayRun reports whether the document of this agent (agentID is decimal) may name argv, a command of
	// StdioCommands. Default: every agent's document may.
	MayRun func(chainID uint64, registry common.Address, agentID string, argv []string) bool

	// Binding (HERALD_BINDING) is the policy for unbound endpoints: BindingWarn (default), BindingRequire or
	// BindingOff.
	Binding string

	// Limit bounds the registration document, in bytes. The default is 1 MiB.
	Limit int64
	// Timeout bounds one resolution, including chain and document. The default is 30 s.
	Timeout time.Duration

	// MutableTTL is the time for which an endpoint is cached if its document can change (https, http, ar, ipns) or its
	// binding depends on a domain's list. The default is 5 min.
	MutableTTL time.Duration
	// PinnedTTL is the time for which other endpoints are cached: their document cannot change (cid, data). If the
	// agent's tokenURI changes, a follower of the chain raises the epoch. The default is 1 h.
	PinnedTTL time.Duration
	// NegativeTTL is the time for which a permanent error is cached, such as a *SkipError. The default is 1 min.
	NegativeTTL time.Duration
	// Decoding bounds the bytes of documents that the whole process decodes at a time. The default is no bound.
	Decoding *decode.Budget
	// CacheEntries bounds the number of cached agents. The default is 10,000.
	CacheEntries int

	Now func() time.Time // default: time.Now
}

// Agent identifies an agent to resolve.
type Agent struct {
	ChainID  uint64
	Registry common.Address // the identity registry
	ID       *big.Int
	// Epoch is the agent's current epoch. A result that was cached for a lower epoch is not used.
	Epoch int64
	// Anew: the cached result may be outdated, so it is not used if it is older than anewAfter.
	Anew bool
}

// anewAfter bounds how often the registration of an agent is read because of Agent.Anew.
const anewAfter = 10 * time.Second

// settleTTL bounds the time for which the first result of a raised epoch is cached. The node may lack the block for
// which the epoch was raised, and then returns the former tokenURI.
const settleTTL = time.Minute

// cacheKey returns the agent's key in the cache. It does not contain the epoch.
func (a Agent) cacheKey() string {
	return erc8004.Agent{ChainID: a.ChainID, Registry: a.Registry.Hex(), ID: a.ID.String()}.FullName()
}

// Target is an agent's MCP endpoint. The author of the registration document determines all fields except Binding, Took
// and Steps.
type Target struct {
	Transport    string // "http", "sse" or "stdio"
	URL          string // for http and sse
	Command      string // for stdio; with Args, one of Config.StdioCommands
	Args         []string
	ProtocolHint string // MCP revision that the document states, or ""
	TokenHeader  string // HTTP header in which the agent expects its token, or ""

	Name           string // the agent's name, on one line and shortened
	DocumentURI    string // without query and user information; "data:" for a document that is on chain
	DocumentSource string // how the document is identified: cid, ipns, data, https, http or ar
	From           string // position of the entry in the document, such as "services[2]"
	// Binding is the evidence that the endpoint belongs to the agent: BoundByOrigin, BoundByDomain, Unbound or
	// BindingUnknown. It is "" if there is no endpoint. It is also "" with BindingOff, unless it is BoundByOrigin.
	Binding string

	Took  time.Duration // duration of the call of Resolve that returned this Target
	Steps []Step
}

// Resolver resolves agents and caches the results. It is safe for concurrent use.
type Resolver struct {
	cfg     Config
	cache   *cache
	domains *lru.Cache[string, domainList] // domains' lists by URL (readDomain)

	// All callers that wait for the same agent share one resolution. It runs with the context ctx, so that the
	// cancellation of one caller does not affect the others.
	ctx     context.Context
	cancel  context.CancelFunc
	flights singleflight.Group
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// New validates cfg and returns a Resolver. It makes no request.
func New(cfg Config) (*Resolver, error) {
	if cfg.Chain == nil || cfg.Fetcher == nil {
		return nil, errors.New("resolver: a chain reader and a fetcher are needed")
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 30*time.Second)
	cfg.MutableTTL = cmp.Or(cfg.MutableTTL, 5*time.Minute)
	cfg.PinnedTTL = cmp.Or(cfg.PinnedTTL, time.Hour)
	cfg.NegativeTTL = cmp.Or(cfg.NegativeTTL, time.Minute)
	cfg.Limit = cmp.Or(cfg.Limit, erc8004.MaxRegistrationBytes)
	cfg.Binding = cmp.Or(cfg.Binding, BindingWarn)
	cfg.CacheEntries = cmp.Or(cfg.CacheEntries, 10_000)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	domains, _ := lru.New[string, domainList](maxDomains) // fails only for a size below 1
	r := &Resolver{cfg: cfg, cache: newCache(cfg.CacheEntries), domains: domains}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Close cancels running resolutions and waits until they have ended.
func (r *Resolver) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.running.Wait()
}

// ErrClosed is the error of Resolve after Close.
var ErrClosed = errors.New("the resolver is closed")

// Resolve returns the agent's MCP endpoint. It uses the cached result for the agent if that is fresh, and otherwise
// reads the chain and the registration document.
//
// The error is a *SkipError, the *outcome.Failure of an inactive agent, a *TransportRefusedError, an *UnboundError or
// ErrClosed; or it wraps an error of Chain, an *ipfs.UnavailableError, *ipfs.NotFoundError, *ipfs.NoGatewayError,
// *netguard.BlockedError or *netguard.RefusedURLError; or, if ctx ended, the cause of that.
func (r *Resolver) Resolve(ctx context.Context, a Agent) (Target, error) {
	if a.ID == nil || a.ID.Sign() < 0 || a.ID.BitLen() > 256 {
		return Target{}, errors.New("resolver: the agent's id is not a uint256")
	}
	start := r.cfg.Now()
	key := a.cacheKey()
	if o, made, ok := r.cache.getFresh(key, a.Epoch, start); ok && (!a.Anew || start.Sub(made) < anewAfter) {
		t := o.target.clone()
		t.Steps = []Step{{What: "cache", Source: fmt.Sprintf("resolved %s ago", start.Sub(made).Round(time.Second)),
			Detail: o.summarize()}}
		t.Took = 0
		return t, o.err
	}
	flight := r.flights.DoChan(key+"@"+strconv.FormatInt(a.Epoch, 10), func() (any, error) {
		if !r.startFlight() {
			return result{err: ErrClosed}, nil
		}
		defer r.running.Done()
		ctx, cancel := context.WithTimeout(r.ctx, r.cfg.Timeout)
		defer cancel()
		o := r.resolveAgent(ctx, a, r.cache.getStalePage(key, a.Epoch))
		ttl := r.ttlOf(o)
		if a.Epoch > 0 && !r.cache.hasEpoch(key, a.Epoch) {
			ttl = min(ttl, settleTTL)
		}
		if ttl > 0 {
			now := r.cfg.Now()
			r.cache.putNewer(key, entry{epoch: a.Epoch, result: o, made: now, expires: now.Add(ttl)})
		}
		return o, nil
	})
	select {
	case res := <-flight:
		o := res.Val.(result) // the flight's own error is never set
		t := o.target.clone()
		t.Took = r.cfg.Now().Sub(start)
		return t, o.err
	case <-ctx.Done():
		return Target{}, fmt.Errorf("resolving agent %s: %w", key, context.Cause(ctx))
	}
}

// startFlight registers a resolution, so that Close waits for it. It returns false if the resolver is closed.
func (r *Resolver) startFlight() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.running.Add(1)
	return true
}

// clone returns a copy of t that shares no slices with t.
func (t Target) clone() Target {
	t.Args, t.Steps = slices.Clone(t.Args), slices.Clone(t.Steps)
	return t
}

// ttlOf returns the time for which a result is cached. It returns 0 for a temporary failure, which is not cached.
func (r *Resolver) ttlOf(o result) time.Duration {
	var (
		skip    *SkipError
		failed  *outcome.Failure
		refused *TransportRefusedError
		unbound *UnboundError
		blocked *netguard.BlockedError
		badURL  *netguard.RefusedURLError
	)
	pinned := o.target.DocumentSource == ipfs.SourceCID || o.target.DocumentSource == ipfs.SourceData
	switch {
	case o.err == nil && o.target.Binding == BindingUnknown:
		return min(unknownTTL, r.cfg.MutableTTL)
	case o.err == nil && (o.target.Binding == Unbound || o.target.Binding == BoundByDomain):
		return r.cfg.MutableTTL // even if the document cannot change, the domain's list can
	case o.err == nil && pinned:
		return r.cfg.PinnedTTL
	case o.err == nil:
		return r.cfg.MutableTTL
	case errors.As(o.err, &skip), errors.As(o.err, &failed), errors.As(o.err, &refused),
		errors.As(o.err, &unbound), errors.As(o.err, &blocked), errors.As(o.err, &badURL):
		return r.cfg.NegativeTTL
	}
	return 0
}
