package tokens

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/records"
)

// checkClient returns an error if options for an OAuth client are missing or contradict others.
func (r SetRequest) checkClient() error {
	switch {
	case r.ClientID == "" && (r.Client != Client{} || r.Unchecked):
		return operator.NewMisuse("--auth-method, --key-id, --algorithm, --issuer, --scope, " +
			"--resource and --unchecked are for an OAuth client: name it with --client-id")
	case r.ClientID != "" && (r.Header != "" || r.File != ""):
		return operator.NewMisuse("--header and --file are not for an OAuth client: " +
			"its tokens are sent as Authorization: Bearer, and its secret is on stdin")
	case r.AuthMethod == oauth.MethodNone:
		return operator.NewMisuse(
			"--auth-method none is for `worker token login`: without a person a client needs a secret or a key")
	}
	return r.checkMethod()
}

// checkMethod validates --auth-method. The error does not quote its value, which may be the secret by mistake.
func (c Client) checkMethod() error {
	known := []string{oauth.MethodNone, oauth.MethodBasic, oauth.MethodPost, oauth.MethodKey}
	if c.AuthMethod != "" && !slices.Contains(known, c.AuthMethod) {
		return operator.NewMisuse("--auth-method is not one of %s", strings.Join(known, ", "))
	}
	return nil
}

// checkAsked validates resource, scope and issuer, which the authorization server would otherwise refuse later.
func (c Client) checkAsked() error {
	probe := oauth.Credential{Grant: oauth.GrantRefreshToken, ClientID: "any", Method: oauth.MethodNone,
		Resource: c.Resource}
	if err := probe.Check(); err != nil {
		return operator.NewMisuse("--resource is no absolute http or https URL of the agent: %v", err)
	}
	if probe.Scope = c.Scope; probe.Check() != nil {
		return operator.NewMisuse("--scope is no list of scopes with single spaces between, each once")
	}
	if c.Issuer == "" {
		return nil
	}
	u, err := url.Parse(c.Issuer)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "" {
		return operator.NewMisuse("--issuer is no https URL without user, query and fragment: " +
			"take it as the authorization server's metadata spells it")
	}
	return nil
}

// setClient stores an OAuth client that obtains tokens without a person (client credentials). It first obtains a token
// to verify the client, unless r.Unchecked is set.
func (o Tokens) setClient(ctx context.Context, r SetRequest, t records.Token) (c Change, err error) {
	f, err := o.newSourceFinder(t.Agent, r.Request)
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
	cred, err := f.readClient(s)
	if err != nil {
		return c, err
	}
	first, err := f.tryClient(ctx, s, cred)
	if err != nil {
		return c, err
	}

	t.Origin, t.Path = s.Origin, s.Path
	t.Scheme, t.Header, t.Issuer = records.SchemeClientCredentials, operator.Authorization, s.Issuer
	if err := sealCredential(f.keys, &t, cred, first, s.Scope); err != nil {
		return c, err
	}
	c, err = o.store(ctx, t, describeChange(t).withCredential(cred, s.Scope), r.Actor, "the OAuth client")
	if err == nil {
		c.sayToken(s.Issuer, first)
	}
	return c, err
}

// readClient returns the client with its secret or key. The client's scope is the most that it will ever request: the
// scope of the request, else the scope that the agent asks for now. A scope that the agent asks for later is not added.
func (f *sourceFinder) readClient(s tokenSource) (oauth.Credential, error) {
	cred := oauth.Credential{Grant: oauth.GrantClientCredentials, ClientID: f.asked.ClientID, KeyID: f.asked.KeyID,
		Algorithm: f.asked.Algorithm, Resource: s.Resource, Scope: oauth.UnionScopes(s.Scope, "")}
	err := f.readProof(&cred, s)
	return cred, err
}

// readProof reads a secret or a key into a credential. It uses the requested method, else one that fits the secret or
// key and that the server supports.
func (f *sourceFinder) readProof(cred *oauth.Credential, s tokenSource) error {
	read, err := f.asked.ReadSecret("the client's secret or private key", auth.MaxToken)
	if err != nil {
		return err
	}
	isKey := strings.HasPrefix(strings.TrimSpace(read), "-----BEGIN ")
	if cred.Method, err = chooseMethod(f.asked.AuthMethod, isKey, s.Server); err != nil {
		return err
	}
	if isKey {
		cred.Key = secret.New(read)
	} else {
		cred.Secret = secret.New(withoutLineEnd(read))
	}
	if err := cred.Check(); err != nil {
		return operator.NewMisuse("the client as it is given cannot be used: %v", err)
	}
	if offered := s.Server.AuthMethods; len(offered) > 0 && !slices.Contains(offered, cred.Method) {
		f.Notify("warning: the authorization server does not name %s among the ways that clients prove themselves: %s",
			cred.Method, text.Printable(text.Shorten(strings.Join(offered, ", "))))
	}
	return nil
}

// chooseMethod returns the client's authentication method: the requested one, else one that the server supports.
func chooseMethod(asked string, isKey bool, server oauth.Server) (string, error) {
	switch {
	case isKey && asked != "" && asked != oauth.MethodKey:
		return "", operator.NewMisuse("there is a private key on stdin, and --auth-method %s wants a secret", asked)
	case !isKey && asked == oauth.MethodKey:
		return "", operator.NewMisuse(
			"--auth-method private_key_jwt wants a private key in PEM on stdin (-----BEGIN PRIVATE KEY-----)")
	case asked != "":
		return asked, nil
	}
	method, err := server.Method(!isKey, isKey)
	if err != nil {
		return "", operator.NewMisuse("%v; say --auth-method if the server's metadata is wrong about that", err)
	}
	return method, nil
}

// tryClient obtains a token, so that a wrong client is found before it is stored. If the server does not answer now, it
// only warns and returns no token.
func (f *sourceFinder) tryClient(ctx context.Context, s tokenSource,
	cred oauth.Credential) (first oauth.Token, err error) {
	if f.alone {
		return first, nil
	}
	if err = s.Away; err == nil {
		first, err = f.content.OAuth.Obtain(ctx, s.Server, cred, s.Scope)
	}
	switch {
	case ctx.Err() != nil:
		return oauth.Token{}, fmt.Errorf("nothing was stored: %w", ctx.Err())
	case err == nil:
		return first, nil
	case s.Away != nil, oauth.MayAnswerLater(err):
		f.Notify("warning: no token could be requested now, "+
			"so it is unknown whether the authorization server accepts this client: %s", text.Printable(err.Error()))
		return oauth.Token{}, nil
	case s.Mute != nil && mayWantResource(err):
		f.Notify("warning: it is unknown whether the authorization server accepts this client, since it requires a "+
			"resource: %s; name that with --resource", text.Printable(err.Error()))
		return oauth.Token{}, nil
	}
	return oauth.Token{}, fmt.Errorf("nothing was stored: %w%s", err, adviseRefusal(err))
}

// mayWantResource reports whether a refusal may be due to a missing resource parameter (RFC 8707 §2). The server has
// then accepted the client.
func mayWantResource(err error) bool {
	var refused *oauth.RefusedError
	return errors.As(err, &refused) && (refused.Code == "invalid_target" || refused.Code == "invalid_request")
}

// adviseRefusal returns advice on an authorization server's refusal. The text begins with a colon, or is empty.
func adviseRefusal(err error) string {
	refused, ok := errors.AsType[*oauth.RefusedError](err)
	if !ok {
		return ""
	}
	switch refused.Code {
	case "invalid_client":
		return ": look at the client's id and secret or key, and at --auth-method"
	case "unauthorized_client", "unsupported_grant_type":
		return ": have the client allowed there to do this"
	case "invalid_scope":
		return ": name its scopes with --scope"
	case "invalid_target":
		return ": give the server's name of this agent with --resource"
	case "access_denied":
		return ": the user said no"
	}
	return ""
}
