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

	"github.com/ethereum/go-ethereum/common"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/netguard"
)

// Chain reads tokenURI (ERC-721 Metadata) of an agent's identity token. That the agent does not exist is an error for
// which errors.As finds interface{ NoSuchAgent() bool } returning true; every other error is passed on to the
// resolver's caller.
type Chain interface {
	TokenURI(ctx context.Context, chainID uint64, registry common.Address, id *big.Int) (string, error)
}

// Fetcher brings a document; *ipfs.Fetcher is one. Its errors are that package's.
type Fetcher interface {
	Fetch(ctx context.Context, uri string, limit int64) (ipfs.Document, error)
	// FetchIf is Fetch with ipfs.ErrUnchanged when the document's server says that it is still the one with these
	// validators.
	FetchIf(ctx context.Context, uri string, limit int64, v ipfs.Validators) (ipfs.Document, error)
}

// Config of a Resolver. Zero values take the defaults.
type Config struct {
	Chain   Chain   // required
	Fetcher Fetcher // required

	// StdioCommands (HERALD_STDIO_COMMANDS) are the commands that a document may name, each with all its arguments.
	// Default none.
	StdioCommands [][]string
	// MayRun tells which of them an agent (decimal id) may name. Default all.
	MayRun func(chainID uint64, registry common.Address, agentID string, argv []string) bool

	// Binding (HERALD_BINDING) is what becomes of endpoints that their own side does not bind to the agent: BindingWarn
	// (default), BindingRequire or BindingOff.
	Binding string

	// Limit bounds the registration document, in bytes. Default 1 MiB.
	Limit int64
	// Timeout bounds one resolving, chain and document together. Default 30 s.
	Timeout time.Duration

	// MutableTTL is how long an endpoint from a document is believed that its server may change (https, http, ar,
	// ipns), and a binding that only the endpoint's domain knows of. Default 5 min.
	MutableTTL time.Duration
	// PinnedTTL is the same for documents that cannot change (cid, data): only tokenURI can, and that raises the epoch
	// when somebody watches the chain. Default 1 h.
	PinnedTTL time.Duration
	// NegativeTTL is how long "nothing to deliver to" is believed. Default 1 min.
	NegativeTTL time.Duration
	// Decoding bounds the documents that are decoded at a time, in the whole process. Default: not bounded.
	Decoding *decode.Budget
	// CacheEntries bounds the agents remembered. Default 10,000.
	CacheEntries int

	Now func() time.Time // default: time.Now
}

// Agent is whom to resolve.
type Agent struct {
	ChainID  uint64
	Registry common.Address // the identity registry
	ID       *big.Int
	// Epoch is the agent's current one; a raised epoch resolves anew.
	Epoch int64
}

// cacheKey names the agent in the cache.
func (a Agent) cacheKey() string {
	return strconv.FormatUint(a.ChainID, 10) + ":" + a.Registry.Hex() + ":" + a.ID.String()
}

// Target is where an agent takes calls. Everything in it but Binding is the document's author's word.
type Target struct {
	Transport    string // "http", "sse" or "stdio"
	URL          string // for http and sse
	Command      string // for stdio: exactly as the operator listed it
	Args         []string
	ProtocolHint string // MCP protocol revision the author named, "" when none
	TokenHeader  string // header that the agent wants its token in, "" when not said

	DocumentURI    string // without query and user information; "data:" for one that is on chain
	DocumentSource string // cid, ipns, data, https, http, ar
	From           string // where in the document: "services[2]"
	// Binding is what binds the agent to the endpoint: BoundByOrigin, BoundByDomain, Unbound, BindingUnknown; "" where
	// there is nothing to call, and when the policy is that nobody is asked.
	Binding string

	Took  time.Duration // of this Resolve
	Steps []Step
}

// Resolver resolves agents. It is safe for concurrent use.
type Resolver struct {
	cfg     Config
	cache   *cache
	domains *lru.Cache[string, domainList] // what domains say of their agents, for a moment

	// Resolving runs on a context of the resolver's own: one caller's leaving does not take the result from the others.
	ctx     context.Context
	cancel  context.CancelFunc
	flights singleflight.Group
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// New checks the configuration and returns a resolver. No network is touched.
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
	domains, _ := lru.New[string, domainList](maxDomains) // fails for a size below 1 only
	r := &Resolver{cfg: cfg, cache: newCache(cfg.CacheEntries), domains: domains}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Close ends what is being resolved and waits for it.
func (r *Resolver) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.running.Wait()
}

// ErrClosed is what Resolve returns once the resolver was closed.
var ErrClosed = errors.New("the resolver is closed")

// Resolve finds the agent's MCP endpoint, from the cache when it can.
//
// Errors: *SkipError, *TransportRefusedError, *UnboundError; wrapped: the chain's own, *ipfs.UnavailableError,
// *ipfs.NotFoundError, *netguard.BlockedError, *netguard.RefusedURLError; ErrClosed; ctx's own when the caller left.
func (r *Resolver) Resolve(ctx context.Context, a Agent) (Target, error) {
	if a.ID == nil || a.ID.Sign() < 0 || a.ID.BitLen() > 256 {
		return Target{}, errors.New("resolver: the agent's id is not a uint256")
	}
	start := r.cfg.Now()
	key := a.cacheKey()
	if o, made, ok := r.cache.getFresh(key, a.Epoch, start); ok {
		t := o.target.clone()
		t.Steps = []Step{{What: "cache", Source: fmt.Sprintf("resolved %s ago", start.Sub(made).Round(time.Second)),
			Detail: o.summarize()}}
		t.Took = 0
		return t, o.err
	}
	result := r.flights.DoChan(key+"@"+strconv.FormatInt(a.Epoch, 10), func() (any, error) {
		if !r.startFlight() {
			return outcome{err: ErrClosed}, nil
		}
		defer r.running.Done()
		ctx, cancel := context.WithTimeout(r.ctx, r.cfg.Timeout)
		defer cancel()
		o := r.resolveAgent(ctx, a, r.cache.getStalePage(key, a.Epoch))
		if ttl := r.ttlOf(o); ttl > 0 {
			now := r.cfg.Now()
			r.cache.putNewer(key, entry{epoch: a.Epoch, outcome: o, made: now, expires: now.Add(ttl)})
		}
		return o, nil
	})
	select {
	case res := <-result:
		o := res.Val.(outcome) // the flight's own error is never set
		t := o.target.clone()
		t.Took = r.cfg.Now().Sub(start)
		return t, o.err
	case <-ctx.Done():
		return Target{}, fmt.Errorf("resolving agent %s: %w", key, context.Cause(ctx))
	}
}

func (r *Resolver) startFlight() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.running.Add(1)
	return true
}

// clone keeps callers from sharing slices with the cache.
func (t Target) clone() Target {
	t.Args, t.Steps = slices.Clone(t.Args), slices.Clone(t.Steps)
	return t
}

// ttlOf says how long an outcome may be believed; 0 for what may be over at once.
func (r *Resolver) ttlOf(o outcome) time.Duration {
	var (
		skip    *SkipError
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
		return r.cfg.MutableTTL // whatever the document is, the domain may say something else tomorrow
	case o.err == nil && pinned:
		return r.cfg.PinnedTTL
	case o.err == nil:
		return r.cfg.MutableTTL
	case errors.As(o.err, &skip), errors.As(o.err, &refused), errors.As(o.err, &unbound), errors.As(o.err, &blocked),
		errors.As(o.err, &badURL):
		return r.cfg.NegativeTTL
	}
	return 0
}
