package tokens

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
)

// tokenSource is the authorization server of an agent, and where its tokens may be sent.
type tokenSource struct {
	Origin   netguard.CredentialOrigin
	Path     string // as in target
	Words    string // where the origin comes from; "" if it comes from the command line
	Listed   bool   // the origin comes from the servers file, whose paths may be secret
	Issuer   string
	Guessed  bool // the agent names no authorization server, so its own origin is assumed to be one
	Resource string
	Scope    string // scope to request
	Page     string // origin of the login page, if it differs from those of the issuer and the token endpoint
	Server   oauth.Server
	Mute     error // why the agent's resource identifier could not be read, so that Resource is empty
	Away     error // why the server cannot issue a token now; nil if Server is complete
}

// sourceFinder finds a tokenSource from the request and, where the request leaves it open, from the agent's metadata.
type sourceFinder struct {
	Tokens
	asked  Request
	agent  erc8004.Agent
	keys   *secret.Keyset
	origin netguard.CredentialOrigin // from the request; may be empty
	path   string                    // from the request; may be empty
	alone  bool                      // make no request about what the command line already says
	// lenient: if the command line names the origin and the issuer, it is no error that the agent cannot be asked for
	// its resource identifier.
	lenient bool

	content  *operator.Content // newSourceFinder opens it and its caller closes it
	resource *oauth.Resource   // the agent's metadata; nil if it was not read
}

func (o Tokens) newSourceFinder(g erc8004.Agent, asked Request) (*sourceFinder, error) {
	keys, err := o.Backend.Keyset()
	if err != nil {
		return nil, err
	}
	f := &sourceFinder{Tokens: o, asked: asked, agent: g, keys: keys}
	if asked.Origin != "" {
		if f.origin, err = netguard.CredentialOriginOf(asked.Origin); err != nil {
			return nil, operator.NewMisuse("--origin: %v", err)
		}
		f.path = auth.CredentialPath(asked.Origin)
	}
	if err := asked.checkAsked(); err != nil {
		return nil, err
	}
	f.content, err = o.Backend.OpenContent()
	return f, err
}

// findSource asks the agent only for values that the command line leaves open.
func (f *sourceFinder) findSource(ctx context.Context) (tokenSource, error) {
	s := tokenSource{Origin: f.origin, Path: f.path, Issuer: f.asked.Issuer, Resource: f.asked.Resource,
		Scope: f.asked.Scope}
	isGiven := s.Origin != "" && s.Issuer != ""
	if !isGiven || s.Resource == "" && !f.alone {
		err := f.askAgent(ctx, &s)
		var useless *oauth.MetadataError // the worker would get the same error
		switch {
		case err != nil && isGiven && f.lenient && ctx.Err() == nil && !errors.As(err, &useless):
			s.Mute = fmt.Errorf("the agent could not be asked for its resource name: %w", err)
		case err != nil:
			return s, err
		}
	}
	err := f.findServer(ctx, &s)
	return s, err
}

// askAgent resolves the agent and reads from its metadata the values that the command line leaves open.
func (f *sourceFinder) askAgent(ctx context.Context, s *tokenSource) error {
	found, err := f.findTarget(ctx, f.content, f.agent, "")
	switch {
	case err != nil && f.lenient && s.Origin != "" && s.Issuer != "": // it is stored nevertheless
		return err
	case err != nil:
		return fmt.Errorf("%w (with %s the agent is not asked)", err,
			f.listUnsaid("--origin", "--issuer", "--resource"))
	case f.origin != "" &&
		(f.origin != found.Origin || !auth.CoversPath(f.path, auth.CredentialPath(found.Endpoint.URL))):
		return operator.NewMisuse("%s is at %s now (%s), and not at %s", operator.DescribeAgent(f.agent),
			text.Printable(string(found.Origin)+found.Path), text.Printable(found.Words),
			text.Printable(string(f.origin)+f.path))
	}
	s.Path = cmp.Or(f.path, found.Path) // f.path is empty only without an origin
	s.Origin, s.Words, s.Listed = found.Origin, found.Words, found.Endpoint.Listed
	if s.Issuer != "" && s.Resource != "" {
		return nil
	}
	return f.discoverIssuer(ctx, s, found.Endpoint)
}

// discoverIssuer reads the agent's metadata to find its authorization server.
func (f *sourceFinder) discoverIssuer(ctx context.Context, s *tokenSource, e mcpcall.Endpoint) error {
	challenge, err := f.readChallenge(ctx, e)
	if err != nil {
		return err
	}
	r, err := f.content.OAuth.Resource(ctx, e.URL, challenge)
	if err != nil {
		return fmt.Errorf("the agent does not name its authorization server: %w; if you know it, use %s", err,
			f.listUnsaid("--issuer", "--resource"))
	}
	named, ok := r.FindIssuer(s.Issuer)
	switch {
	case s.Issuer == "" && len(r.Issuers) > 1:
		return operator.NewMisuse("the agent names %d authorization servers, so say --issuer: %s", len(r.Issuers),
			listIssuers(r.Issuers))
	case s.Issuer == "":
		s.Issuer, s.Guessed = r.Issuers[0], r.Legacy
	case ok:
		s.Issuer = named
	case !r.Legacy:
		f.Notify("warning: the agent's authorization server is %s, so its metadata says, and not %s: "+
			"once the agent refuses a token, deliveries are held", listIssuers(r.Issuers), text.Printable(s.Issuer))
	}
	f.resource = &r
	s.Resource, s.Scope = cmp.Or(s.Resource, r.URL), cmp.Or(s.Scope, r.ScopeFor(challenge))
	return nil
}

// typeIssuer returns an issuer for an operator to copy into a command. The issuer comes from a stranger, and may
// contain "$(…)".
func typeIssuer(issuer string) string {
	return cmp.Or(outcome.ShellURL(issuer), "(an address that cannot be typed safely)")
}

// listIssuers joins the first few issuers.
func listIssuers(issuers []string) string {
	var names []string
	for _, i := range issuers {
		names = append(names, typeIssuer(i))
	}
	return text.JoinFirst(names, 4, ", ")
}

// readChallenge returns the agent's challenge to a request without a credential.
func (f *sourceFinder) readChallenge(ctx context.Context, e mcpcall.Endpoint) (oauth.Challenge, error) {
	pool, err := mcpcall.NewPool(mcpcall.Config{Guard: f.content.Guard, CallTimeout: f.Settings.CallTimeout,
		Logger: f.Logger})
	if err != nil {
		return oauth.Challenge{}, err
	}
	defer f.Disconnect(ctx, pool)
	asking, cancel := context.WithTimeout(ctx, f.Settings.CallTimeout)
	defer cancel()
	e.Headers = nil
	_, err = pool.Tools(asking, e, true)
	var call *mcpcall.CallError
	switch {
	case err == nil:
		f.Notify("note: the agent lists its tools without a credential; " +
			"its authorization server is taken from its metadata alone")
		return oauth.Challenge{}, nil
	case errors.As(err, &call) && (call.Status == http.StatusUnauthorized || call.Status == http.StatusForbidden):
		return oauth.ParseChallenge(call.Challenge), nil
	}
	return oauth.Challenge{},
		fmt.Errorf("the agent cannot be asked for its authorization server: %w; try again, or use %s",
			err, f.listUnsaid("--issuer", "--resource"))
}

// findServer reads the metadata of the chosen authorization server. The server on the command line takes precedence
// over those that the agent names. If the server does not answer now, s.Away holds the error and findServer returns
// nil.
func (f *sourceFinder) findServer(ctx context.Context, s *tokenSource) error {
	s.Server.Issuer = s.Issuer
	if f.alone && f.asked.Issuer != "" {
		s.Away = errors.New("the agent was not asked")
		return nil
	}
	r := oauth.Resource{Issuers: []string{s.Issuer}, Legacy: s.Issuer == string(s.Origin)}
	if f.resource != nil && slices.Contains(f.resource.Issuers, s.Issuer) {
		r = *f.resource
	}
	server, err := f.content.OAuth.ServerOf(ctx, r, s.Issuer)
	switch {
	case err == nil:
		s.Server = server
	case oauth.MayAnswerLater(err):
		s.Away = err
	default:
		return fmt.Errorf("the authorization server %s: %w", text.Printable(text.Shorten(s.Issuer)), err)
	}
	return nil
}

// listUnsaid joins those of the options that the command line does not set.
func (f *sourceFinder) listUnsaid(names ...string) string {
	given := map[string]bool{"--origin": f.origin != "", "--issuer": f.asked.Issuer != "",
		"--resource": f.asked.Resource != ""}
	names = slices.DeleteFunc(names, func(n string) bool { return given[n] })
	if n := len(names) - 1; n > 0 {
		return strings.Join(names[:n], ", ") + " and " + names[n]
	}
	return strings.Join(names, "")
}

// warnSource warns about problems that the person may not be aware of.
func (f *sourceFinder) warnSource(s tokenSource) {
	f.warnListedHeaders(f.agent)
	f.warnPlainHTTP(s.Origin)
	if s.Mute != nil {
		f.Notify("warning: %s; workers will ask it before they ask for a token, which --resource spares them",
			text.Printable(s.Mute.Error()))
	}
}

// confirmSource shows the agent's endpoint, its authorization server and what tokens are requested for, and asks for
// consent. It does not ask if the command line names both the origin and the issuer.
func (f *sourceFinder) confirmSource(ctx context.Context, s tokenSource) error {
	if f.origin != "" && f.asked.Issuer != "" {
		return nil
	}
	says := "as it says"
	switch {
	case f.asked.Issuer != "":
		says = "as you say"
	case s.Guessed:
		says = "since it names none"
	}
	where := text.Printable(s.token().URL())
	if s.Words != "" {
		where += " (" + text.Printable(s.Words) + ")"
	}
	found := fmt.Sprintf("%s is at %s. Its authorization server is %s, %s, and is asked for tokens %s",
		operator.DescribeAgent(f.agent), where, text.Printable(s.Issuer), says, describeAsked(s))
	if s.Page != "" {
		found += fmt.Sprintf(". People log in at another place, %s", text.Printable(s.Page))
	}
	return f.confirm(ctx,
		found+".\nHave that server's tokens sent to that agent, "+
			"the client's credential to that server, and both nowhere else?",
		fmt.Sprintf("%s: there is no terminal to ask on whether that is right, so say%s --issuer %s", found,
			originOption(s.token()), typeIssuer(s.Issuer)))
}

// token returns a token without a secret, for the origin and path of s.
func (s tokenSource) token() records.Token { return records.Token{Origin: s.Origin, Path: s.Path} }

// describeAsked describes the scope and resource of the tokens. For an address in the servers file it shows only the
// origin, because the path may be a secret.
func describeAsked(s tokenSource) string {
	resource := s.Resource
	if s.Listed {
		origin, _ := netguard.CredentialOriginOf(resource)
		resource = string(origin)
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

// listScopes joins scopes up to a readable length and counts the others.
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

// checkPage returns an error if nothing shows that the login page and the token endpoint belong together. Otherwise an
// agent's metadata could name the login page of an honest server and a token endpoint of its own. Herald would then
// send the honest server's code and its verifier to that endpoint (mix-up attack, RFC 9700 §4.4). A server that
// identifies itself in the redirect is safe (RFC 9207), and an operator can confirm the page: named is --login-page.
// checkPage returns the page's origin if it differs from the server's.
func checkPage(s oauth.Server, named string) (other string, err error) {
	page, err := netguard.CredentialOriginOf(s.AuthorizationEndpoint)
	if err != nil {
		return "", fmt.Errorf("the authorization server's page to log in at: %w", err)
	}
	tokens, bad := netguard.CredentialOriginOf(s.TokenEndpoint)
	issuer, worse := netguard.CredentialOriginOf(s.Issuer)
	together := bad == nil && worse == nil && page == tokens && page == issuer
	switch {
	case named != "" && named != string(page):
		return "", operator.NewMisuse("--login-page is %s, and the authorization server %s has people log in at %s",
			text.Printable(named), text.Printable(text.Shorten(s.Issuer)), text.Printable(page))
	case together:
		return "", nil
	case named == "" && !s.IssParameter:
		return "", operator.NewMisuse("the authorization server %s has people log in at %s and has what comes of it "+
			"sent to %s, and nothing shows that these belong together, so that it may be somebody who is after "+
			"a login at the first: if you know that they do, say --login-page %s",
			text.Printable(text.Shorten(s.Issuer)), text.Printable(page),
			text.Printable(text.Shorten(s.TokenEndpoint)), text.Printable(page))
	}
	return string(page), nil
}
