package operator

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
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
)

// tokenSource is who gives an agent's tokens, and where they may go.
type tokenSource struct {
	Origin   string
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
	*Operator
	agent  store.Agent
	client OAuthClient
	origin string // of the request, "" when it names none
	path   string // of the same
	alone  bool   // nobody is asked about what the request says
	// lenient: that the agent cannot be asked what it calls itself is no error, when the request says where it is and
	// who gives its tokens.
	lenient bool

	content  *Content        // is to be closed
	resource *oauth.Resource // what the agent says; nil: it was not asked
}

func (o *Operator) newSourceFinder(g store.Agent, client OAuthClient, origin string) (*sourceFinder, error) {
	f := &sourceFinder{Operator: o, agent: g, client: client}
	var err error
	if origin != "" {
		if f.origin, err = agentauth.CredentialOrigin(origin); err != nil {
			return nil, misuse("--origin: %v", err)
		}
		f.path = agentauth.CredentialPath(origin)
	}
	if err := client.checkAsked(); err != nil {
		return nil, err
	}
	f.content, err = o.Backend.OpenContent()
	return f, err
}

// find looks only for what the command line does not say.
func (f *sourceFinder) find(ctx context.Context) (tokenSource, error) {
	s := tokenSource{Origin: f.origin, Path: f.path, Issuer: f.client.Issuer, Resource: f.client.Resource,
		Scope: f.client.Scope}
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
	found, err := f.findTargetWith(ctx, f.content, f.agent, "")
	switch {
	case err != nil && f.lenient && s.Origin != "" && s.Issuer != "": // it is stored all the same
		return err
	case err != nil:
		return fmt.Errorf("%w (with %s nobody has to ask the agent)", err,
			f.listUnsaid("--origin", "--issuer", "--resource"))
	case f.origin != "" && (f.origin != found.Origin || !agentauth.CoversPath(f.path, agentauth.CredentialPath(found.Endpoint.URL))):
		return misuse("%s is at %s now (%s), and not at %s", DescribeAgent(f.agent),
			text.Printable(found.Origin+found.Path), text.Printable(found.Words),
			text.Printable(f.origin+f.path))
	}
	if f.origin == "" {
		s.Path = found.Path
	}
	s.Origin, s.Words, s.Listed = found.Origin, found.Words, found.Endpoint.Listed
	if s.Issuer != "" && s.Resource != "" {
		return nil
	}
	return f.discover(ctx, s, found.Endpoint)
}

// discover asks the agent who gives its tokens.
func (f *sourceFinder) discover(ctx context.Context, s *tokenSource, e mcpcall.Endpoint) error {
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
		f.notify("warning: the agent's authorization server is %s, so its metadata says, and not %s: once the agent refuses a token, deliveries are held",
			listIssuers(r.Issuers), text.Printable(s.Issuer))
	case s.Issuer == "" && len(r.Issuers) > 1:
		return misuse("the agent names %d authorization servers, so say --issuer: %s", len(r.Issuers),
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
	defer f.disconnect(ctx, pool)
	asking, cancel := context.WithTimeout(ctx, f.Settings.CallTimeout)
	defer cancel()
	e.Headers = nil
	_, err = pool.Tools(asking, e, true)
	var call *mcpcall.CallError
	switch {
	case err == nil:
		f.notify("note: the agent lists its tools without a credential; who gives its tokens is taken from its metadata alone")
		return oauth.Challenge{}, nil
	case errors.As(err, &call) && (call.Status == http.StatusUnauthorized || call.Status == http.StatusForbidden):
		return oauth.ParseChallenge(call.Challenge), nil
	}
	return oauth.Challenge{}, fmt.Errorf("the agent cannot be asked who gives its tokens: %w; try again, or say %s",
		err, f.listUnsaid("--issuer", "--resource"))
}

// findServer reads the authorization server's metadata. That it gives no answer now is noted and no error.
func (f *sourceFinder) findServer(ctx context.Context, s *tokenSource) error {
	s.Server.Issuer = s.Issuer
	if f.alone && f.client.Issuer != "" {
		s.Away = errors.New("nobody was asked")
		return nil
	}
	server, err := f.askServer(ctx, s)
	var away *oauth.UnavailableError
	var other *oauth.IssuerError
	switch {
	case err == nil:
		s.Server = server
	case errors.As(err, &away) && !isForbidden(err):
		s.Away = err
	case errors.As(err, &other) && len(other.Named) == 1 && sameButSlash(other.Named[0], f.client.Issuer):
		return &spellingError{other.Named[0]}
	default:
		return fmt.Errorf("the authorization server %s: %w", text.Printable(text.Shorten(s.Issuer)), err)
	}
	return nil
}

// askServer asks the one that the agent names, else the one that the command line does: it may know better than the
// agent.
func (f *sourceFinder) askServer(ctx context.Context, s *tokenSource) (oauth.Server, error) {
	r := oauth.Resource{Issuers: []string{s.Issuer}, Legacy: s.Issuer == s.Origin}
	if f.resource != nil && slices.Contains(f.resource.Issuers, s.Issuer) {
		r = *f.resource
	}
	return f.content.OAuth.ServerOf(ctx, r, s.Issuer)
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
func (e *spellingError) Unwrap() error { return &MisuseError{e.Error()} }

// listUnsaid names those of the flags that the command line does not have.
func (f *sourceFinder) listUnsaid(names ...string) string {
	said := map[string]bool{"--origin": f.origin != "", "--issuer": f.client.Issuer != "",
		"--resource": f.client.Resource != ""}
	names = slices.DeleteFunc(names, func(n string) bool { return said[n] })
	if n := len(names) - 1; n > 0 {
		return strings.Join(names[:n], ", ") + " and " + names[n]
	}
	return strings.Join(names, "")
}

// warn says what somebody may not have meant.
func (f *sourceFinder) warn(s tokenSource) {
	f.warnListedHeaders(f.agent)
	f.warnPlainHTTP(s.Origin)
	if s.Mute != nil {
		f.notify("warning: %s; workers will ask it before they ask for a token, which --resource spares them",
			text.Printable(s.Mute.Error()))
	}
}
