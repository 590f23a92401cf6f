package auth

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
)

// holdMoved returns an error that holds deliveries to an agent whose registration points to a location that its token
// may not be sent to.
func holdMoved(g erc8004.Agent, rawURL string, tokens []records.Token) error {
	origin, err := netguard.CredentialOriginOf(rawURL)
	if err != nil {
		return nil // the guard reports why the address is not called
	}
	const most = 3
	var before []string
	for _, t := range tokens[:min(len(tokens), most)] {
		before = append(before, text.Excerpt(t.URL(), 300))
	}
	now := records.Token{Agent: g, Origin: origin, Path: CredentialPath(rawURL), Scheme: tokens[0].Scheme}
	return outcome.Fail(outcome.AuthRequired, fmt.Sprintf("the agent moved: it is at %s now, and its token was "+
		"stored for %s, so nothing is sent. Check whether that is its doing, then %s", text.Excerpt(now.URL(), 300),
		strings.Join(before, ", "), howToStore(now)))
}

// howToStore returns the command that stores a token again.
func howToStore(t records.Token) string {
	switch t.Scheme {
	case records.SchemeAuthorizationCode:
		return fmt.Sprintf("`worker token login %s`", t.Agent)
	case records.SchemeClientCredentials:
		return fmt.Sprintf("`worker token set %s%s --client-id …`", t.Agent, outcome.OriginOption(t.URL()))
	}
	return fmt.Sprintf("`worker token set %s%s`", t.Agent, outcome.OriginOption(t.URL()))
}

// explainFailure describes a failed renewal and its remedy. If only an operator can resolve it, the error holds the
// delivery, regardless of the classification of its cause. If the authorization server gave no usable answer, the error
// leads to a retry.
func explainFailure(t records.Token, err error) error {
	var other *oauth.IssuerError
	var no *oauth.RefusedError
	var document *oauth.MetadataError
	var away *oauth.UnavailableError
	var blocked *netguard.BlockedError
	var refused *netguard.RefusedURLError
	hold := func(format string, args ...any) error {
		problem := fmt.Sprintf("no access token for %s: ", t.Origin) + fmt.Sprintf(format, args...)
		return &renewalError{text: problem, cause: outcome.Fail(outcome.AuthRequired, problem)}
	}
	switch issuer := text.Excerpt(t.Issuer, 300); {
	case errors.As(err, &other):
		return hold("its authorization server is %s now, and the credential is for %s, which Herald sends nowhere "+
			"else. Check whether the agent changed it on purpose, then %s", joinIssuers(other), issuer, howToStore(t))
	case errors.As(err, &blocked), errors.As(err, &refused):
		return hold("%s is not asked: %v; or store a credential for another one, %s", issuer, err, howToStore(t))
	case errors.As(err, &no):
		return hold("%s refuses: %s. %s", issuer, describeRefusal(no), adviseOn(t, no.Code))
	case errors.As(err, &document):
		return hold("%v. Once it is repaired, replay a delivery; if the agent has another authorization server now, "+
			"store a credential for that, %s", document, howToStore(t))
	case errors.As(err, &away):
		return &renewalError{text: fmt.Sprintf("no access token for %s from %s: %v", t.Origin, issuer, away),
			cause: away}
	}
	return err
}

// joinIssuers returns the issuers that an agent names, or a phrase if the list is empty.
func joinIssuers(e *oauth.IssuerError) string {
	var names []string
	for _, n := range e.Named {
		names = append(names, text.Excerpt(n, 300))
	}
	return cmp.Or(strings.Join(names, " or "), "not told")
}

// describeRefusal describes the refusal of an authorization server.
func describeRefusal(e *oauth.RefusedError) string {
	message := cmp.Or(text.Excerpt(e.Code, 64), "no code")
	if e.Description != "" {
		message += fmt.Sprintf(" (%q)", text.Excerpt(e.Description, 300))
	}
	if e.Status != 0 {
		message += fmt.Sprintf(", HTTP %d", e.Status)
	}
	return message
}

// adviseOn returns the remedy for an error code of a token endpoint (RFC 6749 §4.1.2.1 and §5.2, RFC 8707 §2).
func adviseOn(t records.Token, code string) string {
	again := howToStore(t)
	switch code {
	case "invalid_client":
		return "It does not know the client, or not by this secret or key: store the right one, " + again
	case "invalid_grant":
		return "The login's tokens have expired, were revoked or were used elsewhere: log in again, " + again
	case "unauthorized_client", "unsupported_grant_type":
		return "It gives this client no tokens in this way: ask its operator to allow that, then " + again
	case "invalid_scope":
		return "It does not give the scope that is asked for: name another with --scope, " + again
	case "invalid_target":
		return "It knows no such resource: name the right one with --resource, " + again
	case "access_denied":
		return "It denies the client access to this agent: ask its operator to allow that, then " + again
	case "unsupported_token_type":
		return "Its tokens are of a type that Herald cannot send, which is Bearer: ask the agent's author for " +
			"another way, then " + again
	}
	return "It will give the same answer again: ask its operator for the cause, then " +
		again
}
