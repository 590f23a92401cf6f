package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	lru "github.com/hashicorp/golang-lru/v2"
)

// TokenLedger is the store as stored tokens need it.
type TokenLedger interface {
	AgentTokens(ctx context.Context, a store.Agent) (tokens []store.Token, held bool, err error)
	PinTokenPath(ctx context.Context, t store.Token, path string) (pinned string, err error)
	ReleaseHeld(ctx context.Context, a store.Agent, reasons ...string) (released int, tasks []store.Task, err error)
	RenewalLedger
}

// CredentialsConfig makes Credentials.
type CredentialsConfig struct {
	Ledger TokenLedger
	Opener Opener
	// OAuth gets access tokens, and Sealer seals what it gets; nil: what is for an agent with an OAuth credential is held.
	OAuth  Authority
	Sealer Sealer
	// Spool keeps refresh tokens that the ledger cannot take now; nil: only this process does.
	Spool RenewalSpool
	// Age is how long what was read of an agent is believed, unless its epoch is raised before. Default 1 min.
	Age time.Duration
	// Entries bounds the agents remembered. Default 10,000.
	Entries int
	// Patience is how long an agent that refused its credentials is not asked again. Default 10 min.
	Patience time.Duration
	// RefusedPause is how long an agent is left alone that refused a fresh access token, and longer when it refuses the next, too. Default 2 s.
	RefusedPause time.Duration
	// Ticks are when a worker looks again whether another one has renewed an access token. Default: every 100 ms while one waits.
	Ticks  <-chan time.Time
	Logger *slog.Logger
	Now    func() time.Time // default time.Now
}

// Credentials are what operators stored for agents: which token goes to which origin and path. What is remembered is sealed. It also remembers who
// refused what, so that an agent that wants another credential is asked once and not with every delivery. The nil one knows nothing. Safe
// for concurrent use.
type Credentials struct {
	CredentialsConfig
	known   *lru.Cache[store.Agent, *knownTokens]
	refused *lru.Cache[store.Agent, refusal]
	renewer *renewer // nil without OAuth
	// The epoch under which a success has released what is held. One alone proves nothing about another call: an agent that forbids some
	// calls for what is in them, and takes the others, would be asked about each of them again after every success.
	released *lru.Cache[store.Agent, int64]
}

// knownTokens is what was read of an agent.
type knownTokens struct {
	epoch  int64
	read   time.Time
	tokens []store.Token
	held   atomic.Bool // deliveries wait for a credential
}

// refusal is a credential that an agent did not take, or, without credential, that there was none.
type refusal struct {
	epoch      int64
	url        string
	credential [sha256.Size]byte
	at         time.Time
	oauth      bool // it said that it wants OAuth
}

// NewCredentials checks the configuration.
func NewCredentials(cfg CredentialsConfig) (*Credentials, error) {
	if cfg.Ledger == nil || cfg.Opener == nil {
		return nil, errors.New("delivery: credentials need a ledger and an opener")
	}
	setDefault(&cfg.Age, time.Minute)
	setDefault(&cfg.Patience, 10*time.Minute)
	setDefault(&cfg.RefusedPause, 2*time.Second)
	if cfg.Entries <= 0 {
		cfg.Entries = 10_000
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	c := &Credentials{CredentialsConfig: cfg}
	var err error
	if c.known, err = lru.New[store.Agent, *knownTokens](cfg.Entries); err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	if c.refused, err = lru.New[store.Agent, refusal](cfg.Entries); err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	if c.released, err = lru.New[store.Agent, int64](cfg.Entries); err != nil {
		return nil, fmt.Errorf("delivery: %w", err)
	}
	if cfg.OAuth != nil {
		if c.renewer, err = newRenewer(cfg); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// of is what is stored for an agent: one query when nothing younger than Age is remembered under this epoch.
func (c *Credentials) of(ctx context.Context, a store.Agent, epoch int64) (*knownTokens, error) {
	now := c.Now()
	if k, ok := c.known.Get(a); ok && k.epoch >= epoch && now.Sub(k.read) < c.Age {
		return k, nil
	}
	tokens, held, err := c.Ledger.AgentTokens(ctx, a)
	if err != nil {
		return nil, err
	}
	k := &knownTokens{epoch: epoch, read: now, tokens: tokens}
	k.held.Store(held)
	c.known.Add(a, k)
	return k, nil
}

// authorize gives the call the token that is stored for its origin and path. The job's own headers win, then those of the servers file; a
// command takes none. A registration that leads to another place than the one a token was stored for is held: the token goes nowhere
// else, and whether the agent is still the same is for the operator to say.
func (p *Executor) authorize(ctx context.Context, a *attempt) (note string, err error) {
	c := p.Credentials
	if c == nil || a.own || a.target.URL == "" {
		return "", nil
	}
	k, err := c.of(ctx, a.claim.Agent(), a.claim.Epoch)
	if err != nil {
		return "", err
	}
	registered := a.job.Action.ResolveEndpoint && !a.target.Listed
	if a.stored, err = c.attach(ctx, k.tokens, a.claim.Agent(), &a.target, registered, a.claim.Replay); err != nil {
		return "", err
	}
	if a.stored == nil && len(a.target.Headers) == 0 {
		a.withheld = tokenOfOrigin(k.tokens, a.target.URL)
	}
	note = noteOf(a.stored)
	if a.claim.Replay {
		return note, nil
	}
	if r, ok := c.refused.Get(a.claim.Agent()); ok && r.epoch == a.claim.Epoch && r.credential == credentialOf(a.target) {
		if ago := c.Now().Sub(r.at); ago < c.Patience {
			a.oauth = r.oauth
			return "", retry.Fail(retry.AuthRequired, fmt.Sprintf("the agent refused what it was sent %s ago (HTTP 401 or 403) and is not asked again for %s: %s",
				ago.Round(time.Second), (c.Patience-ago).Round(time.Second), a.remedy()))
		}
	}
	return note, nil
}

// Attach gives an endpoint of an agent the token that a delivery would send there, under an epoch that a claim or nobody (0) named.
// registered: the agent's registration leads there, and neither a job nor the operator. note is "" when there is none to send. Errors are
// as of a delivery that is held.
func (c *Credentials) Attach(ctx context.Context, g store.Agent, epoch int64, e *mcpcall.Endpoint, registered bool) (note string, err error) {
	k, err := c.of(ctx, g, epoch)
	if err != nil {
		return "", err
	}
	t, err := c.attach(ctx, k.tokens, g, e, registered, true)
	return noteOf(t), err
}

// noteOf says that a token goes along; nil: none does.
func noteOf(t *store.Token) string {
	switch {
	case t == nil:
		return ""
	case t.OAuth():
		return ", with an access token of the credential stored for it"
	}
	return ", with the token stored for it"
}

// attach sets the header of the token that is stored for the endpoint, unless it has headers already, and returns that token; nil: there is
// none to send. insist has what failed a moment ago tried again.
func (c *Credentials) attach(ctx context.Context, tokens []store.Token, g store.Agent, e *mcpcall.Endpoint, registered, insist bool) (*store.Token, error) {
	if len(tokens) == 0 || e.URL == "" || len(e.Headers) > 0 {
		return nil, nil
	}
	t := tokenOfOrigin(tokens, e.URL)
	goes, err := c.mayGo(ctx, t, e, registered)
	switch {
	case err != nil:
		return nil, err
	case !goes && registered && t != nil:
		return nil, moved(g, e.URL, []store.Token{*t}) // with its path, if it was bound to that only now
	case !goes && registered:
		return nil, moved(g, e.URL, tokens)
	case !goes:
		return nil, nil
	}
	if t.ExpiresAt != nil && !c.Now().Before(*t.ExpiresAt) {
		return nil, retry.Fail(retry.AuthRequired, fmt.Sprintf("the token stored for %s expired at %s: store another one, %s",
			t.URL(), t.ExpiresAt.UTC().Format(time.RFC3339), howToStore(*t)))
	}
	value, err := c.value(ctx, errand{token: *t, url: e.URL, insist: insist})
	if err != nil {
		return nil, err
	}
	e.Headers = map[string]secret.Secret{t.Header: value}
	return t, nil
}

// tokenOfOrigin is a copy of the token that is stored for a URL's origin, whatever its path; nil: there is none.
func tokenOfOrigin(tokens []store.Token, rawURL string) *store.Token {
	origin, err := CredentialOrigin(rawURL)
	i := slices.IndexFunc(tokens, func(t store.Token) bool { return t.Origin == origin })
	if err != nil || i < 0 {
		return nil // the guard says why what is no address is not called
	}
	t := tokens[i]
	return &t
}

// mayGo tells whether the token of an endpoint's origin goes there: to the path it was stored for, and below, when the registration or the
// servers file leads there, and to exactly that URL when a job names it: many agents may live at an origin, and who enqueues is not the
// operator. A token that was stored without a path, by a version before, is bound to the first registered one.
func (c *Credentials) mayGo(ctx context.Context, t *store.Token, e *mcpcall.Endpoint, registered bool) (bool, error) {
	path := CredentialPath(e.URL)
	switch {
	case t == nil:
		return false, nil
	case !registered && !e.Listed:
		return t.Path != "" && exactlyAt(e.URL, t.Path), nil
	case !registered:
		return t.Path == "" || CoversPath(t.Path, path), nil
	case t.Path != "":
		return CoversPath(t.Path, path), nil
	}
	var err error
	if t.Path, err = c.Ledger.PinTokenPath(ctx, *t, path); errors.Is(err, store.ErrNotFound) {
		return false, retry.Pause(retry.Throttled, time.Second, "the token stored for "+t.Origin+" is just being removed")
	}
	c.known.Remove(t.Agent) // it is read anew, with its path
	return err == nil && CoversPath(t.Path, path), err
}

// value is what the token's header says.
func (c *Credentials) value(ctx context.Context, e errand) (secret.Secret, error) {
	if e.token.OAuth() {
		return c.renewer.bearer(ctx, e)
	}
	return c.reveal(e.token)
}

// moved holds what is for an agent whose registration leads somewhere else than its token may go.
func moved(g store.Agent, rawURL string, tokens []store.Token) error {
	origin, err := CredentialOrigin(rawURL)
	if err != nil {
		return nil // the guard says why it is not called
	}
	const most = 3
	var before []string
	for _, t := range tokens[:min(len(tokens), most)] {
		before = append(before, excerpt(t.URL(), 300))
	}
	now := store.Token{Agent: g, Origin: origin, Path: CredentialPath(rawURL), Scheme: tokens[0].Scheme}
	return retry.Fail(retry.AuthRequired, fmt.Sprintf("the agent moved: it is at %s now, and its token was stored for %s, so nothing is sent. Look whether that is "+
		"its doing, then %s", excerpt(now.URL(), 300), strings.Join(before, ", "), howToStore(now)))
}

// reveal is the value of a token that is sent as it is stored.
func (c *Credentials) reveal(t store.Token) (value secret.Secret, err error) {
	plain, err := c.Opener.Open(t.Ciphertext, t.Binding())
	if err != nil {
		return value, fmt.Errorf("the token stored for %s: %w", t.Origin, err)
	}
	text := string(plain)
	switch t.Scheme {
	case store.SchemeBearer, store.SchemeHeader:
	case store.SchemeFile:
		if text, err = ReadTokenFile(text); err != nil {
			return value, retry.Fail(retry.AuthRequired, fmt.Sprintf("the file that holds the token stored for %s %v", t.Origin, err))
		}
	default:
		return value, retry.Fail(retry.AuthRequired, fmt.Sprintf("the token stored for %s is of scheme %q, which this version cannot send", t.Origin, excerpt(t.Scheme, 40)))
	}
	if err := CheckToken(text); err != nil {
		return value, retry.Fail(retry.AuthRequired, fmt.Sprintf("the token stored for %s cannot be sent: it %v", t.Origin, err))
	}
	if t.Header == "Authorization" {
		text = "Bearer " + text
	}
	return secret.New(text), nil
}

// refuse notes what the agent did not take. What a job brought itself is its own affair, and a call that is forbidden may be so for what
// is in it: its client must not hold up the others.
func (c *Credentials) refuse(a *attempt, v retry.Verdict, failure error) {
	if c == nil || a.own || v.Reason != retry.AuthRequired {
		return
	}
	if k, ok := c.known.Get(a.claim.Agent()); ok {
		k.held.Store(true)
	}
	var call *mcpcall.CallError
	var renewal *renewalError
	switch {
	case a.narrow, errors.As(failure, &call) && (call.Status == http.StatusUnauthorized || call.Stage != mcpcall.StageCall):
		c.refused.Add(a.claim.Agent(), refusal{a.claim.Epoch, a.target.URL, credentialOf(a.target), c.Now(), a.oauth})
	case errors.As(failure, &renewal) && !c.refused.Contains(a.claim.Agent()):
		// The agent has refused nothing, since there was nothing to send it. When there is, what is held is released.
		c.refused.Add(a.claim.Agent(), refusal{epoch: a.claim.Epoch, url: a.target.URL, at: c.Now()})
	}
}

// Flush saves what the store could not be given, before the process ends.
func (c *Credentials) Flush(ctx context.Context) {
	if c != nil && c.renewer != nil {
		c.renewer.flush(ctx)
	}
}

// unlock releases what is held of an agent for want of a credential, once it has taken a call without the job's own: where everybody calls
// it, or where it refused one. After a refusal of the credential itself each time, else once under each epoch.
func (p *Executor) unlock(ctx context.Context, a *attempt) {
	c := p.Credentials
	if c == nil || a.own || a.out.Status != store.Delivered && a.out.Reason != string(retry.ToolError) {
		return
	}
	agent := a.claim.Agent()
	if a.stored != nil && a.stored.OAuth() {
		c.renewer.acceptFresh(audience{agent, a.stored.Origin})
	}
	if r, ok := c.refused.Get(agent); !a.job.Action.ResolveEndpoint && (!ok || r.url != a.target.URL) {
		return
	}
	refused := c.refused.Remove(agent)
	if epoch, once := c.released.Get(agent); once && epoch >= a.claim.Epoch && !refused {
		return
	}
	k, ok := c.known.Get(agent)
	if !ok || !k.held.Swap(false) {
		return
	}
	c.released.Add(agent, a.claim.Epoch)
	n, tasks, err := c.Ledger.ReleaseHeld(context.WithoutCancel(ctx), agent, string(retry.AuthRequired))
	p.Dispatcher.Dispatch(ctx, tasks)
	switch {
	case err != nil:
		k.held.Store(true) // with the next one
		p.Logger.Warn("what is held for want of a credential is not released yet, though the agent takes calls again",
			logging.About(logging.Postgres), "agent", agent.ID, "error", err)
	case n > 0:
		p.Logger.Info("deliveries that were held for want of a credential are released: the agent takes calls again", "agent", agent.ID, "released", n)
	}
}

// credentialOf tells apart what an endpoint is sent, without keeping it.
func credentialOf(e mcpcall.Endpoint) [sha256.Size]byte {
	h := sha256.New()
	add := func(s string) {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(s))))
		h.Write([]byte(s))
	}
	add(e.URL)
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		add(name)
		add(e.Headers[name].Reveal())
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// MaxToken bounds a token, in bytes.
const MaxToken = 16 << 10

// CheckToken tells what keeps a text from being sent as a token; the error holds nothing of it and continues "it …".
func CheckToken(text string) error {
	switch {
	case text == "":
		return errors.New("is empty")
	case len(text) > MaxToken:
		return fmt.Errorf("is longer than %d bytes", MaxToken)
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r >= 0x7f }):
		return errors.New("holds what is no printable ASCII, or is more than one line")
	case strings.TrimSpace(text) != text:
		return errors.New("begins or ends with a space")
	case len(text) > 7 && strings.EqualFold(text[:7], "bearer "):
		return errors.New("begins with the word Bearer, which is not part of it")
	}
	return nil
}

// ReadTokenFile reads the token of a file: one line. The error does not name the path, and continues "the file …".
func ReadTokenFile(path string) (string, error) {
	st, err := os.Stat(path) // before it is opened: to open a FIFO waits for a writer
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", withoutPath(err))
	}
	if !st.Mode().IsRegular() {
		return "", errors.New("is no regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", withoutPath(err))
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, MaxToken+3))
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", withoutPath(err))
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	if err := CheckToken(text); err != nil {
		return "", fmt.Errorf("holds no token: it %w", err)
	}
	return text, nil
}

func withoutPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
