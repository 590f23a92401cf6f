package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
)

// OAuthClient is a client of an authorization server, and what somebody knows of that server; what is empty is found
// out.
type OAuthClient struct {
	ClientID   string // that the agent's authorization server knows Herald by
	AuthMethod string // how the client proves that
	KeyID      string
	Algorithm  string
	Issuer     string // the authorization server
	Scope      string // what the tokens are asked for, and never more
	Resource   string // what the tokens are asked for as resource (RFC 8707)
}

// TokenRequest is a token, or an OAuth client that gets tokens, and where it may go.
type TokenRequest struct {
	AgentRef
	OAuthClient
	Actor     string // whom the audit names
	Origin    string // where the token may go, with all below it; "": where the agent is now, after somebody agreed
	Header    string // that carries the bare token; "": what the registration names, else Authorization with Bearer
	File      string // instead of a token: a file that holds it
	Expires   string // RFC 3339, or in how long, as in 90d or 12h; "": never
	Unchecked bool   // store an OAuth client although its authorization server was not asked for a token

	// ReadSecret reads what is to be sealed, up to limit bytes; what names it. It is asked for when all else is known.
	ReadSecret func(what string, limit int64) (string, error)
}

// TokenChange is what became of a token that was stored or removed.
type TokenChange struct {
	Agent      string                    `json:"agent"`
	Registry   string                    `json:"identityRegistry"`
	Origin     netguard.CredentialOrigin `json:"origin"`
	Path       string                    `json:"path,omitempty"`
	Scheme     string                    `json:"scheme,omitempty"`
	Header     string                    `json:"header,omitempty"`
	Issuer     string                    `json:"issuer,omitempty"` // this and the next three: of an OAuth credential
	ClientID   string                    `json:"clientId,omitempty"`
	AuthMethod string                    `json:"authMethod,omitempty"`
	Scope      string                    `json:"scope,omitempty"` // that was asked for
	ExpiresAt  *time.Time                `json:"expiresAt,omitempty"`
	Released   int                       `json:"released"`
	Audit      int64                     `json:"audit"`

	Revocation *Revocation `json:"revocation,omitempty"` // of an OAuth credential that was removed

	Said []string `json:"-"` // the same in sentences
}

func describeChange(t store.Token) TokenChange {
	return TokenChange{Agent: shortName(t.Agent), Registry: t.Registry, Origin: t.Origin, Path: t.Path,
		Scheme: t.Scheme,
		Header: t.Header, Issuer: t.Issuer, ExpiresAt: t.ExpiresAt}
}

// auditRow is what the trail keeps of a change; no secret is in it.
func (c TokenChange) auditRow(actor, action string) store.Audit {
	filter := map[string]any{"agent": c.Agent, "registry": c.Registry, "origin": c.Origin}
	if c.Path != "" {
		filter["path"] = text.Shorten(c.Path)
	}
	if c.Scheme != "" {
		filter["scheme"], filter["header"] = c.Scheme, c.Header
	}
	if c.Issuer != "" {
		filter["issuer"], filter["clientId"] = c.Issuer, c.ClientID
	}
	if c.Scope != "" {
		filter["scope"] = text.Shorten(c.Scope)
	}
	if c.ExpiresAt != nil {
		filter["expiresAt"] = c.ExpiresAt
	}
	return store.Audit{Actor: actor, Action: action, Filter: mustMarshal(filter), Matched: 1}
}

// storeToken writes the token and its audit row, dispatches what that releases, and says so.
func (c *TokenChange) storeToken(ctx context.Context, st *Session, t store.Token, actor, action,
	what string) (err error) {
	c.Audit, err = runAudited(ctx, st, c.auditRow(actor, action), func() (int64, error) {
		released, tasks, err := st.SetToken(ctx, t)
		st.dispatch(ctx, tasks)
		c.Released = released
		return int64(released), err
	})
	until := ""
	if t.ExpiresAt != nil {
		until = " until " + t.ExpiresAt.UTC().Format(time.RFC3339)
	}
	stored := describeToken(t, time.Now())
	c.Said = append(c.Said, fmt.Sprintf("%s of %s is stored for %s, sent as %s%s; %d held deliveries were released (audit %d)",
		what, DescribeAgent(t.Agent), stored.Destination(), stored.Sent(), until, c.Released, c.Audit))
	return err
}

// SetToken stores the token that an agent wants, or with a client id the OAuth client that gets tokens for it, and
// releases deliveries that are held because it was missing.
func (o *Operator) SetToken(ctx context.Context, r TokenRequest) (c TokenChange, err error) {
	if err := r.checkClient(); err != nil {
		return c, err
	}
	t, err := o.parseToken(r)
	if err != nil {
		return c, err
	}
	if r.ClientID != "" {
		return o.setClient(ctx, r, t)
	}
	if t, err = o.aimToken(ctx, r, t); err != nil {
		return c, err
	}
	keys, err := o.Backend.Keyset()
	if err != nil {
		return c, err
	}
	plain, err := o.readToken(r)
	if err != nil {
		return c, err
	}
	if t.Ciphertext, err = keys.Seal([]byte(plain.Reveal()), t.Binding()); err != nil {
		return c, err
	}
	st, err := o.openDispatching(ctx)
	if err != nil {
		return c, err
	}
	defer st.Close()
	c = describeChange(t)
	return c, c.storeToken(ctx, st, t, r.Actor, "token set", "the token")
}

// parseToken reads the request, without the secret and where it goes.
func (o *Operator) parseToken(r TokenRequest) (t store.Token, err error) {
	if t.Agent, err = o.parseRef(r.AgentRef); err != nil {
		return t, err
	}
	if r.Header != "" {
		if t.Header, err = mcpcall.CredentialHeader(r.Header); err != nil {
			return t, newMisuse("--header: %v", err)
		}
	}
	if r.File != "" && !filepath.IsAbs(r.File) {
		return t, newMisuse("--file is read by every worker, from wherever it runs: name it with its absolute path")
	}
	t.ExpiresAt, err = parseExpiry(r.Expires, time.Now())
	return t, err
}

// parseExpiry reads RFC 3339, or how long from now; empty is never.
func parseExpiry(s string, now time.Time) (*time.Time, error) {
	if s == "" {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		length := s
		if days, ok := strings.CutSuffix(s, "d"); ok {
			if n, err := strconv.ParseUint(days, 10, 16); err == nil {
				length = fmt.Sprintf("%dh", 24*n)
			}
		}
		d, err := time.ParseDuration(length)
		if err != nil {
			return nil, newMisuse("--expires %q is neither a time, as in 2027-01-31T12:00:00Z, nor in how long, as in 90d or 12h", s)
		}
		at = now.Add(d)
	}
	if !at.After(now) {
		return nil, newMisuse("--expires %s is over already: such a token is not sent", s)
	}
	at = at.UTC().Truncate(time.Second)
	return &at, nil
}

// aimToken says where the token goes and how: as the request has it, else as the agent is found, if somebody agrees.
func (o *Operator) aimToken(ctx context.Context, r TokenRequest, t store.Token) (store.Token, error) {
	if r.Origin != "" {
		origin, err := netguard.CredentialOriginOf(r.Origin)
		if err != nil {
			return t, newMisuse("--origin: %v", err)
		}
		t.Origin, t.Path = origin, agentauth.CredentialPath(r.Origin)
		o.warnListedHeaders(t.Agent)
	} else {
		found, err := o.findTarget(ctx, t.Agent)
		if err != nil {
			return t, err
		}
		t.Origin, t.Path = found.Origin, found.Path
		if t.Header == "" {
			if t.Header, err = found.tokenHeader(); err != nil {
				return t, newMisuse("%v; name another with --header", err)
			}
		}
		if err := o.confirmTarget(ctx, t, found); err != nil {
			return t, err
		}
	}
	t.Scheme, t.Header = chooseScheme(t.Header, r.File != "")
	o.warnPlainHTTP(t.Origin)
	return t, nil
}

// warnListedHeaders says that the operator himself has something else sent.
func (o *Operator) warnListedHeaders(g store.Agent) {
	if listed, err := o.listedServer(g); err == nil && listed != nil {
		if e, ok := listed.Endpoint(); ok && (e.URL == "" || len(e.Headers) > 0) {
			o.notify("warning: the servers file says how this agent is called and what it is sent, and that wins: " +
				"the token is stored and not sent")
		}
	}
}

func (o *Operator) warnPlainHTTP(origin netguard.CredentialOrigin) {
	if u, err := url.Parse(string(origin)); err == nil && u.Scheme == "http" {
		o.notify("warning: over plain http everybody on the way to %s reads the token", text.Printable(origin))
	}
}

// chooseScheme is how a token is sent in a header; "": in the usual one.
func chooseScheme(header string, file bool) (scheme, canonical string) {
	scheme = store.SchemeBearer
	if header == "" {
		header = authorization
	}
	if header != authorization {
		scheme = store.SchemeHeader
	}
	if file {
		scheme = store.SchemeFile
	}
	return scheme, header
}

// confirmTarget shows where the agent is and has somebody agree that its token goes there.
func (o *Operator) confirmTarget(ctx context.Context, t store.Token, found target) error {
	_, header := chooseScheme(t.Header, false)
	place := fmt.Sprintf("%s is at %s (%s)", DescribeAgent(t.Agent), text.Printable(t.URL()),
		text.Printable(found.Words))
	return o.confirm(ctx,
		fmt.Sprintf("%s.\nSend its token there, and nowhere else, as %s?", place, Token{Header: header}.Sent()),
		fmt.Sprintf("%s: nobody is here to be asked whether its token may go there, so say%s", place, originOption(t)))
}

// confirm has somebody agree; nobody is what to say when there is none.
func (o *Operator) confirm(ctx context.Context, question, nobody string) error {
	agreed, err := o.Person.Confirm(ctx, question)
	switch {
	case errors.Is(err, ErrNobody):
		return &MisuseError{nobody}
	case err == nil && !agreed:
		return errors.New("nothing was stored")
	}
	return err
}

// originOption is the option that says where the token goes, as it can be typed.
func originOption(t store.Token) string {
	return cmp.Or(retry.OriginOption(t.URL()), " --origin with its address")
}

// readToken is what is sealed: the token, or the path of its file.
func (o *Operator) readToken(r TokenRequest) (s secret.Secret, err error) {
	if r.File != "" {
		if _, err := agentauth.ReadTokenFile(r.File); err != nil {
			o.notify("warning: here the file %v; deliveries are held (auth_required) wherever a worker finds it so",
				err)
		}
		return secret.New(r.File), nil
	}
	read, err := r.ReadSecret("the token", agentauth.MaxToken)
	if err != nil {
		return s, err
	}
	read = withoutLineEnd(read)
	if err := agentauth.CheckToken(read); err != nil {
		return s, newMisuse("the token on stdin %v", err)
	}
	return secret.New(read), nil
}

func withoutLineEnd(s string) string { return strings.TrimSuffix(strings.TrimSuffix(s, "\n"), "\r") }

// ListTokens lists stored tokens: for whom, for which origin and path, until when. Never the tokens.
func (o *Operator) ListTokens(ctx context.Context) (list []Token, err error) {
	keys, err := o.Backend.Keyset()
	if err != nil {
		keys = nil // who lists has no need of it
	}
	list = []Token{}
	missing := map[uint32]bool{}
	now := time.Now()
	err = o.readBounded(ctx, func(ctx context.Context, st *Session) error {
		return eachToken(ctx, st.TokensAfter, func(t store.Token) error {
			l := describeToken(t, now)
			if keys != nil && !keys.Has(l.Key) {
				l.State, missing[l.Key] = tokenSealed, true
			}
			list = append(list, l)
			return nil
		})
	})
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		o.notify("warning: what is in state sealed cannot be sent: key %d sealed it, which is not in HERALD_KEYSET; "+
			"put the keyset back that has this key", id)
	}
	return list, err
}
