package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
)

// clientFlags are an OAuth client, and what somebody knows of the server that gives it tokens.
type clientFlags struct {
	ClientID   string `name:"client-id" help:"The id that the agent's authorization server knows Herald by." placeholder:"ID"`
	AuthMethod string `help:"How the client proves that to it: client_secret_basic, client_secret_post or private_key_jwt, with the secret or the private key (PEM) on stdin; or none. Default of set: what fits stdin and the server; of login: none." placeholder:"METHOD"`
	KeyID      string `name:"key-id" help:"The private key's id there (kid)." placeholder:"ID"`
	Algorithm  string `help:"What the private key signs with, as in ES256. Default: the first that fits it." placeholder:"ALG"`
	Issuer     string `help:"The authorization server. Default: the one that the agent names, after you were asked." placeholder:"URL"`
	Scope      string `help:"What the tokens are asked for, and never more. Default: what the agent says it wants now." placeholder:"SCOPES"`
	Resource   string `help:"What the tokens are asked for as resource (RFC 8707). Default: what the agent calls itself." placeholder:"URI"`
}

// checkMethod is no enum of the command line's parser: that would tell what was given, which may be the secret.
func (c clientFlags) checkMethod() error {
	known := []string{oauth.MethodNone, oauth.MethodBasic, oauth.MethodPost, oauth.MethodKey}
	if c.AuthMethod != "" && !slices.Contains(known, c.AuthMethod) {
		return &misuseError{"--auth-method is none of " + strings.Join(known, ", ")}
	}
	return nil
}

// checkAsked looks at what somebody else would refuse later.
func (c clientFlags) checkAsked() error {
	probe := oauth.Credential{Grant: oauth.GrantRefreshToken, ClientID: "any", Method: oauth.MethodNone, Resource: c.Resource}
	if err := probe.Check(); err != nil {
		return &misuseError{fmt.Sprintf("--resource is no absolute http or https URL of the agent: %v", err)}
	}
	if probe.Scope = c.Scope; probe.Check() != nil {
		return &misuseError{"--scope is no list of scopes with single spaces between, each once"}
	}
	return nil
}

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

// sourceFinder finds it: as the command line has it, else as the agent says.
type sourceFinder struct {
	*app
	agent  store.Agent
	flags  clientFlags
	origin string // of the command line, "" when it names none
	path   string // of the same
	alone  bool   // nobody is asked about what the command line says
	// lenient: that the agent cannot be asked what it calls itself is no error, when the command line says where it is and who gives its tokens.
	lenient bool

	content  *service.Content
	client   *oauth.Client
	resource *oauth.Resource // what the agent says; nil: it was not asked
}

func newSourceFinder(a *app, g store.Agent, flags clientFlags, origin string) (*sourceFinder, error) {
	f := &sourceFinder{app: a, agent: g, flags: flags}
	var err error
	if origin != "" {
		if f.origin, err = agentauth.CredentialOrigin(origin); err != nil {
			return nil, &misuseError{fmt.Sprintf("--origin: %v", err)}
		}
		f.path = agentauth.CredentialPath(origin)
	}
	if err := flags.checkAsked(); err != nil {
		return nil, err
	}
	if flags.Issuer != "" {
		if u, err := url.Parse(flags.Issuer); err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return nil, &misuseError{"--issuer is no https URL without user, query and fragment: take it as the authorization server's metadata spells it"}
		}
	}
	if f.content, err = service.OpenContent(a.cfg, a.log); err != nil {
		return nil, err
	}
	if f.client, err = service.OAuth(f.content.Guard); err != nil {
		f.content.Close()
		return nil, err
	}
	return f, nil
}

func (f *sourceFinder) close() { f.content.Close() }

// find looks only for what the command line does not say.
func (f *sourceFinder) find() (tokenSource, error) {
	s := tokenSource{Origin: f.origin, Path: f.path, Issuer: f.flags.Issuer, Resource: f.flags.Resource, Scope: f.flags.Scope}
	told := s.Origin != "" && s.Issuer != ""
	if !told || s.Resource == "" && !f.alone {
		err := f.ask(&s)
		var useless *oauth.MetadataError // will be so for the worker, too
		var slash *spellingError
		switch {
		case err != nil && told && f.lenient && f.ctx.Err() == nil && !errors.As(err, &useless) && !errors.As(err, &slash):
			s.Mute = fmt.Errorf("the agent could not be asked what it calls itself: %w", err)
		case err != nil:
			return s, err
		}
	}
	err := f.look(&s)
	return s, err
}

// ask looks the agent up and has it say what the command line does not.
func (f *sourceFinder) ask(s *tokenSource) error {
	found, err := targetOf(f.ctx, f.app, f.content, f.agent, "")
	switch {
	case err != nil && f.lenient && s.Origin != "" && s.Issuer != "": // it is stored all the same
		return err
	case err != nil:
		return fmt.Errorf("%w (with %s nobody has to ask the agent)", err, f.unsaid("--origin", "--issuer", "--resource"))
	case f.origin != "" && (f.origin != found.Origin || !agentauth.CoversPath(f.path, agentauth.CredentialPath(found.Endpoint.URL))):
		return &misuseError{fmt.Sprintf("%s is at %s now (%s), and not at %s", nameOf(f.agent), printable(found.Origin+found.Path), printable(found.Words),
			printable(f.origin+f.path))}
	}
	if f.origin == "" {
		s.Path = found.Path
	}
	s.Origin, s.Words, s.Listed = found.Origin, found.Words, found.Endpoint.Listed
	if s.Issuer != "" && s.Resource != "" {
		return nil
	}
	return f.discover(s, found.Endpoint)
}

// discover asks the agent who gives its tokens.
func (f *sourceFinder) discover(s *tokenSource, e mcpcall.Endpoint) error {
	challenge, err := f.challenge(e)
	if err != nil {
		return err
	}
	r, err := f.client.Resource(f.ctx, e.URL, challenge)
	if err != nil {
		return fmt.Errorf("the agent does not say who gives its tokens: %w; if you know it, say %s", err, f.unsaid("--issuer", "--resource"))
	}
	if i := slices.IndexFunc(r.Issuers, func(i string) bool { return sameButSlash(i, s.Issuer) }); i >= 0 && !slices.Contains(r.Issuers, s.Issuer) {
		return &spellingError{r.Issuers[i]}
	}
	switch {
	case s.Issuer != "" && !r.Legacy && !slices.Contains(r.Issuers, s.Issuer):
		fmt.Fprintf(f.err, "warning: the agent's authorization server is %s, so its metadata says, and not %s: once the agent refuses a token, deliveries are held\n",
			listedIssuers(r.Issuers), printable(s.Issuer))
	case s.Issuer == "" && len(r.Issuers) > 1:
		return &misuseError{fmt.Sprintf("the agent names %d authorization servers, so say --issuer: %s", len(r.Issuers), listedIssuers(r.Issuers))}
	case s.Issuer == "":
		s.Issuer, s.Guessed = r.Issuers[0], r.Legacy
	}
	f.resource = &r
	s.Resource, s.Scope = cmp.Or(s.Resource, r.URL), cmp.Or(s.Scope, r.ScopeFor(challenge))
	return nil
}

// listedIssuers are a stranger's words: a few of them, shortened.
func listedIssuers(issuers []string) string {
	const most = 4
	var names []string
	for _, i := range issuers[:min(len(issuers), most)] {
		names = append(names, printable(short(i)))
	}
	if n := len(issuers) - most; n > 0 {
		names = append(names, fmt.Sprintf("%d more", n))
	}
	return strings.Join(names, ", ")
}

// challenge is what the agent answers to somebody without a credential.
func (f *sourceFinder) challenge(e mcpcall.Endpoint) (oauth.Challenge, error) {
	pool, err := mcpcall.NewPool(mcpcall.Config{Guard: f.content.Guard, CallTimeout: f.cfg.CallTimeout, Logger: f.log})
	if err != nil {
		return oauth.Challenge{}, err
	}
	defer f.disconnect(pool)
	ctx, cancel := context.WithTimeout(f.ctx, f.cfg.CallTimeout)
	defer cancel()
	e.Headers = nil
	_, err = pool.Tools(ctx, e, true)
	var call *mcpcall.CallError
	switch {
	case err == nil:
		fmt.Fprintln(f.err, "note: the agent lists its tools without a credential; who gives its tokens is taken from its metadata alone")
		return oauth.Challenge{}, nil
	case errors.As(err, &call) && (call.Status == http.StatusUnauthorized || call.Status == http.StatusForbidden):
		return oauth.ParseChallenge(call.Challenge), nil
	}
	return oauth.Challenge{}, fmt.Errorf("the agent cannot be asked who gives its tokens: %w; try again, or say %s", err, f.unsaid("--issuer", "--resource"))
}

// look reads the authorization server's metadata. That it gives no answer now is noted and no error.
func (f *sourceFinder) look(s *tokenSource) error {
	s.Server.Issuer = s.Issuer
	if f.alone && f.flags.Issuer != "" {
		s.Away = errors.New("nobody was asked")
		return nil
	}
	server, err := f.server(s)
	var away *oauth.UnavailableError
	var other *oauth.IssuerError
	switch {
	case err == nil:
		s.Server = server
	case errors.As(err, &away) && !forbidden(err):
		s.Away = err
	case errors.As(err, &other) && len(other.Named) == 1 && sameButSlash(other.Named[0], f.flags.Issuer):
		return &spellingError{other.Named[0]}
	default:
		return fmt.Errorf("the authorization server %s: %w", printable(short(s.Issuer)), err)
	}
	return nil
}

// server is the one that the agent names, else the one that the command line does: it may know better than the agent.
func (f *sourceFinder) server(s *tokenSource) (oauth.Server, error) {
	r := oauth.Resource{Issuers: []string{s.Issuer}, Legacy: s.Issuer == s.Origin}
	if f.resource != nil && slices.Contains(f.resource.Issuers, s.Issuer) {
		r = *f.resource
	}
	return f.client.ServerOf(f.ctx, r, s.Issuer)
}

// sameButSlash: an issuer counts by the letter, and the slash at its end is what people get wrong.
func sameButSlash(spelled, said string) bool {
	return said != "" && spelled != said && strings.TrimRight(spelled, "/") == strings.TrimRight(said, "/")
}

// spellingError: --issuer is not as the issuer spells itself.
type spellingError struct{ issuer string }

func (e *spellingError) Error() string {
	return "an issuer counts by the letter: say --issuer as it spells it, --issuer " + printable(short(e.issuer))
}

// Unwrap makes it a misuse.
func (e *spellingError) Unwrap() error { return &misuseError{e.Error()} }

// unsaid are those of the flags that the command line does not have.
func (f *sourceFinder) unsaid(names ...string) string {
	said := map[string]bool{"--origin": f.origin != "", "--issuer": f.flags.Issuer != "", "--resource": f.flags.Resource != ""}
	names = slices.DeleteFunc(names, func(n string) bool { return said[n] })
	if n := len(names) - 1; n > 0 {
		return strings.Join(names[:n], ", ") + " and " + names[n]
	}
	return strings.Join(names, "")
}

// forbidden: the guard dials no such address, now or later.
func forbidden(err error) bool {
	var blocked *netguard.BlockedError
	var refused *netguard.RefusedURLError
	return errors.As(err, &blocked) || errors.As(err, &refused)
}

// warn says what somebody may not have meant.
func (f *sourceFinder) warn(s tokenSource) {
	warnOfHeaders(f.app, f.agent)
	warnOfPlain(f.app, s.Origin)
	if s.Mute != nil {
		fmt.Fprintf(f.err, "warning: %s; workers will ask it before they ask for a token, which --resource spares them\n", printable(s.Mute.Error()))
	}
}
