package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	lru "github.com/hashicorp/golang-lru/v2"
)

// TokenRecords is the part of the operator's records that manages stored tokens.
type TokenRecords interface {
	AgentTokens(ctx context.Context, a erc8004.Agent) (tokens []records.Token, held bool, err error)
	PinTokenPath(ctx context.Context, t records.Token, path string) (pinned string, err error)
	RenewalRecords
}

// Ledger is the part of the ledger that releases deliveries that were held for a missing credential.
type Ledger interface {
	ReleaseHeld(ctx context.Context, a erc8004.Agent, reasons ...outcome.Reason) (released int, tasks []ledger.Task,
		err error)
}

// Keys encrypts and decrypts stored secrets (secret.Keyset).
type Keys interface {
	Seal(plain []byte, b secret.Binding) ([]byte, error)
	Open(cipher []byte, b secret.Binding) ([]byte, error)
}

// Config configures an Authorizer.
type Config struct {
	Ledger  Ledger
	Records TokenRecords
	Keys    Keys
	// Classify returns the verdict for an error of any package (package delivery/classify).
	Classify func(error) outcome.Verdict
	OAuth    Authority // obtains access tokens
	// Spool keeps refresh tokens that the ledger currently cannot store. Without it they exist only in this process.
	Spool RenewalSpool
	// Age is how long the cached tokens of an agent are used before they are read again. A higher epoch invalidates
	// them earlier. Default 1 min.
	Age time.Duration
	// Entries bounds the agents in each cache. Default 10,000.
	Entries int
	// RefusalPause is how long an agent that refused its credential is not called again. Default 10 min.
	RefusalPause time.Duration
	// RefusedPause is the pause after an agent refused a fresh access token. It grows with each consecutive refusal.
	// Default 2 s.
	RefusedPause time.Duration
	// SaveTimeout bounds the saving of a renewal. After it, the process keeps the renewal in memory and tries again
	// later. Default 5 s.
	SaveTimeout time.Duration
	// Ticks are the times at which a worker checks whether another worker has renewed an access token. Default: every
	// 100 ms during a wait.
	Ticks  <-chan time.Time
	Logger *slog.Logger
	Now    func() time.Time // default time.Now
}

// Authorizer adds the credentials that operators stored for their agents to endpoints. It caches refusals, so that an
// agent that requires another credential is called once and not with every delivery. A nil Authorizer has no
// credentials. It is safe for concurrent use.
type Authorizer struct {
	Config
	known   *lru.Cache[erc8004.Agent, *knownTokens]
	refused *lru.Cache[erc8004.Agent, refusal]
	// released holds the epoch for which a success has released the held deliveries of an agent. It is needed because
	// one success proves nothing about other calls: an agent may refuse some calls because of their content and accept
	// others. Without it, every success would release and repeat the refused ones.
	released *lru.Cache[erc8004.Agent, int64]

	access *lru.Cache[audience, *accessToken] // all workers share the access tokens through the store
	failed *lru.Cache[failureKey, failedRenewal]
	// refusals counts the fresh access tokens that an agent refused in a row. A call that the agent accepts removes the
	// entry.
	refusals *lru.Cache[audience, freshRefusals]
	mu       sync.Mutex // guards flights and refusals
	flights  map[audience]*flight
}

// knownTokens are the cached tokens of an agent, encrypted.
type knownTokens struct {
	epoch  int64
	read   time.Time
	tokens []records.Token
	held   atomic.Bool // deliveries are held because of the credential
}

// refusal records a credential that an agent refused. A zero credential means that there was none to send.
type refusal struct {
	epoch      int64
	url        [sha256.Size]byte // hash of the endpoint's URL, which the agent chooses
	credential [sha256.Size]byte
	at         time.Time
	wantsOAuth bool
	remedy     string // for an access token with too little scope; "": describeRemedy
}

// New validates cfg and returns an Authorizer.
func New(cfg Config) (*Authorizer, error) {
	if cfg.Ledger == nil || cfg.Records == nil || cfg.Keys == nil || cfg.Classify == nil || cfg.OAuth == nil {
		return nil, errors.New("auth: a ledger, records, keys, a classifier and a client for OAuth are needed")
	}
	cfg.Age = cmp.Or(cfg.Age, time.Minute)
	cfg.Entries = cmp.Or(cfg.Entries, 10_000)
	cfg.RefusalPause = cmp.Or(cfg.RefusalPause, 10*time.Minute)
	cfg.RefusedPause = cmp.Or(cfg.RefusedPause, 2*time.Second)
	cfg.SaveTimeout = cmp.Or(cfg.SaveTimeout, saveTimeout)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Authorizer{
		Config:   cfg,
		known:    newCache[erc8004.Agent, *knownTokens](cfg.Entries),
		refused:  newCache[erc8004.Agent, refusal](cfg.Entries),
		released: newCache[erc8004.Agent, int64](cfg.Entries),
		access:   newCache[audience, *accessToken](cfg.Entries),
		failed:   newCache[failureKey, failedRenewal](cfg.Entries),
		refusals: newCache[audience, freshRefusals](cfg.Entries),
		flights:  map[audience]*flight{},
	}, nil
}

// newCache returns an LRU cache for the given number of entries.
func newCache[K comparable, V any](entries int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](entries)
	if err != nil {
		panic(err) // entries is less than one
	}
	return c
}

// Subject identifies the agent of an endpoint, and the source that named the endpoint.
type Subject struct {
	Agent erc8004.Agent
	// Epoch is incremented in the agent's row when cached data of the agent becomes stale. 0: any cached data may be
	// used.
	Epoch int64
	// NamedByJob: a job or a command-line option names the endpoint, not the registration or the servers file.
	NamedByJob bool
	OwnHeaders bool // the job contains the endpoint's headers, so that no stored token is added
	Insist     bool // an operator makes this request, so recent refusals are ignored
}

// Authorization is an endpoint together with the credential that is sent to it.
type Authorization struct {
	Subject  Subject
	Endpoint mcpcall.Endpoint // with the headers to send

	token      *records.Token // the stored token that is sent; nil: none
	withheld   *records.Token // a token for the endpoint's origin that must not be sent to this endpoint; nil: none
	configured bool           // the headers are from the servers file
	refreshed  bool           // the agent refused an access token, and a new one was requested
	// wantsScope: the agent requires an access token with more scope, which could not be obtained or did not help.
	wantsScope bool
	wantsOAuth bool // the agent requires OAuth, but no OAuth credential is stored
}

// Stored reports whether a stored token is sent, and whether it is an access token of an OAuth credential.
func (a *Authorization) Stored() (stored, oauth bool) {
	return a.token != nil, a.token != nil && a.token.OAuth()
}

// Refreshed reports whether the agent refused an access token, so that a new one was requested.
func (a *Authorization) Refreshed() bool { return a.refreshed }

// Note describes the token that is sent, as the end of a sentence; "" if none is sent.
func (a *Authorization) Note() string {
	switch {
	case a.token == nil:
		return ""
	case a.token.OAuth():
		return ", with an access token of the credential stored for it"
	}
	return ", with the token stored for it"
}

// Authorize adds the token that is stored for the origin and path of e. The job's own headers take precedence, then
// those of the servers file. Commands get no token. If the registration points to a different location than the agent's
// token was stored for, Authorize returns an error that holds the delivery: the operator has to decide whether the
// agent is still the same.
func (z *Authorizer) Authorize(ctx context.Context, s Subject, e mcpcall.Endpoint) (*Authorization, error) {
	a := &Authorization{Subject: s, Endpoint: e, configured: e.Listed && len(e.Headers) > 0}
	if z == nil || s.OwnHeaders || e.URL == "" {
		return a, nil
	}
	if err := z.authorizeEndpoint(ctx, a); err != nil {
		z.rememberRefusal(a, err, z.Classify(err))
		return nil, err
	}
	return a, nil
}

// authorizeEndpoint adds the token to a.Endpoint. It returns an error if the agent refused the same credential
// recently.
func (z *Authorizer) authorizeEndpoint(ctx context.Context, a *Authorization) error {
	known, err := z.readTokens(ctx, a.Subject.Agent, a.Subject.Epoch)
	if err != nil {
		return err
	}
	if err := z.attachToken(ctx, known.tokens, a); err != nil {
		return err
	}
	if a.token == nil && len(a.Endpoint.Headers) == 0 {
		a.withheld = tokenOfOrigin(known.tokens, a.Endpoint.URL)
	}
	if a.Subject.Insist {
		return nil
	}
	r, ok := z.refused.Get(a.Subject.Agent)
	ago := z.Now().Sub(r.at)
	if !ok || r.epoch != a.Subject.Epoch || r.credential != a.Endpoint.ClientKey() || ago >= z.RefusalPause {
		return nil
	}
	a.wantsOAuth = r.wantsOAuth
	return outcome.Fail(outcome.AuthRequired,
		fmt.Sprintf("the agent refused the credential %s ago (HTTP 401 or 403) and is not asked again for %s: %s",
			ago.Round(time.Second), (z.RefusalPause-ago).Round(time.Second), cmp.Or(r.remedy, a.describeRemedy())))
}

// readTokens returns the tokens of an agent. It queries the store unless the cache has tokens of this or a later epoch
// that are younger than Age.
func (z *Authorizer) readTokens(ctx context.Context, g erc8004.Agent, epoch int64) (*knownTokens, error) {
	now := z.Now()
	if k, ok := z.known.Get(g); ok && k.epoch >= epoch && now.Sub(k.read) < z.Age {
		return k, nil
	}
	tokens, held, err := z.Records.AgentTokens(ctx, g)
	if err != nil {
		return nil, err
	}
	k := &knownTokens{epoch: epoch, read: now, tokens: tokens}
	k.held.Store(held)
	z.known.Add(g, k)
	return k, nil
}

// attachToken sets the header of the token that is stored for the endpoint, unless the endpoint already has headers.
func (z *Authorizer) attachToken(ctx context.Context, tokens []records.Token, a *Authorization) error {
	e, s := &a.Endpoint, a.Subject
	if len(tokens) == 0 || len(e.Headers) > 0 {
		return nil
	}
	registered := !s.NamedByJob && !e.Listed
	t := tokenOfOrigin(tokens, e.URL)
	covered, err := z.coversEndpoint(ctx, t, s, *e)
	switch {
	case err != nil:
		return err
	case !covered && registered && t != nil:
		// t is a copy. coversEndpoint may just have set its path.
		return holdMoved(s.Agent, e.URL, []records.Token{*t})
	case !covered && registered:
		return holdMoved(s.Agent, e.URL, tokens)
	case !covered:
		return nil
	}
	if t.ExpiresAt != nil && !z.Now().Before(*t.ExpiresAt) {
		return outcome.Fail(outcome.AuthRequired,
			fmt.Sprintf("the token stored for %s expired at %s: store another one, %s",
				t.URL(), t.ExpiresAt.UTC().Format(time.RFC3339), howToStore(*t)))
	}
	var value secret.Secret
	if t.OAuth() {
		value, err = z.bearerHeader(ctx, tokenRequest{token: *t, url: e.URL, insist: s.Insist})
	} else {
		value, err = z.openToken(*t)
	}
	if err != nil {
		return err
	}
	e.Headers = map[string]secret.Secret{t.Header: value}
	a.token = t
	return nil
}

// tokenOfOrigin returns a copy of the token that is stored for a URL's origin, regardless of its path; nil if it finds
// none.
func tokenOfOrigin(tokens []records.Token, rawURL string) *records.Token {
	origin, err := netguard.CredentialOriginOf(rawURL)
	i := slices.IndexFunc(tokens, func(t records.Token) bool { return t.Origin == origin })
	if err != nil || i < 0 {
		return nil // the guard reports an invalid address
	}
	t := tokens[i]
	return &t
}

// coversEndpoint reports whether the token of an endpoint's origin may be sent to the endpoint. For an endpoint from
// the registration or the servers file, the token covers the path it was stored for and the paths below. For an
// endpoint that a job names, it covers exactly that URL, because an origin may host many agents and jobs are not
// written by the operator. A token that an earlier version stored without a path is bound to the first registered path.
func (z *Authorizer) coversEndpoint(ctx context.Context, t *records.Token, s Subject,
	e mcpcall.Endpoint) (bool, error) {
	path := CredentialPath(e.URL)
	switch {
	case t == nil:
		return false, nil
	case s.NamedByJob:
		return t.Path != "" && isExactly(e.URL, t.Path), nil
	case e.Listed:
		return t.Path == "" || CoversPath(t.Path, path), nil
	case t.Path != "":
		return CoversPath(t.Path, path), nil
	}
	var err error
	if t.Path, err = z.Records.PinTokenPath(ctx, *t, path); errors.Is(err, ledger.ErrNotFound) {
		return false, outcome.Pause(outcome.Throttled, time.Second,
			"the token stored for "+string(t.Origin)+" is just being removed")
	}
	z.known.Remove(t.Agent) // the next read returns it with its path
	return err == nil && CoversPath(t.Path, path), err
}
