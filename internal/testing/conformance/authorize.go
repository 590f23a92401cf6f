package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/scripts/script"
)

const (
	// redirect is the address to which the authorization server would send a browser. No server listens there, because
	// openAsPerson reads the address of the redirect and does not follow it.
	redirect = "http://127.0.0.1:33418/callback"
	// clientMetadata is the client id for authorization servers that accept the URL of a metadata document as an id.
	// The suite prescribes this URL. Only authorization servers read the document.
	clientMetadata = "https://conformance-test.local/client-metadata.json"
	// maxAuthorizations bounds the new tokens for one step (listing the tools, or one call): one for a 401 and one for
	// a scope that is too small.
	maxAuthorizations = 2
)

// operator is a client that the authorization server already knows, as an operator would have stored it for the agent.
// An empty ID means that there is no such client.
type operator struct {
	ID        string `json:"client_id"`
	Secret    string `json:"client_secret"`
	Key       string `json:"private_key_pem"`
	Algorithm string `json:"signing_algorithm"`
	Issuer    string `json:"issuer"` // the authorization server of the client; empty: the first server that is found
}

// authorizer obtains the tokens that one agent requires, and keeps a client and scopes per authorization server. It is
// not safe for concurrent use.
type authorizer struct {
	oauth    *oauth.Client
	web      *http.Client // for the simulated person's browser; follows no redirect
	operator operator
	ep       mcpcall.Endpoint // with the newest token

	clients map[string]oauth.Credential // by issuer: the client registered there, used nowhere else
	scopes  map[string]string           // by issuer: the scopes requested so far
}

// withToken calls try, and calls it again with a new token each time the agent refuses the token, up to
// maxAuthorizations.
func withToken[T any](ctx context.Context, a *authorizer, try func(mcpcall.Endpoint) (T, error)) (T, error) {
	for n := 0; ; n++ {
		answer, err := try(a.ep)
		ch, refused := readChallenge(err)
		if !refused {
			return answer, err
		}
		if n == maxAuthorizations {
			return answer, fmt.Errorf("refused after %d new tokens: %w", n, err)
		}
		if err := script.Try(func() { a.authorize(ctx, ch) }); err != nil {
			return answer, fmt.Errorf("get a token: %w", err)
		}
	}
}

// readChallenge returns the challenge of err. It reports true for a 401, and for a 403 whose error is
// insufficient_scope; other refusals do not concern the token.
func readChallenge(err error) (oauth.Challenge, bool) {
	call, ok := errors.AsType[*mcpcall.CallError](err)
	if !ok {
		return oauth.Challenge{}, false
	}
	ch := oauth.ParseChallenge(call.Challenge)
	return ch, call.Status == http.StatusUnauthorized || call.Status == http.StatusForbidden &&
		ch.Error == "insufficient_scope"
}

// authorize obtains a token for the challenge. It looks up the authorization server again each time.
func (a *authorizer) authorize(ctx context.Context, ch oauth.Challenge) {
	resource := script.Must(a.oauth.Resource(ctx, a.ep.URL, ch))
	issuer := "" // any
	if a.operator.ID != "" {
		issuer = a.operator.Issuer
	}
	server := script.Must(a.oauth.ServerOf(ctx, resource, issuer))
	a.operator.Issuer = server.Issuer // an operator's client is for the first server that was found
	// The new token must keep the scopes that were granted before.
	scope := oauth.UnionScopes(a.scopes[server.Issuer], resource.ScopeFor(ch))
	a.scopes[server.Issuer] = scope
	var token oauth.Token
	switch {
	case slices.Contains(server.Grants, oauth.GrantClientCredentials) && a.operator.ID != "":
		client := a.operatorClient(server) // needs no person
		client.Grant, client.Resource, client.Scope = oauth.GrantClientCredentials, resource.URL, scope
		token = script.Must(a.oauth.Obtain(ctx, server, client, scope))
	case len(server.Grants) == 0 || slices.Contains(server.Grants, "authorization_code"):
		client := a.loginClient(ctx, server, scope)
		client.Resource, client.Scope = resource.URL, scope
		login := script.Must(a.oauth.Begin(server, client, redirect))
		var err error
		token, _, err = login.Finish(ctx, a.openAsPerson(ctx, login.URL()))
		script.Check(err)
	default:
		script.Fail("%s has no grant that is used here: %q", server.Issuer, server.Grants)
	}
	fmt.Printf("a token from %s for %q, scope %q\n", server.Issuer, resource.URL, token.Scope)
	a.ep.Headers = map[string]secret.Secret{"Authorization": secret.New("Bearer " + token.Access.Reveal())}
}

// loginClient returns the client for this authorization server: the operator's client, a registered client, the URL of
// a metadata document where the server accepts one, or else a newly registered client.
func (a *authorizer) loginClient(ctx context.Context, server oauth.Server, scope string) oauth.Credential {
	known, ok := a.clients[server.Issuer]
	switch {
	case a.operator.ID != "":
		return a.operatorClient(server)
	case !ok && server.ClientIDMetadata:
		return oauth.Credential{ClientID: clientMetadata, Method: oauth.MethodNone}
	case !ok:
		known = script.Must(a.oauth.Register(ctx, server, redirect, scope))
		a.clients[server.Issuer] = known
	}
	return known
}

// operatorClient returns the operator's client with the authentication method that this server requires.
func (a *authorizer) operatorClient(server oauth.Server) oauth.Credential {
	method := script.Must(server.Method(a.operator.Secret != "", a.operator.Key != ""))
	c := oauth.Credential{ClientID: a.operator.ID, Method: method, Algorithm: a.operator.Algorithm}
	switch method {
	case oauth.MethodBasic, oauth.MethodPost:
		c.Secret = secret.New(a.operator.Secret)
	case oauth.MethodKey:
		c.Key = secret.New(a.operator.Key)
	}
	return c
}

// openAsPerson simulates a person: it opens address and returns the query of the redirect.
func (a *authorizer) openAsPerson(ctx context.Context, address string) url.Values {
	res := script.Must(a.web.Do(script.Must(http.NewRequestWithContext(ctx, http.MethodGet, address, nil))))
	defer res.Body.Close()
	to, err := res.Location()
	if err != nil {
		page, _ := io.ReadAll(io.LimitReader(res.Body, 500))
		script.Fail("the authorization page answered %d and no redirect: %q", res.StatusCode, page)
	}
	if !strings.HasPrefix(to.String(), redirect+"?") {
		script.Fail("the authorization page redirects to %q, and not to %s", to.Host+to.Path, redirect)
	}
	return to.Query()
}
