// Package tokens stores what Herald is to send to agents: a token or an OAuth client that an operator has (Set), what a
// person's login brings (LogIn), a file of tokens (ReadImport); and lists and removes what is stored.
//
// Where a token may go is what the request says, else where the agent is found now, after somebody agreed to that.
// Which of them a delivery sends, and how one is renewed, is agentauth's; what OAuth says, oauth's.
package tokens

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
)

// Tokens stores tokens for an operator.
type Tokens struct{ *operator.Operator }

// Client is a client of an authorization server, and what somebody knows of that server; what is empty is found
// out.
type Client struct {
	ClientID   string // that the agent's authorization server knows Herald by
	AuthMethod string // how the client proves that
	KeyID      string
	Algorithm  string
	Issuer     string // the authorization server
	Scope      string // what the tokens are asked for, and never more
	Resource   string // what the tokens are asked for as resource (RFC 8707)
}

// Request says for which agent something is stored, and where it may go.
type Request struct {
	operator.AgentRef
	Client
	Actor  string // whom the audit names
	Origin string // where the token may go, with all below it; "": where the agent is now, after somebody agreed

	// ReadSecret reads what is to be sealed, up to limit bytes; what names it. It is asked for when all else is known.
	ReadSecret func(what string, limit int64) (string, error)
}

// Change is what became of a token that was stored or removed.
type Change struct {
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

func describeChange(t store.Token) Change {
	return Change{Agent: operator.ShortName(t.Agent), Registry: t.Registry, Origin: t.Origin, Path: t.Path,
		Scheme: t.Scheme, Header: t.Header, Issuer: t.Issuer, ExpiresAt: t.ExpiresAt}
}

// auditFilter is what the trail keeps of a change; no secret is in it.
func (c Change) auditFilter() map[string]any {
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
	return filter
}

// storeToken writes the token and its audit row, dispatches what that releases, and says so.
func (c *Change) storeToken(ctx context.Context, st *operator.Session, t store.Token, actor, action,
	what string) (err error) {
	row := store.Audit{Actor: actor, Action: action, Matched: 1}
	c.Audit, err = operator.RunAudited(ctx, st, row, c.auditFilter(), func() (int64, error) {
		released, tasks, err := st.SetToken(ctx, t)
		st.Dispatch(ctx, tasks)
		c.Released = released
		return int64(released), err
	})
	until := ""
	if t.ExpiresAt != nil {
		until = " until " + t.ExpiresAt.UTC().Format(time.RFC3339)
	}
	stored := operator.DescribeToken(t, time.Now())
	c.Said = append(c.Said, fmt.Sprintf("%s of %s is stored for %s, sent as %s%s; %d held deliveries were released "+
		"(audit %d)", what, operator.DescribeAgent(t.Agent), stored.Destination(), stored.Sent(), until, c.Released, c.Audit))
	return err
}

// store stores what an operator set.
func (o Tokens) store(ctx context.Context, t store.Token, c Change, actor, what string) (Change, error) {
	st, err := o.OpenDispatching(ctx)
	if err != nil {
		return c, err
	}
	defer st.Close()
	err = c.storeToken(ctx, st, t, actor, "token set", what)
	return c, err
}

// sealCredential puts a credential into the row that it is for, and the access token that came of it, if there is
// one. asked is the scope that the next one is asked for with; of a login it is empty, since its refresh token has
// it.
func sealCredential(keys *secret.Keyset, t *store.Token, cred oauth.Credential, first oauth.Token, asked string) error {
	plain, err := cred.Marshal()
	if err == nil {
		t.Ciphertext, err = keys.Seal(plain, t.Binding())
	}
	if err != nil || first.Access.IsZero() {
		return err
	}
	first.Scope = asked
	t.Access, err = agentauth.SealAccess(keys, *t, first, time.Now())
	return err
}

// withCredential adds what of an OAuth credential is no secret. Its resource may be one, as an agent's address is.
func (c Change) withCredential(cred oauth.Credential, asked string) Change {
	c.ClientID, c.AuthMethod, c.Scope = cred.ClientID, cred.Method, asked
	return c
}

// sayToken says what the authorization server gave.
func (c *Change) sayToken(issuer string, first oauth.Token) {
	if first.Access.IsZero() {
		return
	}
	said := fmt.Sprintf("%s gave a token", text.Printable(text.Shorten(issuer)))
	if !first.Expires.IsZero() {
		said += ", good until " + first.Expires.UTC().Format(time.RFC3339)
	}
	if first.Scope != "" {
		said += ", for " + text.Printable(text.Shorten(first.Scope))
	}
	c.Said = append(c.Said, said)
}

// List lists stored tokens: for whom, for which origin and path, until when. Never the tokens.
func (o Tokens) List(ctx context.Context) (list []operator.Token, err error) {
	keys, err := o.Backend.Keyset()
	if err != nil {
		keys = nil // who lists has no need of it
	}
	list = []operator.Token{}
	missing := map[uint32]bool{}
	now := time.Now()
	err = o.ReadBounded(ctx, func(ctx context.Context, st *operator.Session) error {
		return operator.EachToken(ctx, st.TokensAfter, func(t store.Token) error {
			l := operator.DescribeToken(t, now)
			if keys != nil && !keys.Has(l.Key) {
				l.State, missing[l.Key] = operator.TokenSealed, true
			}
			list = append(list, l)
			return nil
		})
	})
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		o.Notify("warning: what is in state sealed cannot be sent: key %d sealed it, which is not in HERALD_KEYSET; "+
			"put the keyset back that has this key", id)
	}
	return list, err
}
