package operator

import (
	"context"
	"fmt"
	"strings"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
)

// confirmSource shows where the agent is, who gives its tokens and what they are asked for, unless the command line
// says both places, and has somebody agree.
func (f *sourceFinder) confirmSource(ctx context.Context, s tokenSource) error {
	if f.origin != "" && f.client.Issuer != "" {
		return nil
	}
	says := "as it says"
	switch {
	case f.client.Issuer != "":
		says = "as you say"
	case s.Guessed:
		says = "since it names none"
	}
	where := text.Printable(s.token().URL())
	if s.Words != "" {
		where += " (" + text.Printable(s.Words) + ")"
	}
	found := fmt.Sprintf("%s is at %s. Its authorization server is %s, %s, and is asked for tokens %s",
		DescribeAgent(f.agent), where, text.Printable(s.Issuer), says, describeAsked(s))
	if s.Page != "" {
		found += fmt.Sprintf(". People log in at another place, %s", text.Printable(s.Page))
	}
	return f.confirm(ctx,
		found+".\nHave that server's tokens sent to that agent, the client's credential to that server, and both nowhere else?",
		fmt.Sprintf("%s: nobody is here to be asked whether that is right, so say%s --issuer %s", found,
			originOption(s.token()),
			text.Printable(s.Issuer)))
}

// token is where the tokens go.
func (s tokenSource) token() store.Token { return store.Token{Origin: s.Origin, Path: s.Path} }

// describeAsked tells what tokens are asked for. Of an address in the servers file they tell the origin alone: its
// path may be a secret.
func describeAsked(s tokenSource) string {
	resource := s.Resource
	if s.Listed {
		resource, _ = agentauth.CredentialOrigin(resource)
	}
	words := "with scope " + listScopes(s.Scope)
	if s.Scope == "" {
		words = "without a scope"
	}
	if resource == "" {
		return words
	}
	return words + ", for resource " + text.Printable(text.Shorten(resource))
}

// listScopes names as many as a person reads, and how many there are beside.
func listScopes(scope string) string {
	const most = 300
	all := strings.Fields(scope)
	shown, length := 0, 0
	for ; shown < len(all) && length+len(all[shown]) <= most; shown++ {
		length += len(all[shown]) + 1
	}
	words := strings.Join(all[:shown], " ")
	if n := len(all) - shown; n > 0 {
		words = strings.TrimSpace(fmt.Sprintf("%s and %d more", words, n))
	}
	return text.Printable(words)
}

// checkPage refuses to have somebody log in at a place of which nothing shows that it belongs to whom the code is
// sent. Else an agent's metadata could name an honest server's page and a token endpoint of its own, and Herald would
// hand it the code of the honest server and the verifier that goes with it (mix-up, RFC 9700 §4.4). A server that
// says who it is with the answer needs no more (RFC 9207), and an operator may know better: named is --login-page. It
// returns the page's origin when it is another place.
func checkPage(s oauth.Server, named string) (other string, err error) {
	page, err := agentauth.CredentialOrigin(s.AuthorizationEndpoint)
	if err != nil {
		return "", fmt.Errorf("the authorization server's page to log in at: %w", err)
	}
	tokens, bad := agentauth.CredentialOrigin(s.TokenEndpoint)
	issuer, worse := agentauth.CredentialOrigin(s.Issuer)
	together := bad == nil && worse == nil && page == tokens && page == issuer
	switch {
	case named != "" && named != page:
		return "", misuse("--login-page is %s, and the authorization server %s has people log in at %s",
			text.Printable(named), text.Printable(text.Shorten(s.Issuer)), text.Printable(page))
	case together:
		return "", nil
	case named == "" && !s.IssParameter:
		return "", misuse("the authorization server %s has people log in at %s and has what comes of it sent to %s, and nothing shows that these belong together, so that it may be "+
			"somebody who is after a login at the first: if you know that they do, say --login-page %s",
			text.Printable(text.Shorten(s.Issuer)), text.Printable(page),
			text.Printable(text.Shorten(s.TokenEndpoint)), text.Printable(page))
	}
	return page, nil
}
