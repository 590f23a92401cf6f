package operator

import (
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
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
)

// checkClient refuses what does not go together.
func (r TokenRequest) checkClient() error {
	switch {
	case r.ClientID == "" && (r.OAuthClient != OAuthClient{} || r.Unchecked):
		return newMisuse("--auth-method, --key-id, --algorithm, --issuer, --scope, --resource and --unchecked are for an OAuth client: " +
			"name it with --client-id")
	case r.ClientID != "" && (r.Header != "" || r.File != ""):
		return newMisuse("--header and --file are not for an OAuth client: its tokens are sent as Authorization: Bearer, " +
			"and its secret is on stdin")
	case r.AuthMethod == oauth.MethodNone:
		return newMisuse("--auth-method none is for `worker token login`: without a person a client needs a secret or a key")
	}
	return r.checkMethod()
}

// checkMethod does not tell what was given, which may be the secret.
func (c OAuthClient) checkMethod() error {
	known := []string{oauth.MethodNone, oauth.MethodBasic, oauth.MethodPost, oauth.MethodKey}
	if c.AuthMethod != "" && !slices.Contains(known, c.AuthMethod) {
		return newMisuse("--auth-method is none of %s", strings.Join(known, ", "))
	}
	return nil
}

// checkAsked looks at what somebody else would refuse later.
func (c OAuthClient) checkAsked() error {
	probe := oauth.Credential{Grant: oauth.GrantRefreshToken, ClientID: "any", Method: oauth.MethodNone,
		Resource: c.Resource}
	if err := probe.Check(); err != nil {
		return newMisuse("--resource is no absolute http or https URL of the agent: %v", err)
	}
	if probe.Scope = c.Scope; probe.Check() != nil {
		return newMisuse("--scope is no list of scopes with single spaces between, each once")
	}
	if c.Issuer == "" {
		return nil
	}
	u, err := url.Parse(c.Issuer)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil ||
		u.RawQuery != "" ||
		u.Fragment != "" {
		return newMisuse("--issuer is no https URL without user, query and fragment: take it as the authorization server's metadata spells it")
	}
	return nil
}

// setClient stores an OAuth client that gets its tokens by itself (client credentials), once its server has given it
// one.
func (o *Operator) setClient(ctx context.Context, r TokenRequest, t store.Token) (c TokenChange, err error) {
	keys, err := o.Backend.Keyset()
	if err != nil {
		return c, err
	}
	f, err := o.newSourceFinder(t.Agent, r.OAuthClient, r.Origin)
	if err != nil {
		return c, err
	}
	defer f.content.Close()
	f.alone, f.lenient = r.Unchecked, true
	s, err := f.findSource(ctx)
	if err != nil {
		return c, err
	}
	if err := f.confirmSource(ctx, s); err != nil {
		return c, err
	}
	f.warnSource(s)
	cred, err := o.readClient(r, s)
	if err != nil {
		return c, err
	}
	first, err := f.tryClient(ctx, s, cred)
	if err != nil {
		return c, err
	}

	t.Origin, t.Path = s.Origin, s.Path
	t.Scheme, t.Header, t.Issuer = store.SchemeClientCredentials, authorization, s.Issuer
	st, err := o.openDispatching(ctx)
	if err != nil {
		return c, err
	}
	defer st.Close()
	c = describeChange(t).withCredential(cred, s.Scope)
	if err := sealCredential(keys, &t, cred, first, s.Scope); err != nil {
		return c, err
	}
	if err := c.storeToken(ctx, st, t, r.Actor, "token set", "the OAuth client"); err != nil {
		return c, err
	}
	c.sayToken(s.Issuer, first)
	return c, nil
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
func (c TokenChange) withCredential(cred oauth.Credential, asked string) TokenChange {
	c.ClientID, c.AuthMethod, c.Scope = cred.ClientID, cred.Method, asked
	return c
}

// sayToken says what the authorization server gave.
func (c *TokenChange) sayToken(issuer string, first oauth.Token) {
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

// readClient is the client with its secret or key. Its scope is the most that will be asked for: what the operator
// said, else what the agent wants now. What it wants later it does not get by saying so.
func (o *Operator) readClient(r TokenRequest, s tokenSource) (oauth.Credential, error) {
	cred := oauth.Credential{Grant: oauth.GrantClientCredentials, ClientID: r.ClientID, KeyID: r.KeyID,
		Algorithm: r.Algorithm,
		Resource:  s.Resource, Scope: oauth.UnionScopes(s.Scope, "")}
	return cred, o.readProof(r, &cred, s)
}

// readProof reads a secret or a key into a credential, with the method that was asked for or fits both it and the
// server.
func (o *Operator) readProof(r TokenRequest, cred *oauth.Credential, s tokenSource) error {
	read, err := r.ReadSecret("the client's secret or private key", agentauth.MaxToken)
	if err != nil {
		return err
	}
	isKey := strings.HasPrefix(strings.TrimSpace(read), "-----BEGIN ")
	if cred.Method, err = chooseMethod(r.AuthMethod, isKey, s.Server); err != nil {
		return err
	}
	if isKey {
		cred.Key = secret.New(read)
	} else {
		cred.Secret = secret.New(withoutLineEnd(read))
	}
	if err := cred.Check(); err != nil {
		return newMisuse("the client as it is given cannot be used: %v", err)
	}
	if offered := s.Server.AuthMethods; len(offered) > 0 && !slices.Contains(offered, cred.Method) {
		o.notify("warning: the authorization server does not name %s among the ways that clients prove themselves: %s",
			cred.Method,
			text.Printable(text.Shorten(strings.Join(offered, ", "))))
	}
	return nil
}

// chooseMethod is how a client proves itself: as was asked, else as the server takes it.
func chooseMethod(asked string, isKey bool, server oauth.Server) (string, error) {
	switch {
	case isKey && asked != "" && asked != oauth.MethodKey:
		return "", newMisuse("there is a private key on stdin, and --auth-method %s wants a secret", asked)
	case !isKey && asked == oauth.MethodKey:
		return "", newMisuse("--auth-method private_key_jwt wants a private key in PEM on stdin (-----BEGIN PRIVATE KEY-----)")
	case asked != "":
		return asked, nil
	}
	method, err := server.Method(!isKey, isKey)
	if err != nil {
		return "", newMisuse("%v; say --auth-method if the server's metadata is wrong about that", err)
	}
	return method, nil
}

// tryClient gets a token, so that what does not work is found before it is stored. That somebody is away is said and
// no reason not to store.
func (f *sourceFinder) tryClient(ctx context.Context, s tokenSource,
	cred oauth.Credential) (first oauth.Token, err error) {
	if f.alone {
		return first, nil
	}
	if err = s.Away; err == nil {
		first, err = f.content.OAuth.Obtain(ctx, s.Server, cred, s.Scope)
	}
	var away *oauth.UnavailableError
	switch {
	case ctx.Err() != nil:
		return oauth.Token{}, fmt.Errorf("nothing was stored: %w", ctx.Err())
	case err == nil:
		return first, nil
	case s.Away != nil, errors.As(err, &away) && !isForbidden(err):
		f.notify("warning: no token could be asked for now, so nobody knows yet whether the authorization server takes this client: %s",
			text.Printable(err.Error()))
		return oauth.Token{}, nil
	case s.Mute != nil && mayWantResource(err):
		f.notify("warning: nobody knows yet whether the authorization server takes this client, since it wants to be told for which "+
			"resource: %s; name that with --resource", text.Printable(err.Error()))
		return oauth.Token{}, nil
	}
	return oauth.Token{}, fmt.Errorf("nothing was stored: %w%s", err, adviseRefusal(err))
}

// mayWantResource: a refusal that may be for want of a resource (RFC 8707 §2). The client was known by then.
func mayWantResource(err error) bool {
	var refused *oauth.RefusedError
	return errors.As(err, &refused) && (refused.Code == "invalid_target" || refused.Code == "invalid_request")
}

// adviseRefusal says what to do about an authorization server's refusal; it begins with a colon, or is empty.
func adviseRefusal(err error) string {
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
