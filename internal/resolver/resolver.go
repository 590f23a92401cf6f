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

// Chain reads the tokenURI (ERC-721 Metadata) of an agent's identity token. If the agent does not exist, errors.As
// must find an error with a method NoSuchAgent() bool that returns true. Other errors are returned to the resolver's
// caller.
type Chain interface {
	TokenURI(ctx context.Context, chainID uint64, registry common.Address, id *big.Int) (string, error)
}

// Fetcher fetches a document. *ipfs.Fetcher implements it. The errors are those of package ipfs.
type Fetcher interface {
	Fetch(ctx context.Context, uri string, limit int64) (ipfs.Document, error)
	// FetchIf is Fetch, but returns ipfs.ErrUnchanged if the document's server reports that it still has these
	// validators.
	FetchIf(ctx context.Context, uri string, limit int64, v ipfs.Validators) (ipfs.Document, error)
}

// Config configures a Resolver. Zero values select the defaults.
type Config struct {
	Chain   Chain   // required
	Fetcher Fetcher // required

	// StdioCommands (HERALD_STDIO_COMMANDS) are the commands that a document may name, each with all its arguments.
	// By default no command is allowed.
	StdioCommands [][]string
	// MayRun reports whether an agent (decimal id) may name a command of StdioCommands. By default all agents may.
	MayRun func(chainID uint64, registry common.Address, agentID string, argv []string) bool

	// Binding (HERALD_BINDING) is the policy for endpoints that their own side does not bind to the agent:
	// BindingWarn (default), BindingRequire or BindingOff.
	Binding string

	// Limit bounds the registration document, in bytes. The default is 1 MiB.
	Limit int64
	// Timeout bounds one resolution, including chain and document. The default is 30 s.
	Timeout time.Duration

	// MutableTTL is how long an endpoint is cached if its document can change (https, http, ar, ipns), or if the
	// binding depends on the endpoint's domain. The default is 5 min.
	MutableTTL time.Duration
	// PinnedTTL is how long other endpoints from a document that cannot change (cid, data) are cached. Only tokenURI
	// can change then, and a follower of the chain raises the epoch in that case. The default is 1 h.
	PinnedTTL time.Duration
	// NegativeTTL is how long it is cached that an agent has no endpoint to call. The default is 1 min.
	NegativeTTL time.Duration
	// Decoding bounds the documents that the whole process decodes at a time. The default is no bound.
	Decoding *decode.Budget
	// CacheEntries bounds the number of cached agents. The default is 10,000.
	CacheEntries int

	Now func() time.Time // default: time.Now
}

// Agent identifies the agent to resolve.
type Agent struct {
	ChainID  uint64
	Registry common.Address // the identity registry
	ID       *big.Int
	// Epoch is the agent's current epoch. A raised epoch invalidates the cached outcome.
	Epoch int64
}

// cacheKey returns the agent's key in the cache.
func (a Agent) cacheKey() string {
	return strconv.FormatUint(a.ChainID, 10) + ":" + a.Registry.Hex() + ":" + a.ID.String()
}

// Target is the endpoint at which an agent accepts calls. All fields except Binding come from the document's author.
type Target struct {
	Transport    string // "http", "sse" or "stdio"
	URL          string // for http and sse
	Command      string // for stdio: exactly as the operator listed it
	Args         []string
	ProtocolHint string // MCP protocol revision that the author named, or ""
	TokenHeader  string // header in which the agent expects its token, or ""

	DocumentURI    string // without query and user information; "data:" for a document that is on chain
	DocumentSource string // cid, ipns, data, https, http, ar
	From           string // position in the document, for example "services[2]"
	// Binding is the evidence that the endpoint belongs to the agent: BoundByOrigin, BoundByDomain, Unbound or
	// BindingUnknown. It is "" if there is no endpoint, and if the policy is BindingOff and the endpoint's origin
	// does not serve the document.
	Binding string

	Took  time.Duration // duration of this call of Resolve
	Steps []Step
}

// Resolver resolves agents. It is safe for concurrent use.
type Resolver struct {
	cfg     Config
	cache   *cache
	domains *lru.Cache[string, domainList] // lists of domains, cached for a short time

	// Resolutions run with a context of the resolver, so that one caller's cancellation does not affect the other
	// callers.
	ctx     context.Context
	cancel  context.CancelFunc
	flights singleflight.Group
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// New validates the configuration and returns a Resolver. It makes no request.
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

// Close cancels running resolutions and waits for them.
func (r *Resolver) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.running.Wait()
}

// ErrClosed is the error of Resolve after Close.
var ErrClosed = errors.New("the resolver is closed")

// Resolve returns the agent's MCP endpoint, from the cache if possible.
//
// Errors: *SkipError, *TransportRefusedError, *UnboundError; wrapped: the chain's own errors, *ipfs.UnavailableError,
// *ipfs.NotFoundError, *ipfs.NoGatewayError, *netguard.BlockedError, *netguard.RefusedURLError; ErrClosed; ctx's own
// error if ctx ended.
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

// startFlight registers a resolution for which Close waits. It returns false if the resolver is closed.
func (r *Resolver) startFlight() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.running.Add(1)
	return true
}

// clone copies the slices, so that callers do not share them with the cache.
func (t Target) clone() Target {
	t.Args, t.Steps = slices.Clone(t.Args), slices.Clone(t.Steps)
	return t
}

// ttlOf returns how long an outcome is cached. It is 0 for a temporary failure.
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
		return r.cfg.MutableTTL // even if the document cannot change, the domain's list can
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
