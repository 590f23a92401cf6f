package tokens

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
)

// tokenSource is who gives an agent's tokens, and where they may go.
type tokenSource struct {
	Origin   netguard.CredentialOrigin
	Path     string // as of target
	Words    string // why there; "" when the command line says so and nobody looked
	Listed   bool   // the servers file says so, whose paths may be secret
	Issuer   string
	Guessed  bool // the agent names no authorization server, so that it is taken to be one itself
	Resource string
	Scope    string // that is asked for
	Page     string // of a login, when it is not where the issuer is and not where the code is sent
	Server   oauth.Server
	Mute     error // why the agent did not say what it calls itself, so that Resource is empty
	Away     error // why the server cannot be asked for a token now; nil: Server is known
}

// sourceFinder finds it: as the request has it, else as the agent says.
type sourceFinder struct {
	Tokens
	asked  Request
	agent  store.Agent
	keys   *secret.Keyset
	origin netguard.CredentialOrigin // of the request, "" when it names none
	path   string                    // of the same
	alone  bool                      // nobody is asked about what the request says
	// lenient: that the agent cannot be asked what it calls itself is no error, when the request says where it is and
	// who gives its tokens.
	lenient bool

	content  *operator.Content // is to be closed
	resource *oauth.Resource   // what the agent says; nil: it was not asked
}

func (o Tokens) newSourceFinder(g store.Agent, asked Request) (*sourceFinder, error) {
	keys, err := o.Backend.Keyset()
	if err != nil {
		return nil, err
	}
	f := &sourceFinder{Tokens: o, asked: asked, agent: g, keys: keys}
	if asked.Origin != "" {
		if f.origin, err = netguard.CredentialOriginOf(asked.Origin); err != nil {
			return nil, operator.NewMisuse("--origin: %v", err)
		}
		f.path = agentauth.CredentialPath(asked.Origin)
	}
	if err := asked.checkAsked(); err != nil {
		return nil, err
	}
	f.content, err = o.Backend.OpenContent()
	return f, err
}

// findSource looks only for what the command line does not say.
func (f *sourceFinder) findSource(ctx context.Context) (tokenSource, error) {
	s := tokenSource{Origin: f.origin, Path: f.path, Issuer: f.asked.Issuer, Resource: f.asked.Resource,
		Scope: f.asked.Scope}
	told := s.Origin != "" && s.Issuer != ""
	if !told || s.Resource == "" && !f.alone {
		err := f.askAgent(ctx, &s)
		var useless *oauth.MetadataError // will be so for the worker, too
		var slash *spellingError
		switch {
		case err != nil && told && f.lenient && ctx.Err() == nil && !errors.As(err, &useless) && !errors.As(err, &slash):
			s.Mute = fmt.Errorf("the agent could not be asked what it calls itself: %w", err)
		case err != nil:
			return s, err
		}
	}
	err := f.findServer(ctx, &s)
	return s, err
}

// askAgent looks the agent up and has it say what the command line does not.
func (f *sourceFinder) askAgent(ctx context.Context, s *tokenSource) error {
	found, err := f.findTarget(ctx, f.content, f.agent, "")
	switch {
	case err != nil && f.lenient && s.Origin != "" && s.Issuer != "": // it is stored all the same
		return err
	case err != nil:
		return fmt.Errorf("%w (with %s nobody has to ask the agent)", err,
			f.listUnsaid("--origin", "--issuer", "--resource"))
	case f.origin != "" && (f.origin != found.Origin || !agentauth.CoversPath(f.path, agentauth.CredentialPath(found.Endpoint.URL))):
		return operator.NewMisuse("%s is at %s now (%s), and not at %s", operator.DescribeAgent(f.agent),
			text.Printable(string(found.Origin)+found.Path), text.Printable(found.Words),
			text.Printable(string(f.origin)+f.path))
	}
	s.Path = cmp.Or(f.path, found.Path) // f.path is "" without an origin only
	s.Origin, s.Words, s.Listed = found.Origin, found.Words, found.Endpoint.Listed
	if s.Issuer != "" && s.Resource != "" {
		return nil
	}
	return f.discoverIssuer(ctx, s, found.Endpoint)
}

// discoverIssuer asks the agent who gives its tokens.
func (f *sourceFinder) discoverIssuer(ctx context.Context, s *tokenSource, e mcpcall.Endpoint) error {
	challenge, err := f.readChallenge(ctx, e)
	if err != nil {
		return err
	}
	r, err := f.content.OAuth.Resource(ctx, e.URL, challenge)
	if err != nil {
		return fmt.Errorf("the agent does not say who gives its tokens: %w; if you know it, say %s", err,
			f.listUnsaid("--issuer", "--resource"))
	}
	if i := slices.IndexFunc(r.Issuers, func(i string) bool { return sameButSlash(i, s.Issuer) }); i >= 0 &&
		!slices.Contains(r.Issuers, s.Issuer) {
		return &spellingError{r.Issuers[i]}
	}
	switch {
	case s.Issuer != "" && !r.Legacy && !slices.Contains(r.Issuers, s.Issuer):
		f.Notify("warning: the agent's authorization server is %s, so its metadata says, and not %s: once the agent refuses a token, deliveries are held",
			listIssuers(r.Issuers), text.Printable(s.Issuer))
	case s.Issuer == "" && len(r.Issuers) > 1:
		return operator.NewMisuse("the agent names %d authorization servers, so say --issuer: %s", len(r.Issuers),
			listIssuers(r.Issuers))
	case s.Issuer == "":
		s.Issuer, s.Guessed = r.Issuers[0], r.Legacy
	}
	f.resource = &r
	s.Resource, s.Scope = cmp.Or(s.Resource, r.URL), cmp.Or(s.Scope, r.ScopeFor(challenge))
	return nil
}

// listIssuers is of a stranger's words: a few of them, shortened.
func listIssuers(issuers []string) string {
	const most = 4
	var names []string
	for _, i := range issuers[:min(len(issuers), most)] {
		names = append(names, text.Printable(text.Shorten(i)))
	}
	if n := len(issuers) - most; n > 0 {
		names = append(names, fmt.Sprintf("%d more", n))
	}
	return strings.Join(names, ", ")
}

// readChallenge is what the agent answers to somebody without a credential.
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
		f.Notify("note: the agent lists its tools without a credential; who gives its tokens is taken from its metadata alone")
		return oauth.Challenge{}, nil
	case errors.As(err, &call) && (call.Status == http.StatusUnauthorized || call.Status == http.StatusForbidden):
		return oauth.ParseChallenge(call.Challenge), nil
	}
	return oauth.Challenge{}, fmt.Errorf("the agent cannot be asked who gives its tokens: %w; try again, or say %s",
		err, f.listUnsaid("--issuer", "--resource"))
}

// findServer reads the metadata of the authorization server that the agent names, else of the one that the command line
// does: it may know better than the agent. That it gives no answer now is noted and no error.
func (f *sourceFinder) findServer(ctx context.Context, s *tokenSource) error {
	s.Server.Issuer = s.Issuer
	if f.alone && f.asked.Issuer != "" {
		s.Away = errors.New("nobody was asked")
		return nil
	}
	r := oauth.Resource{Issuers: []string{s.Issuer}, Legacy: s.Issuer == string(s.Origin)}
	if f.resource != nil && slices.Contains(f.resource.Issuers, s.Issuer) {
		r = *f.resource
	}
	server, err := f.content.OAuth.ServerOf(ctx, r, s.Issuer)
	var other *oauth.IssuerError
	switch {
	case err == nil:
		s.Server = server
	case oauth.MayAnswerLater(err):
		s.Away = err
	case errors.As(err, &other) && len(other.Named) == 1 && sameButSlash(other.Named[0], f.asked.Issuer):
		return &spellingError{other.Named[0]}
	default:
		return fmt.Errorf("the authorization server %s: %w", text.Printable(text.Shorten(s.Issuer)), err)
	}
	return nil
}

// sameButSlash: an issuer counts by the letter, and the slash at its end is what people get wrong.
func sameButSlash(spelled, said string) bool {
	return said != "" && spelled != said && strings.TrimRight(spelled, "/") == strings.TrimRight(said, "/")
}

// spellingError: --issuer is not as the issuer spells itself.
type spellingError struct{ issuer string }

func (e *spellingError) Error() string {
	return "an issuer counts by the letter: say --issuer as it spells it, --issuer " +
		text.Printable(text.Shorten(e.issuer))
}

// Unwrap makes it a misuse.
func (e *spellingError) Unwrap() error { return &operator.MisuseError{Text: e.Error()} }

// listUnsaid names those of the flags that the command line does not have.
func (f *sourceFinder) listUnsaid(names ...string) string {
	said := map[string]bool{"--origin": f.origin != "", "--issuer": f.asked.Issuer != "",
		"--resource": f.asked.Resource != ""}
	names = slices.DeleteFunc(names, func(n string) bool { return said[n] })
	if n := len(names) - 1; n > 0 {
		return strings.Join(names[:n], ", ") + " and " + names[n]
	}
	return strings.Join(names, "")
}

// warnSource says what somebody may not have meant.
func (f *sourceFinder) warnSource(s tokenSource) {
	f.warnListedHeaders(f.agent)
	f.warnPlainHTTP(s.Origin)
	if s.Mute != nil {
		f.Notify("warning: %s; workers will ask it before they ask for a token, which --resource spares them",
			text.Printable(s.Mute.Error()))
	}
}

// confirmSource shows where the agent is, who gives its tokens and what they are asked for, unless the command line
// says both places, and has somebody agree.
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
		found+".\nHave that server's tokens sent to that agent, the client's credential to that server, and both nowhere else?",
		fmt.Sprintf("%s: nobody is here to be asked whether that is right, so say%s --issuer %s", found,
			originOption(s.token()), text.Printable(s.Issuer)))
}

// token is where the tokens go.
func (s tokenSource) token() store.Token { return store.Token{Origin: s.Origin, Path: s.Path} }

// describeAsked tells what tokens are asked for. Of an address in the servers file they tell the origin alone: its
// path may be a secret.
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
		return "", operator.NewMisuse("the authorization server %s has people log in at %s and has what comes of it sent to %s, and nothing shows that these belong together, so that it may be "+
			"somebody who is after a login at the first: if you know that they do, say --login-page %s",
			text.Printable(text.Shorten(s.Issuer)), text.Printable(page),
			text.Printable(text.Shorten(s.TokenEndpoint)), text.Printable(page))
	}
	return string(page), nil
}
