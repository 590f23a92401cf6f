package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
)

// renewing makes a request of the agent and, when the agent refuses the access token that went with it, once more at once with another
// one. That happens once in an attempt. A fresh token that is refused too was perhaps revoked on its way: the attempt fails and is made
// again later (renewer.rejectFresh).
func (p *Executor) renewing(ctx context.Context, a *attempt, request func() error) error {
	err := request()
	if a.stored == nil {
		return err
	}
	e, ok := challenged(*a.stored, a.target, err)
	switch {
	case !ok || a.renewed && e.narrow:
		return err
	case !e.narrow && (a.renewed || p.Credentials.renewer.refusesFresh(e)):
		return p.Credentials.renewer.rejectFresh(e)
	}
	a.renewed = true
	value, failure := p.Credentials.another(ctx, e)
	if failure != nil {
		a.narrow = e.narrow
		return failure
	}
	a.target.Headers = map[string]secret.Secret{a.stored.Header: value}
	err = request()
	still, ok := challenged(*a.stored, a.target, err)
	switch {
	case ok && still.narrow:
		a.narrow = true
		p.Credentials.renewer.remember(still, p.Credentials.Patience, &renewalError{text: err.Error(), cause: err})
	case ok:
		return p.Credentials.renewer.rejectFresh(still)
	}
	return err
}

// Renew does after a failed request what a delivery does, for who looks at an agent once: failure is what the agent answered to what
// Attach has put into e. renewed: e has another access token now, and the request is worth repeating, once. Errors are as of a delivery
// that is held or waits.
func (c *Credentials) Renew(ctx context.Context, g store.Agent, e *mcpcall.Endpoint, failure error) (renewed bool, err error) {
	k, err := c.of(ctx, g, 0)
	if err != nil {
		return false, err
	}
	t := tokenOfOrigin(k.tokens, e.URL)
	if t == nil {
		return false, nil // nothing that is stored went there
	}
	wants, ok := challenged(*t, *e, failure)
	if !ok {
		return false, nil
	}
	wants.insist = true
	value, err := c.another(ctx, wants)
	if err != nil {
		return false, err
	}
	e.Headers = map[string]secret.Secret{t.Header: value}
	return true, nil
}

// challenged tells whether the agent refused an access token that could be renewed: by 401, or by 403 because it wants one with another
// scope (RFC 6750 §3.1).
func challenged(t store.Token, sent mcpcall.Endpoint, err error) (e errand, ok bool) {
	var call *mcpcall.CallError
	if !t.OAuth() || !errors.As(err, &call) {
		return e, false
	}
	e = errand{token: t, url: sent.URL, refused: sent.Headers[t.Header], says: oauth.ParseChallenge(call.Challenge)}
	e.narrow = call.Status == http.StatusForbidden && e.says.Error == "insufficient_scope"
	return e, !e.refused.IsZero() && (call.Status == http.StatusUnauthorized || e.narrow)
}

// another gets an access token in the place of the one that the agent refused.
func (c *Credentials) another(ctx context.Context, e errand) (value secret.Secret, err error) {
	switch {
	case e.narrow && e.token.Scheme == store.SchemeAuthorizationCode:
		return value, retry.Fail(retry.AuthRequired, fmt.Sprintf("the agent wants more (scope %q) than the login allowed, which only another login can mend: run %s",
			excerpt(cmp.Or(e.says.Scope, "it does not say which"), 200), howToStore(e.token)))
	case !e.narrow:
		c.renewer.replaceRefused(e)
	}
	return c.renewer.bearer(ctx, e)
}

// wantsOAuth tells whether an agent refused a request and said where its OAuth metadata is (RFC 9728 §5.1), though no OAuth credential is
// stored that could be at fault.
func (a *attempt) wantsOAuth(call *mcpcall.CallError) bool {
	says := oauth.ParseChallenge(call.Challenge)
	return says.Bearer && says.Metadata != "" && !a.own && (a.stored == nil || !a.stored.OAuth())
}

// howToStore is the command that stores a token anew.
func howToStore(t store.Token) string {
	switch t.Scheme {
	case store.SchemeAuthorizationCode:
		return fmt.Sprintf("`worker token login %d:%s`", t.ChainID, t.ID)
	case store.SchemeClientCredentials:
		return fmt.Sprintf("`worker token set %d:%s%s --client-id …`", t.ChainID, t.ID, retry.OriginOption(t.URL()))
	}
	return fmt.Sprintf("`worker token set %d:%s%s`", t.ChainID, t.ID, retry.OriginOption(t.URL()))
}

// explain says what became of a renewal and what to do about it. What only an operator can mend holds the delivery, whatever else the
// error is called elsewhere; an authorization server that gives no usable answer now is asked again.
func explain(t store.Token, err error) error {
	var other *oauth.IssuerError
	var no *oauth.RefusedError
	var document *oauth.MetadataError
	var away *oauth.UnavailableError
	var blocked *netguard.BlockedError
	var refused *netguard.RefusedURLError
	hold := func(format string, args ...any) error {
		text := fmt.Sprintf("no access token for %s: ", t.Origin) + fmt.Sprintf(format, args...)
		return &renewalError{text: text, cause: retry.Fail(retry.AuthRequired, text)}
	}
	switch issuer := excerpt(t.Issuer, 300); {
	case errors.As(err, &other):
		return hold("its authorization server is %s now, and the credential is for %s, which is not told to anybody else. Look whether that is the agent's doing, then %s",
			named(other), issuer, howToStore(t))
	case errors.As(err, &blocked), errors.As(err, &refused):
		return hold("%s is not asked: %v; or store a credential for another one, %s", issuer, err, howToStore(t))
	case errors.As(err, &no):
		return hold("%s refuses: %s. %s", issuer, wordsOf(no), advice(t, no.Code))
	case errors.As(err, &document):
		return hold("%v. It is read again in a while; if the agent has another authorization server now, store a credential for that, %s", document, howToStore(t))
	case errors.As(err, &away):
		return &renewalError{text: fmt.Sprintf("no access token for %s from %s: %v", t.Origin, issuer, away), cause: away}
	}
	return err
}

// named are the issuers that an agent names, or that there is none.
func named(e *oauth.IssuerError) string {
	var names []string
	for _, n := range e.Named {
		names = append(names, excerpt(n, 300))
	}
	return cmp.Or(strings.Join(names, " or "), "not told")
}

// wordsOf is what an authorization server said.
func wordsOf(e *oauth.RefusedError) string {
	text := cmp.Or(excerpt(e.Code, 64), "no code")
	if e.Description != "" {
		text += fmt.Sprintf(" (%q)", excerpt(e.Description, 300))
	}
	if e.Status != 0 {
		text += fmt.Sprintf(", HTTP %d", e.Status)
	}
	return text
}

// advice is what to do about an error code of a token endpoint (RFC 6749 §4.1.2.1 and §5.2, RFC 8707 §2).
func advice(t store.Token, code string) string {
	again := howToStore(t)
	switch code {
	case "invalid_client":
		return "It does not know the client, or not by this secret or key: store the right one, " + again
	case "invalid_grant":
		return "What the login gave has expired, was revoked or was used elsewhere: log in again, " + again
	case "unauthorized_client", "unsupported_grant_type":
		return "It gives this client no tokens in this way: have whoever runs it allow that, then " + again
	case "invalid_scope":
		return "It does not give the scope that is asked for: name another with --scope, " + again
	case "invalid_target":
		return "It knows no such resource: name the right one with --resource, " + again
	case "access_denied":
		return "It denies the client access to this agent: have whoever runs it allow that, then " + again
	case "unsupported_token_type":
		return "Its tokens are of a type that Herald cannot send, which is Bearer: ask the agent's author for another way, then " + again
	}
	return "It will not say otherwise if it is asked the same again: see with whoever runs it what is wrong, then " + again
}
