// Package tokens stores credentials that Herald sends to agents: a token or an OAuth client of the operator (Set), the
// result of a person's login (LogIn), or a file of tokens (ReadImport). It also lists and removes stored credentials.
//
// A token may be sent to the origin that the request names or, after consent, to the agent's current endpoint. Package
// auth selects and renews the credential of a delivery, and package oauth implements OAuth.
package tokens

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// Tokens stores tokens for an operator.
type Tokens struct{ *operator.Operator }

// Client is a client of an authorization server, and known facts about that server. Herald discovers fields that are
// empty.
type Client struct {
	ClientID   string `name:"client-id" help:"The id that the agent's authorization server knows Herald by." placeholder:"ID"`
	AuthMethod string `help:"How the client proves that to it: client_secret_basic, client_secret_post or private_key_jwt, with the secret or the private key (PEM) on stdin; or none. Default of set: what fits stdin and the server; of login: none." placeholder:"METHOD"`
	KeyID      string `name:"key-id" help:"The private key's id there (kid)." placeholder:"ID"`
	Algorithm  string `help:"Signature algorithm of the private key, such as ES256. Default: the first that fits the key." placeholder:"ALG"`
	Issuer     string `help:"The authorization server. Default: the one that the agent names, after you were asked." placeholder:"URL"`
	Scope      string `help:"Scopes to request, at most these. Default: the scopes that the agent names." placeholder:"SCOPES"`
	Resource   string `help:"Resource to request tokens for (RFC 8707). Default: the name that the agent gives itself." placeholder:"URI"`
}

// Request selects an agent, and where its credential may be sent.
type Request struct {
	operator.AgentRef
	Origin string `help:"Where the token may go, with all below it: https://agent.example/mcp, or a whole origin, https://agent.example. Default: where the agent is now, after you were asked." placeholder:"URL"`
	Client
	Actor string `kong:"-"` // named in the audit row

	// ReadSecret reads the secret to seal, up to limit bytes; what names it. It is called after everything else is
	// valid.
	ReadSecret func(what string, limit int64) (string, error) `kong:"-"`
}

// Change is the result of storing or removing a token.
type Change struct {
	Agent      string                    `json:"agent"`
	Registry   string                    `json:"identityRegistry"`
	Origin     netguard.CredentialOrigin `json:"origin"`
	Path       string                    `json:"path,omitempty"`
	Scheme     string                    `json:"scheme,omitempty"`
	Header     string                    `json:"header,omitempty"`
	Issuer     string                    `json:"issuer,omitempty"` // this and the next three: of OAuth
	ClientID   string                    `json:"clientId,omitempty"`
	AuthMethod string                    `json:"authMethod,omitempty"`
	Scope      string                    `json:"scope,omitempty"` // the requested scope
	ExpiresAt  *time.Time                `json:"expiresAt,omitempty"`
	Released   int                       `json:"released"`
	Audit      int64                     `json:"audit"`

	Revocation *Revocation `json:"revocation,omitempty"` // of a removed OAuth credential

	Said []string `json:"-"` // the same in sentences
}

func describeChange(t records.Token) Change {
	return Change{Agent: t.Agent.String(), Registry: t.Registry, Origin: t.Origin, Path: t.Path,
		Scheme: t.Scheme, Header: t.Header, Issuer: t.Issuer, ExpiresAt: t.ExpiresAt}
}

// auditFilter returns the change for its audit row. It contains no secret.
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

// storeToken stores the token and its audit row, dispatches the released deliveries, and describes the result.
func (c *Change) storeToken(ctx context.Context, st *operator.Session, t records.Token, actor, action,
	what string) (err error) {
	if key, ok := secret.KeyID(t.Ciphertext); ok {
		if err := checkWorkers(ctx, st, key); err != nil {
			return err
		}
	}
	row := records.Audit{Actor: actor, Action: action, Matched: 1}
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
	c.Said = append(c.Said, fmt.Sprintf("%s of %s is stored for %s, sent as %s%s; %s released (audit %d)", what,
		operator.DescribeAgent(t.Agent), stored.Destination(), stored.Sent(), until,
		text.Count(c.Released, "held delivery was", "held deliveries were"), c.Audit))
	return err
}

// checkWorkers returns an error if a running worker does not have the key of a new token. Such a worker would hold the
// agent's deliveries, although the former token worked.
func checkWorkers(ctx context.Context, st *operator.Session, key uint32) error {
	workers, err := st.Workers(ctx)
	for _, w := range workers {
		if !w.HasKey(key) {
			return fmt.Errorf("nothing was stored: the worker on %s (%s) cannot decrypt it: its keyset lacks key %d, "+
				"with which this one encrypts. Set HERALD_KEYSET to that of the workers. A worker that was killed "+
				"counts for %s", text.Printable(w.Host), w.ID, key, ledger.WorkerGone)
		}
	}
	return err
}

// store stores a token that an operator set.
func (o Tokens) store(ctx context.Context, t records.Token, c Change, actor, what string) (Change, error) {
	st, err := o.OpenDispatching(ctx)
	if err != nil {
		return c, err
	}
	defer st.Close()
	err = c.storeToken(ctx, st, t, actor, "token set", what)
	return c, err
}

// sealCredential seals a credential into the token t, and its first access token if there is one. asked is the scope
// with which the next access token is requested. It is empty for a login, whose refresh token implies the scope.
func sealCredential(keys *secret.Keyset, t *records.Token, cred oauth.Credential, first oauth.Token,
	asked string) error {
	plain, err := cred.Marshal()
	if err == nil {
		t.Ciphertext, err = keys.Seal(plain, t.Binding())
	}
	if err != nil || first.Access.IsZero() {
		return err
	}
	first.Scope = asked
	t.Access, err = auth.SealAccess(keys, *t, first, time.Now())
	return err
}

// withCredential adds the parts of an OAuth credential that are not secret. It omits the resource, which may be secret
// like an agent's address.
func (c Change) withCredential(cred oauth.Credential, asked string) Change {
	c.ClientID, c.AuthMethod, c.Scope = cred.ClientID, cred.Method, asked
	return c
}

// sayToken describes the token that the authorization server issued.
func (c *Change) sayToken(issuer string, first oauth.Token) {
	if first.Access.IsZero() {
		return
	}
	line := fmt.Sprintf("%s gave a token", text.Printable(text.Shorten(issuer)))
	if !first.Expires.IsZero() {
		line += ", good until " + first.Expires.UTC().Format(time.RFC3339)
	}
	if first.Scope != "" {
		line += ", for " + text.Printable(text.Shorten(first.Scope))
	}
	c.Said = append(c.Said, line)
}

// List lists stored tokens with their agent, origin, path and expiry, never with their secret.
func (o Tokens) List(ctx context.Context) (list []operator.Token, err error) {
	keys, err := o.Backend.Keyset()
	if err != nil {
		keys = nil // listing does not need the keys
	}
	list = []operator.Token{}
	missing := map[uint32]bool{}
	now := time.Now()
	err = o.ReadBounded(ctx, func(ctx context.Context, st *operator.Session) error {
		return operator.EachToken(ctx, st.TokensAfter, func(t records.Token) error {
			l := operator.DescribeToken(t, now)
			if keys != nil && !keys.Has(l.Key) {
				l.State, missing[l.Key] = operator.TokenSealed, true
			}
			list = append(list, l)
			return nil
		})
	})
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		o.Notify("warning: tokens in state sealed cannot be sent: key %d sealed them, which is not in HERALD_KEYSET; "+
			"restore the keyset with this key", id)
	}
	return list, err
}
