package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
)

// WithTokenRefresh makes a request to the agent. If the agent refuses the access token, it repeats the request
// immediately with another token, at most once per Authorization. That other token may be one that another worker got
// earlier and that was revoked since; then the request is repeated once more. If the agent refuses a fresh token, which
// may have been revoked in the meantime, the request fails and is retried later (see rejectFresh).
func (z *Authorizer) WithTokenRefresh(ctx context.Context, a *Authorization,
	call func(context.Context, mcpcall.Endpoint) error) error {
	err := call(ctx, a.Endpoint)
	if a.token == nil {
		return err
	}
	e, ok := parseRefusal(*a.token, a.Endpoint, err)
	switch {
	case !ok || a.refreshed && e.narrow:
		return err
	case !e.narrow && (a.refreshed || z.refusesFresh(e)):
		return z.rejectFresh(e)
	}
	a.refreshed = true
	for again := !e.narrow; ; again = false {
		value, failure := z.replaceToken(ctx, e)
		if failure != nil {
			a.wantsScope = e.narrow
			return failure
		}
		a.Endpoint.Headers = map[string]secret.Secret{a.token.Header: value}
		err = call(ctx, a.Endpoint)
		still, ok := parseRefusal(*a.token, a.Endpoint, err)
		switch {
		case ok && still.narrow:
			a.wantsScope = true
			z.rememberFailure(still, z.RefusalPause, &renewalError{text: err.Error(), cause: err})
		case ok && again && !z.refusesFresh(still):
			e = still
			continue
		case ok:
			return z.rejectFresh(still)
		}
		return err
	}
}

// parseRefusal reports whether the agent refused an access token that can be renewed: with 401, or with 403 because it
// requires a token with another scope (RFC 6750 §3.1).
func parseRefusal(t records.Token, sent mcpcall.Endpoint, err error) (e tokenRequest, ok bool) {
	var call *mcpcall.CallError
	if !t.OAuth() || !errors.As(err, &call) {
		return e, false
	}
	e = tokenRequest{token: t, url: sent.URL, refused: sent.Headers[t.Header],
		says: oauth.ParseChallenge(call.Challenge)}
	e.narrow = call.Status == http.StatusForbidden && e.says.Error == "insufficient_scope"
	return e, !e.refused.IsZero() && (call.Status == http.StatusUnauthorized || e.narrow)
}

// replaceToken obtains an access token that replaces the one that the agent refused.
func (z *Authorizer) replaceToken(ctx context.Context, e tokenRequest) (value secret.Secret, err error) {
	switch {
	case e.narrow && e.token.Scheme == records.SchemeAuthorizationCode:
		cred, err := openCredential(z.Keys, e.token)
		if err != nil {
			return value, err
		}
		// Without --scope, a login requests the scope that the agent names before it gets a token.
		scope := ""
		if e.says.Scope != "" {
			scope = oauth.UnionScopes(cred.Scope, e.says.Scope)
		}
		return value, outcome.Fail(outcome.AuthRequired,
			fmt.Sprintf("the agent wants more (scope %q) than the login allowed, "+
				"which only another login can mend: if it may have it, %s %s",
				text.Excerpt(cmp.Or(e.says.Scope, "it does not say which"), 200), howToStore(e.token),
				scopeOption(scope)))
	case !e.narrow:
		z.replaceRefused(e)
	}
	return z.bearerHeader(ctx, e)
}
