package agentauth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	lru "github.com/hashicorp/golang-lru/v2"
)

// TokenLedger is the store as stored tokens need it.
type TokenLedger interface {
	AgentTokens(ctx context.Context, a store.Agent) (tokens []store.Token, held bool, err error)
	PinTokenPath(ctx context.Context, t store.Token, path string) (pinned string, err error)
	ReleaseHeld(ctx context.Context, a store.Agent, reasons ...reason.Reason) (released int, tasks []store.Task, err error)
	RenewalLedger
}

// Opener decrypts what a Sealer has encrypted.
type Opener interface {
	Open(cipher []byte, b secret.Binding) ([]byte, error)
}

// Sealer encrypts.
type Sealer interface {
	Seal(plain []byte, b secret.Binding) ([]byte, error)
}

// Config makes an Authorizer.
type Config struct {
	Ledger TokenLedger
	Opener Opener
	// OAuth gets access tokens, and Sealer seals what it gets. Without OAuth, deliveries to agents with an OAuth
	// credential are held.
	OAuth  Authority
	Sealer Sealer
	// Spool keeps refresh tokens that the ledger cannot take now. Without it only this process keeps them.
	Spool RenewalSpool
	// Age is how long the tokens read for an agent are used before they are read again; a raised epoch ends it earlier.
	// Default 1 min.
	Age time.Duration
	// Entries bounds the agents in each cache. Default 10,000.
	Entries int
	// Patience is how long an agent that refused its credential is not asked again. Default 10 min.
	Patience time.Duration
	// RefusedPause is how long an agent that refused a fresh access token is left alone; it grows with each further
	// refusal. Default 2 s.
	RefusedPause time.Duration
	// SaveTimeout bounds saving a renewal before it is kept in this process and tried again later. Default 5 s.
	SaveTimeout time.Duration
	// Ticks are when a worker looks again whether another one has renewed an access token. Default: every 100 ms
	// while one waits.
	Ticks  <-chan time.Time
	Logger *slog.Logger
	Now    func() time.Time // default time.Now
}

// Authorizer gives endpoints the credentials that operators stored for their agents. It remembers who refused what, so
// that an agent that wants another credential is asked once and not with every delivery. The nil Authorizer has no
// credentials. Safe for concurrent use.
type Authorizer struct {
	Config
	known   *lru.Cache[store.Agent, *knownTokens]
	refused *lru.Cache[store.Agent, refusal]
	renewer *renewer // nil without OAuth
	// released is the epoch under which a success has released held deliveries. One success proves nothing about
	// another call: an agent that forbids some calls for their content, and takes the others, would be asked about
	// each of them again after every success.
	released *lru.Cache[store.Agent, int64]
}

// knownTokens are the tokens read for an agent, sealed.
type knownTokens struct {
	epoch  int64
	read   time.Time
	tokens []store.Token
	held   atomic.Bool // deliveries wait for a credential
}

// refusal is a credential that an agent did not take. A zero credential means that there was none to send.
type refusal struct {
	epoch      int64
	url        string
	credential [sha256.Size]byte
	at         time.Time
	wantsOAuth bool
}

// New checks the configuration.
func New(cfg Config) (*Authorizer, error) {
	if cfg.Ledger == nil || cfg.Opener == nil {
		return nil, errors.New("agentauth: a ledger and an opener are needed")
	}
	if cfg.OAuth != nil && cfg.Sealer == nil {
		return nil, errors.New("agentauth: renewing access tokens needs a sealer")
	}
	cfg.Age = cmp.Or(cfg.Age, time.Minute)
	cfg.Entries = cmp.Or(cfg.Entries, 10_000)
	cfg.Patience = cmp.Or(cfg.Patience, 10*time.Minute)
	cfg.RefusedPause = cmp.Or(cfg.RefusedPause, 2*time.Second)
	cfg.SaveTimeout = cmp.Or(cfg.SaveTimeout, saveTimeout)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	z := &Authorizer{
		Config:   cfg,
		known:    newCache[store.Agent, *knownTokens](cfg.Entries),
		refused:  newCache[store.Agent, refusal](cfg.Entries),
		released: newCache[store.Agent, int64](cfg.Entries),
	}
	if cfg.OAuth != nil {
		z.renewer = newRenewer(cfg)
	}
	return z, nil
}

// newCache returns an LRU cache of so many entries.
func newCache[K comparable, V any](entries int) *lru.Cache[K, V] {
	c, err := lru.New[K, V](entries)
	if err != nil {
		panic(err) // less than one entry
	}
	return c
}

// Flush saves what the store could not be given, before the process ends.
func (z *Authorizer) Flush(ctx context.Context) {
	if z != nil && z.renewer != nil {
		z.renewer.flush(ctx)
	}
}

// Subject is whose endpoint is authorized, and who named it.
type Subject struct {
	Agent      store.Agent
	Epoch      int64 // the agent's row counts it up when what is cached of the agent is stale; 0: what is at hand will do
	NamedByJob bool  // a job, or an option of a command, names the endpoint: neither the registration nor the servers file
	OwnHeaders bool  // the job brought the endpoint's headers: stored tokens stay out of it
	Insist     bool  // an operator asks for this very request: what was refused a moment ago is tried again
}

// Authorization is an endpoint with the credential that goes to it.
type Authorization struct {
	Subject  Subject
	Endpoint mcpcall.Endpoint // with the headers to send

	token      *store.Token // that the endpoint is sent; nil: none that is stored
	withheld   *store.Token // it is for the endpoint's origin, but not for the endpoint; nil: there is none
	configured bool         // the headers are those of the servers file
	refreshed  bool         // the agent refused an access token, and another one was asked for
	wantsScope bool         // the agent wants an access token with more scope, which could not be had or did not help
	wantsOAuth bool         // the agent wants OAuth, and no credential for that is stored
}

// Stored tells whether a stored token is sent, and oauth whether that is an access token of an OAuth credential.
func (a *Authorization) Stored() (stored, oauth bool) {
	return a.token != nil, a.token != nil && a.token.OAuth()
}

// Refreshed tells whether the agent refused an access token, so that another one was asked for.
func (a *Authorization) Refreshed() bool { return a.refreshed }

// Note says that a token goes along, as the end of a sentence; "" when none does.
func (a *Authorization) Note() string {
	switch {
	case a.token == nil:
		return ""
	case a.token.OAuth():
		return ", with an access token of the credential stored for it"
	}
	return ", with the token stored for it"
}

// Authorize gives an endpoint the token that is stored for its origin and path. The job's own headers win, then those
// of the servers file; a command takes none. A registration that leads elsewhere than where the agent's token was
// stored for is held: the token goes nowhere else, and whether the agent is still the same is for the operator to say.
func (z *Authorizer) Authorize(ctx context.Context, s Subject, e mcpcall.Endpoint) (*Authorization, error) {
	a := &Authorization{Subject: s, Endpoint: e, configured: e.Listed && len(e.Headers) > 0}
	if z == nil || s.OwnHeaders || e.URL == "" {
		return a, nil
	}
	if err := z.authorizeEndpoint(ctx, a); err != nil {
		z.rememberRefusal(a, err, retry.Classify(err))
		return nil, err
	}
	return a, nil
}

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
	if !ok || r.epoch != a.Subject.Epoch || r.credential != hashCredential(a.Endpoint) || ago >= z.Patience {
		return nil
	}
	a.wantsOAuth = r.wantsOAuth
	return retry.Fail(reason.AuthRequired,
		fmt.Sprintf("the agent refused what it was sent %s ago (HTTP 401 or 403) and is not asked again for %s: %s",
			ago.Round(time.Second), (z.Patience-ago).Round(time.Second), a.describeRemedy()))
}

// readTokens returns what is stored for an agent: one query when nothing younger than Age is cached under this epoch.
func (z *Authorizer) readTokens(ctx context.Context, g store.Agent, epoch int64) (*knownTokens, error) {
	now := z.Now()
	if k, ok := z.known.Get(g); ok && k.epoch >= epoch && now.Sub(k.read) < z.Age {
		return k, nil
	}
	tokens, held, err := z.Ledger.AgentTokens(ctx, g)
	if err != nil {
		return nil, err
	}
	k := &knownTokens{epoch: epoch, read: now, tokens: tokens}
	k.held.Store(held)
	z.known.Add(g, k)
	return k, nil
}

// attachToken sets the header of the token that is stored for the endpoint, unless it has headers already.
func (z *Authorizer) attachToken(ctx context.Context, tokens []store.Token, a *Authorization) error {
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
		return holdMoved(s.Agent, e.URL, []store.Token{*t}) // with its path, if it was bound to that only now
	case !covered && registered:
		return holdMoved(s.Agent, e.URL, tokens)
	case !covered:
		return nil
	}
	if t.ExpiresAt != nil && !z.Now().Before(*t.ExpiresAt) {
		return retry.Fail(reason.AuthRequired,
			fmt.Sprintf("the token stored for %s expired at %s: store another one, %s",
				t.URL(), t.ExpiresAt.UTC().Format(time.RFC3339), howToStore(*t)))
	}
	var value secret.Secret
	if t.OAuth() {
		value, err = z.renewer.bearerHeader(ctx, tokenRequest{token: *t, url: e.URL, insist: s.Insist})
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

// tokenOfOrigin is a copy of the token that is stored for a URL's origin, whatever its path; nil: there is none.
func tokenOfOrigin(tokens []store.Token, rawURL string) *store.Token {
	origin, err := netguard.CredentialOriginOf(rawURL)
	i := slices.IndexFunc(tokens, func(t store.Token) bool { return t.Origin == origin })
	if err != nil || i < 0 {
		return nil // the guard says why what is no address is not called
	}
	t := tokens[i]
	return &t
}

// coversEndpoint tells whether the token of an endpoint's origin goes there: to the path it was stored for, and
// below, when the registration or the servers file leads there, and to exactly that URL when a job names it: many
// agents may live at an origin, and who enqueues is not the operator. A token that was stored without a path, by a
// version before, is bound to the first registered one.
func (z *Authorizer) coversEndpoint(ctx context.Context, t *store.Token, s Subject, e mcpcall.Endpoint) (bool, error) {
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
	if t.Path, err = z.Ledger.PinTokenPath(ctx, *t, path); errors.Is(err, store.ErrNotFound) {
		return false, retry.Pause(reason.Throttled, time.Second,
			"the token stored for "+string(t.Origin)+" is just being removed")
	}
	z.known.Remove(t.Agent) // it is read anew, with its path
	return err == nil && CoversPath(t.Path, path), err
}
