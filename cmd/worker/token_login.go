package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
)

type tokenLoginCmd struct {
	agentArg
	Origin string `help:"Where the tokens may go, with all below it: https://agent.example/mcp, or a whole origin. Default: where the agent is now, after you were asked." placeholder:"URL"`
	clientFlags
	ClientMetadataURL string        `name:"client-metadata-url" help:"Instead of --client-id: the https address of a client id metadata document of yours. Without either Herald registers itself." placeholder:"URL"`
	LoginPage         string        `help:"Where people log in, as in https://login.example, when that is not where the authorization server is and you know that it belongs to it." placeholder:"URL"`
	Listen            string        `help:"Where the browser comes back to, on this machine's loopback." default:"127.0.0.1:0" placeholder:"ADDRESS:PORT"`
	Wait              time.Duration `help:"How long the browser is waited for." default:"5m" placeholder:"DURATION"`
	actorFlag
	JSON bool `name:"json" help:"As JSON."`
}

const (
	maxLogin      = time.Hour
	offlineAccess = "offline_access" // asks for a refresh token (OpenID Connect Core §11)
)

// Run has a person log in at the authorization server (authorization code with PKCE) and stores what the worker gets tokens with from then
// on. What can be found wrong without the person is looked for before.
func (c *tokenLoginCmd) Run(a *app) error {
	t := store.Token{Header: authorization}
	var err error
	if t.Agent, err = c.agent(a); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	keys, err := service.Keyset(a.cfg)
	if err != nil {
		return err
	}
	f, err := newSourceFinder(a, t.Agent, c.clientFlags, c.Origin)
	if err != nil {
		return err
	}
	defer f.close()
	s, err := c.source(f)
	if err != nil {
		return err
	}
	token, cred, err := c.login(f, s)
	if err != nil {
		return err
	}
	st, err := a.dispatching()
	if err != nil {
		return fmt.Errorf("nothing was stored, though the login is done: %w; log in again when that is mended", err)
	}
	defer st.close()
	t.Origin, t.Path = s.Origin, s.Path
	out, err := c.put(a, st, keys, t, s, token, cred)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(a, out)
	}
	return tellToken(a, s.Issuer, token)
}

// check refuses flags that do not go together.
func (c *tokenLoginCmd) check() error {
	secretMethod := c.AuthMethod != "" && c.AuthMethod != oauth.MethodNone
	switch {
	case c.ClientID != "" && c.ClientMetadataURL != "":
		return &misuseError{"--client-id and --client-metadata-url both say who the client is"}
	case c.ClientID == "" && c.ClientMetadataURL == "" && c.AuthMethod != "":
		return &misuseError{"--auth-method is for a client that is known there: name it with --client-id; one that Herald registers gets what the server gives it"}
	case !secretMethod && (c.KeyID != "" || c.Algorithm != ""):
		return &misuseError{"--key-id and --algorithm are for --auth-method private_key_jwt"}
	case !onLoopback(c.Listen):
		return errListen
	case c.Wait < time.Second || c.Wait > maxLogin:
		return &misuseError{fmt.Sprintf("--wait %s is not between 1s and %s", c.Wait, maxLogin)}
	}
	if c.LoginPage != "" {
		page, err := agentauth.CredentialOrigin(c.LoginPage)
		if err != nil {
			return &misuseError{fmt.Sprintf("--login-page: %v", err)}
		}
		c.LoginPage = page
	}
	return c.checkMethod()
}

// source is who gives the tokens, agreed to, and able to have a person log in.
func (c *tokenLoginCmd) source(f *sourceFinder) (tokenSource, error) {
	s, err := f.find()
	if err == nil {
		err = checkStore(f.app)
	}
	switch {
	case err != nil:
		return s, err
	case s.Away != nil:
		return s, fmt.Errorf("the authorization server %s: %w; try again", printable(short(s.Issuer)), s.Away)
	case s.Server.AuthorizationEndpoint == "":
		return s, fmt.Errorf("the authorization server %s has no page to log in at: if it knows Herald as a client, `worker token set --client-id` stores that", printable(short(s.Issuer)))
	}
	if s.Page, err = checkPage(s.Server, c.LoginPage); err != nil {
		return s, err
	}
	if err := c.checkProof(s.Server); err != nil {
		return s, err
	}
	if slices.Contains(s.Server.Scopes, offlineAccess) {
		s.Scope = oauth.UnionScopes(s.Scope, offlineAccess) // as oauth.Client.Begin does: here it is shown
	}
	if err := f.agree(s); err != nil {
		return s, err
	}
	if s.Page != "" {
		fmt.Fprintf(f.err, "note: people of %s log in at another place, %s\n", printable(short(s.Issuer)), printable(s.Page))
	}
	f.warn(s)
	return s, nil
}

// checkStore finds out before a person logs in that what comes of it could not be stored. It is not kept open meanwhile: embedded services
// would be locked for everybody else until the person is done.
func checkStore(a *app) error {
	st, err := a.store()
	if err == nil {
		st.close()
	}
	return err
}

// checkProof refuses what the server would, once the person has logged in.
func (c *tokenLoginCmd) checkProof(s oauth.Server) error {
	if c.ClientID == "" || c.AuthMethod != "" || len(s.AuthMethods) == 0 || slices.Contains(s.AuthMethods, oauth.MethodNone) {
		return nil
	}
	return &misuseError{fmt.Sprintf("the authorization server takes no client without a secret or a key, its metadata says: give that on stdin and say --auth-method, which there is one of %s; "+
		"or --auth-method none, if you know that it does", printable(short(strings.Join(s.AuthMethods, ", "))))}
}

// login has the person's agreement become a credential.
func (c *tokenLoginCmd) login(f *sourceFinder, s tokenSource) (oauth.Token, oauth.Credential, error) {
	fail := func(err error) (oauth.Token, oauth.Credential, error) {
		return oauth.Token{}, oauth.Credential{}, fmt.Errorf("nothing was stored: %w%s", err, refusalAdvice(err))
	}
	back, err := listenForCallback(f.ctx, c.Listen)
	if err != nil {
		return oauth.Token{}, oauth.Credential{}, err
	}
	defer back.close()
	cfg, err := c.client(f, s, back.redirect())
	if err != nil {
		return fail(err)
	}
	l, err := f.client.Begin(s.Server, cfg)
	if err != nil {
		return fail(err)
	}
	values, err := c.person(f, back, l.URL())
	if err != nil {
		return fail(err)
	}
	token, cred, err := l.Finish(f.ctx, values)
	if err != nil {
		return fail(err)
	}
	return token, cred, nil
}

// person shows the address and waits for the browser.
func (c *tokenLoginCmd) person(f *sourceFinder, back *callback, address string) (url.Values, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the authorization server's page has no address")
	}
	fmt.Fprintf(f.err, "Open this address in a browser on this machine, and log in there within %s:\n\n%s\n\nThe browser comes back to %s; from another machine that needs a tunnel, as in ssh -L, with --listen naming the port.\n",
		c.Wait, printable(address), back.redirect())
	ctx, cancel := context.WithTimeout(f.ctx, c.Wait)
	defer cancel()
	values, err := back.wait(ctx, u.Query().Get("state"))
	if errors.Is(err, context.DeadlineExceeded) && f.ctx.Err() == nil {
		return nil, fmt.Errorf("no browser came back within %s", c.Wait)
	}
	return values, err
}

// client is as whom Herald asks: a client that is known there, one that a document of the operator's describes, or one that is registered now.
func (c *tokenLoginCmd) client(f *sourceFinder, s tokenSource, redirect string) (oauth.LoginConfig, error) {
	cfg := oauth.LoginConfig{ClientID: cmp.Or(c.ClientID, c.ClientMetadataURL), Method: oauth.MethodNone, Redirect: redirect, Resource: s.Resource, Scope: s.Scope,
		KeyID: c.KeyID, Algorithm: c.Algorithm}
	switch {
	case c.ClientMetadataURL != "" && !s.Server.ClientIDMetadata:
		return cfg, errors.New("the authorization server takes no address of a metadata document for a client's id: have Herald made known there, and name it with --client-id")
	case cfg.ClientID != "" && c.AuthMethod != "" && c.AuthMethod != oauth.MethodNone:
		return c.proven(f, s, cfg)
	case cfg.ClientID != "":
		return cfg, nil
	case s.Server.RegistrationEndpoint == "":
		return cfg, fmt.Errorf("the authorization server registers no clients by itself: have Herald made known there with the redirect URI %s (and --listen naming that port), and name it with --client-id", redirect)
	}
	known, err := f.client.Register(f.ctx, s.Server, oauth.RegisterConfig{Redirect: redirect, Scope: s.Scope, Name: "Herald"})
	if err != nil {
		return cfg, fmt.Errorf("register Herald as a client: %w", err)
	}
	cfg.ClientID, cfg.Method, cfg.Secret = known.ClientID, known.Method, known.Secret
	return cfg, nil
}

// proven is a client with the secret or key from stdin.
func (c *tokenLoginCmd) proven(f *sourceFinder, s tokenSource, cfg oauth.LoginConfig) (oauth.LoginConfig, error) {
	text, err := fromStdin(f.app, "the client's secret or private key", agentauth.MaxToken)
	if err != nil {
		return cfg, err
	}
	cred := oauth.Credential{Grant: oauth.GrantRefreshToken, ClientID: cfg.ClientID, KeyID: c.KeyID, Algorithm: c.Algorithm}
	err = proof(f.app, &cred, text, c.AuthMethod, s)
	cfg.Method, cfg.Secret, cfg.Key = cred.Method, cred.Secret, cred.Key
	return cfg, err
}

// put stores what the login brought: what tokens are got with from then on, or the one token, when the server gave nothing more.
func (c *tokenLoginCmd) put(a *app, st *openStore, keys *secret.Keyset, t store.Token, s tokenSource, token oauth.Token, cred oauth.Credential) (tokenChange, error) {
	what := "the login"
	var err error
	if cred.RefreshToken.IsZero() {
		what = "the token"
		t.Scheme = store.SchemeBearer
		if !token.Expires.IsZero() {
			at := token.Expires.UTC().Truncate(time.Second)
			t.ExpiresAt = &at
		}
		fmt.Fprintln(a.err, "warning: the authorization server gave no refresh token, so that there is one token and no other: when it has expired, somebody has to log in again")
		t.Ciphertext, err = keys.Seal([]byte(token.Access.Reveal()), t.Binding())
	} else {
		t.Scheme, t.Issuer = store.SchemeAuthorizationCode, s.Issuer
		err = sealCredential(keys, &t, cred, token, "")
	}
	if err != nil {
		return tokenChange{}, err
	}
	out := changeOfToken(t).with(cred, cred.Scope)
	out.Issuer = s.Issuer // also of the one token, whose row has none
	if err := out.store(a, st, t, c.actor(), "token login"); err != nil || c.JSON {
		return out, err
	}
	_, err = fmt.Fprintln(a.out, out.words(what, t))
	return out, err
}
