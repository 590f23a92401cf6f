package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
)

// revokeTime is for all that an authorization server is asked when a credential is removed. The row goes in any case.
const revokeTime = 20 * time.Second

// revocation is what became of an OAuth credential at the server that gave its tokens.
type revocation struct {
	Issuer    string   `json:"issuer"`
	Revoked   []string `json:"revoked"`         // refresh_token access_token
	StillGood []string `json:"stillGood"`       // of the same, and client: what the server goes on taking
	Until     string   `json:"until,omitempty"` // when the access token among them ends by itself, if that is known
	Problem   string   `json:"problem,omitempty"`
}

// stillClient is the client that an operator had made known to the server: no client can end itself.
const stillClient = "client"

// removedLogin is an OAuth credential with what was had by it.
type removedLogin struct {
	token      store.Token
	credential oauth.Credential
	access     secret.Secret // zero: there is none that is good
	until      *time.Time
	fault      error // why it cannot be revoked
}

// openLogin opens a credential and its access token, each as it was renewed last. What does not open is told when it is removed.
func openLogin(a *app, st *openStore, t store.Token) *removedLogin {
	l := &removedLogin{token: t}
	keys, err := service.Keyset(a.cfg)
	if err != nil {
		l.fault = err
		return l
	}
	if l.credential, l.fault = agentauth.LatestCredential(a.ctx, st.renewals(), keys, t); l.fault != nil {
		return l
	}
	found, err := st.LeaseRenewal(a.ctx, t, nil, 0) // only looks
	if err != nil || found.Access == nil || found.Access.ExpiresAt != nil && !found.Access.ExpiresAt.After(time.Now()) {
		return l
	}
	if l.access, err = agentauth.AccessToken(keys, t, *found.Access); err == nil {
		l.until = found.Access.ExpiresAt
	}
	return l
}

// revoke has the server end the refresh token, with which all that came of the login ends, and the access token.
func (l *removedLogin) revoke(a *app) *revocation {
	out := &revocation{Issuer: l.token.Issuer, Revoked: []string{}, StillGood: []string{}}
	ctx, cancel := context.WithTimeout(a.ctx, revokeTime)
	defer cancel()
	client, server, done, err := l.server(ctx, a)
	defer done()
	var problems []string
	for _, of := range []struct {
		hint string
		text secret.Secret
	}{{oauth.HintRefreshToken, l.credential.RefreshToken}, {oauth.HintAccessToken, l.access}} {
		unknown := l.fault != nil && (of.hint == oauth.HintAccessToken || l.token.Scheme == store.SchemeAuthorizationCode)
		if of.text.IsZero() && !unknown {
			continue
		}
		failed := err
		if failed == nil {
			failed = client.Revoke(ctx, server, l.credential, of.text, of.hint)
		}
		if failed == nil {
			out.Revoked = append(out.Revoked, of.hint)
			continue
		}
		out.StillGood = append(out.StillGood, of.hint)
		if text := printable(failed.Error()); len(problems) == 0 || problems[len(problems)-1] != text {
			problems = append(problems, text)
		}
		if of.hint == oauth.HintAccessToken && l.until != nil {
			out.Until = l.until.UTC().Format(time.RFC3339)
		}
	}
	if l.token.Scheme == store.SchemeClientCredentials {
		out.StillGood = append(out.StillGood, stillClient)
	}
	out.Problem = strings.Join(problems, "; ")
	return out
}

// server finds who revokes, as a renewal finds who gives tokens. done is to be called in any case.
func (l *removedLogin) server(ctx context.Context, a *app) (client *oauth.Client, server oauth.Server, done func(), err error) {
	done = func() {}
	if l.fault != nil {
		return nil, server, done, l.fault
	}
	content, err := service.OpenContent(a.cfg, a.log)
	if err != nil {
		return nil, server, done, err
	}
	done = content.Close
	if client, err = service.OAuth(content.Guard); err != nil {
		return nil, server, done, err
	}
	server, err = client.ServerOf(ctx, oauth.Resource{Issuers: []string{l.token.Issuer}, Legacy: l.token.Issuer == l.token.Origin}, l.token.Issuer)
	if err == nil && server.RevocationEndpoint == "" {
		err = oauth.ErrNoRevocation
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		err = fmt.Errorf("it did not answer within %s", revokeTime)
	}
	return client, server, done, err
}

// words tell what the server ended, and what not.
func (r *revocation) words() string {
	issuer := printable(short(r.Issuer))
	text := fmt.Sprintf("%s revoked nothing", issuer)
	if len(r.Revoked) > 0 {
		text = fmt.Sprintf("%s revoked %s", issuer, r.named(r.Revoked))
	}
	if r.Problem != "" {
		text += fmt.Sprintf(" (%s)", r.Problem)
	}
	if len(r.StillGood) == 0 {
		return text
	}
	return fmt.Sprintf("%s; still good there: %s. To end that, end Herald's access there", text, r.named(r.StillGood))
}

// named are what can be good at a server, in words.
func (r *revocation) named(what []string) string {
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
