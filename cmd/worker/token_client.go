package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
)

// checkClient refuses flags that do not go together.
func (c *tokenSetCmd) checkClient() error {
	switch {
	case c.ClientID == "" && (c.clientFlags != clientFlags{} || c.Unchecked):
		return &misuseError{"--auth-method, --key-id, --algorithm, --issuer, --scope, --resource and --unchecked are for an OAuth client: name it with --client-id"}
	case c.ClientID != "" && (c.Header != "" || c.File != ""):
		return &misuseError{"--header and --file are not for an OAuth client: its tokens are sent as Authorization: Bearer, and its secret is on stdin"}
	case c.AuthMethod == oauth.MethodNone:
		return &misuseError{"--auth-method none is for `worker token login`: without a person a client needs a secret or a key"}
	}
	return c.checkMethod()
}

// setClient stores an OAuth client that gets its tokens by itself (client credentials), once its server has given it one.
func (c *tokenSetCmd) setClient(a *app) error {
	t, err := c.token(a)
	if err != nil {
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
	f.alone, f.lenient = c.Unchecked, true
	s, err := f.find()
	if err != nil {
		return err
	}
	if err := f.agree(s); err != nil {
		return err
	}
	f.warn(s)
	cred, err := c.credential(a, s)
	if err != nil {
		return err
	}
	first, err := c.try(f, s, cred)
	if err != nil {
		return err
	}
	t.Origin, t.Path = s.Origin, s.Path
	t.Scheme, t.Header, t.Issuer = store.SchemeClientCredentials, authorization, s.Issuer
	st, err := a.dispatching()
	if err != nil {
		return err
	}
	defer st.close()
	out := changeOfToken(t).with(cred, s.Scope)
	if err := sealCredential(keys, &t, cred, first, s.Scope); err != nil {
		return err
	}
	if err := out.store(a, st, t, c.actor(), "token set"); err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(a, out)
	}
	if _, err = fmt.Fprintf(a.out, "%s\n", out.words("the OAuth client", t)); err == nil {
		err = tellToken(a, s.Issuer, first)
	}
	return err
}

// sealCredential puts a credential into the row that it is for, and the access token that came of it, if there is one. asked is the scope
// that the next one is asked for with; of a login it is empty, since its refresh token has it.
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

// with adds what of an OAuth credential is no secret. Its resource may be one, as an agent's address is.
func (c tokenChange) with(cred oauth.Credential, asked string) tokenChange {
	c.ClientID, c.AuthMethod, c.Scope = cred.ClientID, cred.Method, asked
	return c
}

// credential is the client with what stdin holds. Its scope is the most that will be asked for: what the operator said, else what the agent
// wants now. What it wants later it does not get by saying so.
func (c *tokenSetCmd) credential(a *app, s tokenSource) (oauth.Credential, error) {
	cred := oauth.Credential{Grant: oauth.GrantClientCredentials, ClientID: c.ClientID, KeyID: c.KeyID, Algorithm: c.Algorithm, Resource: s.Resource,
		Scope: oauth.UnionScopes(s.Scope, "")}
	text, err := fromStdin(a, "the client's secret or private key", agentauth.MaxToken)
	if err != nil {
		return cred, err
	}
	return cred, proof(a, &cred, text, c.AuthMethod, s)
}

// proof puts a secret or a key into a credential, with the method that was asked for or fits both it and the server.
func proof(a *app, cred *oauth.Credential, text, method string, s tokenSource) (err error) {
	isKey := strings.HasPrefix(strings.TrimSpace(text), "-----BEGIN ")
	if cred.Method, err = clientMethod(method, isKey, s.Server); err != nil {
		return err
	}
	if isKey {
		cred.Key = secret.New(text)
	} else {
		cred.Secret = secret.New(withoutLineEnd(text))
	}
	if err := cred.Check(); err != nil {
		return &misuseError{fmt.Sprintf("the client as it is given cannot be used: %v", err)}
	}
	if offered := s.Server.AuthMethods; len(offered) > 0 && !slices.Contains(offered, cred.Method) {
		fmt.Fprintf(a.err, "warning: the authorization server does not name %s among the ways that clients prove themselves: %s\n", cred.Method, printable(short(strings.Join(offered, ", "))))
	}
	return nil
}

// clientMethod is how a client proves itself: as was asked, else as the server takes it.
func clientMethod(asked string, isKey bool, server oauth.Server) (string, error) {
	switch {
	case isKey && asked != "" && asked != oauth.MethodKey:
		return "", &misuseError{fmt.Sprintf("there is a private key on stdin, and --auth-method %s wants a secret", asked)}
	case !isKey && asked == oauth.MethodKey:
		return "", &misuseError{"--auth-method private_key_jwt wants a private key in PEM on stdin (-----BEGIN PRIVATE KEY-----)"}
	case asked != "":
		return asked, nil
	}
	method, err := server.Method(!isKey, isKey)
	if err != nil {
		return "", &misuseError{fmt.Sprintf("%v; say --auth-method if the server's metadata is wrong about that", err)}
	}
	return method, nil
}

// try gets a token, so that what does not work is found before it is stored. That somebody is away is said and no reason not to store.
func (c *tokenSetCmd) try(f *sourceFinder, s tokenSource, cred oauth.Credential) (first oauth.Token, err error) {
	if f.alone {
		return first, nil
	}
	if err = s.Away; err == nil {
		first, err = f.client.Obtain(f.ctx, s.Server, cred, s.Scope)
	}
	var away *oauth.UnavailableError
	switch {
	case f.ctx.Err() != nil:
		return oauth.Token{}, fmt.Errorf("nothing was stored: %w", f.ctx.Err())
	case err == nil:
		return first, nil
	case s.Away != nil, errors.As(err, &away) && !forbidden(err):
		fmt.Fprintf(f.err, "warning: no token could be asked for now, so nobody knows yet whether the authorization server takes this client: %s\n", printable(err.Error()))
		return oauth.Token{}, nil
	case s.Mute != nil && wantsResource(err):
		fmt.Fprintf(f.err, "warning: nobody knows yet whether the authorization server takes this client, since it wants to be told for which resource: %s; name that with --resource\n", printable(err.Error()))
		return oauth.Token{}, nil
	}
	return oauth.Token{}, fmt.Errorf("nothing was stored: %w%s", err, refusalAdvice(err))
}

// wantsResource: a refusal that may be for want of a resource (RFC 8707 §2). The client was known by then.
func wantsResource(err error) bool {
	var refused *oauth.RefusedError
	return errors.As(err, &refused) && (refused.Code == "invalid_target" || refused.Code == "invalid_request")
}

// refusalAdvice says what to do about an authorization server's refusal; it begins with a colon, or is empty.
func refusalAdvice(err error) string {
	var refused *oauth.RefusedError
	if !errors.As(err, &refused) {
		return ""
	}
	switch refused.Code {
	case "invalid_client":
		return ": look at the client's id and secret or key, and at --auth-method"
	case "unauthorized_client", "unsupported_grant_type":
		return ": have the client allowed there to do this"
	case "invalid_scope":
		return ": name what it may have with --scope"
	case "invalid_target":
		return ": name what the server calls this agent with --resource"
	case "access_denied":
		return ": who was asked said no"
	}
	return ""
}

// tellToken says what the authorization server gave.
func tellToken(a *app, issuer string, first oauth.Token) error {
	if first.Access.IsZero() {
		return nil
	}
	text := fmt.Sprintf("%s gave a token", printable(short(issuer)))
	if !first.Expires.IsZero() {
		text += ", good until " + first.Expires.UTC().Format(time.RFC3339)
	}
	if first.Scope != "" {
		text += ", for " + printable(short(first.Scope))
	}
	_, err := fmt.Fprintln(a.out, text)
	return err
}

// sourceWords is how an OAuth token is had.
func sourceWords(t store.Token) string {
	grant := ""
	switch t.Scheme {
	case store.SchemeClientCredentials:
		grant = "client credentials"
	case store.SchemeAuthorizationCode:
		grant = "a login"
	}
	if grant == "" {
		return ""
	}
	return fmt.Sprintf(", had by %s from %s", grant, cmp.Or(t.Issuer, "nobody"))
}
