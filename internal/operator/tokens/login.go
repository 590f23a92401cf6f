package tokens

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/records"
)

// offlineAccess is the scope that requests a refresh token (OpenID Connect Core §11).
const offlineAccess = "offline_access"

// LoginRequest selects the agent and the client of a login.
type LoginRequest struct {
	Request
	ClientMetadataURL string `name:"client-metadata-url" help:"Instead of --client-id: the https address of a client id metadata document of yours. Without either Herald registers itself." placeholder:"URL"`
	LoginPage         string `help:"Where people log in, as in https://login.example, when that is not where the authorization server is and you know that it belongs to it." placeholder:"URL"`

	Listen string        `help:"Loopback address of this machine to which the browser returns. Default: ${default}, a free port." default:"127.0.0.1:0" placeholder:"ADDRESS:PORT"`
	Wait   time.Duration `help:"How long the browser is waited for. Default: ${default}." default:"5m" placeholder:"DURATION"`
}

// maxLogin bounds --wait.
const maxLogin = time.Hour

// LogIn lets a person log in at the authorization server (authorization code with PKCE), and stores the credential with
// which workers obtain tokens from then on. It checks as much as possible before the person has to act.
func (o Tokens) LogIn(ctx context.Context, r LoginRequest) (c Change, err error) {
	g, err := o.ParseRef(r.AgentRef)
	if err != nil {
		return c, err
	}
	if err := r.check(); err != nil {
		return c, err
	}
	f, err := o.newSourceFinder(g, r.Request)
	if err != nil {
		return c, err
	}
	defer f.content.Close()
	s, err := f.findLogin(ctx, r)
	if err != nil {
		return c, err
	}
	token, cred, err := f.logIn(ctx, r, s)
	if err != nil {
		return c, err
	}

	st, err := o.OpenDispatching(ctx)
	if err != nil {
		return c, fmt.Errorf("nothing was stored, though the login is done: %w; log in again once that works", err)
	}
	defer st.Close()
	return f.storeLogin(ctx, st, s, token, cred)
}

// check returns an error if options contradict each other.
func (r *LoginRequest) check() error {
	secretMethod := r.AuthMethod != "" && r.AuthMethod != oauth.MethodNone
	switch {
	case !onLoopback(r.Listen):
		return operator.NewMisuse("--listen is not an address and port on loopback, such as 127.0.0.1:8976 or " +
			"[::1]:8976: any other client that could reach it would get the login's answer")
	case r.Wait < time.Second || r.Wait > maxLogin:
		return operator.NewMisuse("--wait %s is not between 1s and %s", r.Wait, maxLogin)
	case r.ClientID != "" && r.ClientMetadataURL != "":
		return operator.NewMisuse("--client-id and --client-metadata-url both name the client")
	case r.ClientID == "" && r.ClientMetadataURL == "" && r.AuthMethod != "":
		return operator.NewMisuse("--auth-method is for a client that is known there: name it with --client-id; " +
			"one that Herald registers gets what the server gives it")
	case !secretMethod && (r.KeyID != "" || r.Algorithm != ""):
		return operator.NewMisuse("--key-id and --algorithm are for --auth-method private_key_jwt")
	}
	if r.LoginPage != "" {
		page, err := netguard.CredentialOriginOf(r.LoginPage)
		if err != nil {
			return operator.NewMisuse("--login-page: %v", err)
		}
		r.LoginPage = string(page)
	}
	return r.checkMethod()
}

// findLogin finds the token source, verifies that a person can log in there, and asks for consent to it.
func (f *sourceFinder) findLogin(ctx context.Context, r LoginRequest) (tokenSource, error) {
	s, err := f.findSource(ctx)
	if err == nil {
		err = f.checkStore(ctx)
	}
	issuer := text.Printable(text.Shorten(s.Issuer))
	switch {
	case err != nil:
		return s, err
	case s.Away != nil:
		return s, fmt.Errorf("the authorization server %s: %w; try again", issuer, s.Away)
	case s.Server.AuthorizationEndpoint == "":
		return s, fmt.Errorf("the authorization server %s has no page to log in at: if it knows Herald as a client, "+
			"`worker token set --client-id` stores that", issuer)
	}
	if s.Page, err = checkPage(s.Server, r.LoginPage); err != nil {
		return s, err
	}
	if err := r.checkProof(s.Server); err != nil {
		return s, err
	}
	if slices.Contains(s.Server.Scopes, offlineAccess) {
		s.Scope = oauth.UnionScopes(s.Scope, offlineAccess) // as oauth.Client.Begin does; here it is shown
	}
	if err := f.confirmSource(ctx, s); err != nil {
		return s, err
	}
	if s.Page != "" {
		f.Notify("note: people of %s log in at another place, %s", issuer, text.Printable(s.Page))
	}
	f.warnSource(s)
	return s, nil
}

// checkStore verifies, before the person logs in, that the store can be opened and that the running workers can decrypt
// the credential. It closes the store again, because an open session would lock the embedded services during the login.
func (f *sourceFinder) checkStore(ctx context.Context) error {
	st, err := f.OpenStore(ctx)
	if err != nil {
		return err
	}
	defer st.Close()
	return checkWorkers(ctx, st, f.keys.PrimaryID())
}

// checkProof returns an error if the server would refuse a client without a secret, which it does only after the login.
func (r LoginRequest) checkProof(s oauth.Server) error {
	if r.ClientID == "" || r.AuthMethod != "" || len(s.AuthMethods) == 0 ||
		slices.Contains(s.AuthMethods, oauth.MethodNone) {
		return nil
	}
	return operator.NewMisuse("the authorization server takes no client without a secret or a key, "+
		"its metadata says: give that on stdin and say --auth-method, which there is one of %s; "+
		"or --auth-method none, if you know that it does",
		text.Printable(text.Shorten(strings.Join(s.AuthMethods, ", "))))
}

// logIn runs the login in a browser and returns the token and the credential.
func (f *sourceFinder) logIn(ctx context.Context, r LoginRequest, s tokenSource) (
	token oauth.Token, cred oauth.Credential, err error) {
	back, err := listenForCallback(ctx, r.Listen)
	if err != nil {
		return token, cred, err
	}
	defer func() { _ = back.Close() }()
	client, err := f.chooseClient(ctx, r, s, back.redirectURL())
	var l *oauth.Login
	if err == nil {
		l, err = f.content.OAuth.Begin(s.Server, client, back.redirectURL())
	}
	var values url.Values
	if err == nil {
		values, err = f.awaitLogin(ctx, back, l.URL(), r.Wait)
	}
	if err == nil {
		token, cred, err = l.Finish(ctx, values)
	}
	if err != nil {
		return oauth.Token{}, oauth.Credential{}, fmt.Errorf("nothing was stored: %w%s", err, adviseRefusal(err))
	}
	return token, cred, nil
}

// chooseClient returns the client that logs in: one that the server knows, with its secret or key, one that a metadata
// document describes, or one that it registers now.
func (f *sourceFinder) chooseClient(ctx context.Context, r LoginRequest, s tokenSource,
	redirect string) (client oauth.Credential, err error) {
	client = oauth.Credential{Grant: oauth.GrantRefreshToken, ClientID: cmp.Or(r.ClientID, r.ClientMetadataURL),
		Method: oauth.MethodNone, KeyID: r.KeyID, Algorithm: r.Algorithm, Resource: s.Resource, Scope: s.Scope}
	switch {
	case r.ClientMetadataURL != "" && !s.Server.ClientIDMetadata:
		return client, errors.New("the authorization server does not accept the address of a metadata document as a " +
			"client id: register Herald there, and name its id with --client-id")
	case client.ClientID != "" && r.AuthMethod != "" && r.AuthMethod != oauth.MethodNone:
		err = f.readProof(&client, s)
		return client, err
	case client.ClientID != "":
		return client, nil
	case s.Server.RegistrationEndpoint == "":
		return client, fmt.Errorf("the authorization server registers no clients by itself: have Herald made known "+
			"there with the redirect URI %s (and --listen naming that port), and name it with --client-id", redirect)
	}
	if client, err = f.content.OAuth.Register(ctx, s.Server, redirect, s.Scope); err != nil {
		return client, fmt.Errorf("register Herald as a client: %w", err)
	}
	client.Resource = s.Resource
	return client, nil
}

// storeLogin stores the credential of the login. If the server issued no refresh token, it stores the single access
// token instead.
func (f *sourceFinder) storeLogin(ctx context.Context, st *operator.Session, s tokenSource, token oauth.Token,
	cred oauth.Credential) (c Change, err error) {
	t := records.Token{Agent: f.agent, Origin: s.Origin, Path: s.Path, Header: operator.Authorization}
	what := "the login"
	if cred.RefreshToken.IsZero() {
		what = "the token"
		t.Scheme = records.SchemeBearer
		if !token.Expires.IsZero() {
			at := token.Expires.UTC().Truncate(time.Second)
			t.ExpiresAt = &at
		}
		f.Notify("warning: the authorization server gave no refresh token, so that there is one token and no other: " +
			"when it has expired, a person has to log in again")
		t.Ciphertext, err = f.keys.Seal([]byte(token.Access.Reveal()), t.Binding())
	} else {
		t.Scheme, t.Issuer = records.SchemeAuthorizationCode, s.Issuer
		err = sealCredential(f.keys, &t, cred, token, "")
	}
	if err != nil {
		return c, err
	}

	c = describeChange(t).withCredential(cred, cred.Scope)
	c.Issuer = s.Issuer // also for a single token, whose row has no issuer
	if err := c.storeToken(ctx, st, t, f.asked.Actor, "token login", what); err != nil {
		return c, err
	}
	c.sayToken(s.Issuer, token)
	return c, nil
}
