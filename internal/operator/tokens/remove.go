package tokens

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// Remove deletes an agent's token for an origin, with or without its path. It also revokes an OAuth credential at its
// authorization server, if the server supports that (RFC 7009).
func (o Tokens) Remove(ctx context.Context, ref operator.AgentRef, stored, actor string) (c Change, err error) {
	g, err := o.ParseRef(ref)
	if err != nil {
		return c, err
	}
	origin, err := netguard.CredentialOriginOf(stored)
	if err != nil {
		return c, operator.NewMisuse("--origin: %v", err)
	}
	st, err := o.OpenDispatching(ctx)
	if err != nil {
		return c, err
	}
	defer st.Close()
	t, err := findStored(ctx, st, g, origin, auth.CredentialPath(stored))
	if err != nil {
		return c, err
	}
	var had *removedLogin
	if t.OAuth() {
		had = o.openLogin(ctx, st, t)
	}

	c = describeChange(records.Token{Agent: g, Origin: origin, Path: t.Path})
	row := records.Audit{Actor: actor, Action: "token remove", Matched: 1}
	c.Audit, err = operator.RunAudited(ctx, st, row, c.auditFilter(), func() (int64, error) {
		released, tasks, err := st.RemoveToken(ctx, g, origin)
		st.Dispatch(ctx, tasks)
		c.Released = released
		return 1, err
	})
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return c, fmt.Errorf("no token of %s is stored for %s: `worker token list`", operator.DescribeAgent(g),
			text.Printable(origin))
	case err != nil:
		if had != nil && had.held.No != 0 {
			_ = st.YieldRenewal(context.WithoutCancel(ctx), had.held) // or the lease ends by itself
		}
		return c, err
	}
	c.Said = append(c.Said,
		fmt.Sprintf("the token of %s for %s is removed; %s released (audit %d)", operator.DescribeAgent(g),
			text.Printable(origin), text.Count(c.Released, "held delivery was", "held deliveries were"), c.Audit))
	if had != nil { // after the row is deleted, so that no worker renews the tokens any more
		c.Revocation = o.revokeLogin(ctx, had)
		c.Said = append(c.Said, c.Revocation.describeRevocation())
	}
	return c, nil
}

// findStored returns the token to remove. It returns an error if path differs from the token's path, because an origin
// has only one token.
func findStored(ctx context.Context, st *operator.Session, g erc8004.Agent, origin netguard.CredentialOrigin,
	path string) (records.Token, error) {
	tokens, _, err := st.AgentTokens(ctx, g)
	if err != nil {
		return records.Token{}, err
	}
	i := slices.IndexFunc(tokens, func(t records.Token) bool { return t.Origin == origin })
	if i < 0 {
		return records.Token{}, nil // RemoveToken reports it
	}
	t := tokens[i]
	if path != "/" && path != t.Path {
		return t, operator.NewMisuse(
			"the token of %s for this origin is stored for %s, and not for %s: say --origin %s to remove it",
			operator.DescribeAgent(g), operator.DescribeToken(t, time.Now()).Destination(),
			text.Printable(text.Shorten(path)), text.Printable(origin))
	}
	return t, nil
}

// revokeTime bounds all requests to the authorization server. The row is deleted even if they fail.
const revokeTime = 20 * time.Second

// Revocation is the result of revoking an OAuth credential at its authorization server.
type Revocation struct {
	Issuer    string   `json:"issuer"`
	Revoked   []string `json:"revoked"`         // refresh_token, access_token
	StillGood []string `json:"stillGood"`       // of the same, and client: still accepted by the server
	Until     string   `json:"until,omitempty"` // when that access token expires, if known
	Problem   string   `json:"problem,omitempty"`
}

// stillClient is a client that the operator registered with the server. A client cannot revoke itself.
const stillClient = "client"

// removedLogin is a removed OAuth credential with its tokens.
type removedLogin struct {
	token      records.Token
	credential oauth.Credential
	access     secret.Secret // zero if there is no valid one
	until      *time.Time
	fault      error           // why it cannot be revoked
	held       records.Renewal // keeps workers from renewing it; No is 0 if it could not begin
}

// openLogin opens a credential and its access token, each in its newest version. If that fails, fault holds the error.
// The caller removes the row next: until the lease of held ends, no worker renews the credential.
func (o Tokens) openLogin(ctx context.Context, st *operator.Session, t records.Token) *removedLogin {
	l := &removedLogin{token: t}
	keys, err := o.Backend.Keyset()
	if err == nil {
		l.held, err = o.holdRenewal(ctx, st, t)
	}
	if err != nil {
		l.fault = err
		return l
	}
	l.token = l.held.Token
	if l.credential, l.fault = auth.LatestCredential(ctx, st.Spool, keys, l.token); l.fault != nil {
		return l
	}
	found := l.held.Access
	if found == nil || found.ExpiresAt != nil && !found.ExpiresAt.After(time.Now()) {
		return l
	}
	if l.access, err = auth.AccessToken(keys, l.token, *found); err == nil {
		l.until = found.ExpiresAt
	}
	return l
}

const (
	// holdLease is longer than the steps from the lease to the removal of the row take.
	holdLease = 30 * time.Second
	// holdWait bounds the wait for the renewals of workers. Their leases end within 30 s.
	holdWait = time.Minute
	holdTick = 100 * time.Millisecond
)

// holdRenewal begins a renewal, so that no worker renews the credential. It waits for the renewal of a worker: the
// authorization server may already have replaced the refresh token that is stored.
func (o Tokens) holdRenewal(ctx context.Context, st *operator.Session, t records.Token) (records.Renewal, error) {
	ctx, cancel := context.WithTimeout(ctx, holdWait)
	defer cancel()
	var seen []byte // the access token that the lease has to name
	for told := false; ; {
		r, err := st.LeaseRenewal(ctx, t, seen, holdLease)
		if err != nil || r.No != 0 || !r.Token.OAuth() { // not OAuth: it was just replaced
			return r, err
		}
		var stored []byte
		if r.Access != nil {
			stored = r.Access.Ciphertext
		}
		if !bytes.Equal(stored, seen) {
			seen = stored
			continue
		}
		if !told {
			told = true
			o.Notify("a worker is renewing the access token: waiting until it has stored the new one")
		}
		if err := loop.Pause(ctx, holdTick); err != nil {
			return r, fmt.Errorf("workers renew it all the time: %w", err)
		}
	}
}

// revokeLogin revokes the refresh token, which ends the whole login, and the access token.
func (o Tokens) revokeLogin(ctx context.Context, l *removedLogin) *Revocation {
	out := &Revocation{Issuer: l.token.Issuer, Revoked: []string{}, StillGood: []string{}}
	ctx, cancel := context.WithTimeout(ctx, revokeTime)
	defer cancel()
	content, err := o.Backend.OpenContent()
	var server oauth.Server
	if err == nil {
		defer content.Close()
		server, err = l.findRevoker(ctx, content.OAuth)
	}
	var problems []string
	for _, of := range []struct {
		hint string
		text secret.Secret
	}{{oauth.HintRefreshToken, l.credential.RefreshToken}, {oauth.HintAccessToken, l.access}} {
		unknown := l.fault != nil && (of.hint == oauth.HintAccessToken ||
			l.token.Scheme == records.SchemeAuthorizationCode)
		if of.text.IsZero() && !unknown {
			continue
		}
		failed := err
		if failed == nil {
			failed = content.OAuth.Revoke(ctx, server, l.credential, of.text, of.hint)
		}
		if failed == nil {
			out.Revoked = append(out.Revoked, of.hint)
			continue
		}
		out.StillGood = append(out.StillGood, of.hint)
		if text := text.Printable(failed.Error()); len(problems) == 0 || problems[len(problems)-1] != text {
			problems = append(problems, text)
		}
		if of.hint == oauth.HintAccessToken && l.until != nil {
			out.Until = l.until.UTC().Format(time.RFC3339)
		}
	}
	if l.token.Scheme == records.SchemeClientCredentials {
		out.StillGood = append(out.StillGood, stillClient)
	}
	out.Problem = strings.Join(problems, "; ")
	return out
}

// findRevoker finds the server for revocation, as a renewal finds the server for tokens.
func (l *removedLogin) findRevoker(ctx context.Context, client *oauth.Client) (oauth.Server, error) {
	if l.fault != nil {
		return oauth.Server{}, l.fault
	}
	server, err := client.ServerOf(ctx, oauth.Resource{Issuers: []string{l.token.Issuer},
		Legacy: l.token.Issuer == string(l.token.Origin)}, l.token.Issuer)
	switch {
	case err == nil && server.RevocationEndpoint == "":
		err = oauth.ErrNoRevocation
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		err = fmt.Errorf("it did not answer within %s", revokeTime)
	}
	return server, err
}

// describeRevocation says which tokens the server revoked and which are still valid.
func (r *Revocation) describeRevocation() string {
	issuer := text.Printable(text.Shorten(r.Issuer))
	text := fmt.Sprintf("%s revoked nothing", issuer)
	if len(r.Revoked) > 0 {
		text = fmt.Sprintf("%s revoked %s", issuer, r.nameParts(r.Revoked))
	}
	if r.Problem != "" {
		text += fmt.Sprintf(" (%s)", r.Problem)
	}
	if len(r.StillGood) == 0 {
		return text
	}
	return fmt.Sprintf("%s; still good there: %s. To end that, end Herald's access there", text,
		r.nameParts(r.StillGood))
}

// nameParts joins the names of tokens and clients in words.
func (r *Revocation) nameParts(what []string) string {
	var names []string
	for _, w := range what {
		switch w {
		case oauth.HintRefreshToken:
			w = "the login's refresh token"
		case oauth.HintAccessToken:
			w = "the last access token"
			if r.Until != "" {
				w += " until " + r.Until
			}
		case stillClient:
			w = "the client and its secret or key"
		}
		names = append(names, w)
	}
	return strings.Join(names, " and ")
}
