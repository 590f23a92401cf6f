package tokens

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
)

// SetRequest describes a token, or an OAuth client that obtains tokens.
type SetRequest struct {
	Request
	Header    string  `help:"The header that carries the bare token. Default: the header in the agent's registration, else Authorization with Bearer." placeholder:"NAME"`
	File      string  `help:"Instead of a token on stdin: a file that holds it, which every worker reads with every delivery." placeholder:"PATH"`
	Expires   *string `help:"Time after which it is no longer sent: RFC 3339, or a duration such as 90d or 12h." placeholder:"TIME"`
	Unchecked bool    `help:"With --client-id: store the client although its authorization server was not asked for a token."`
}

// Set stores a token for an agent or, with a client id, an OAuth client that obtains tokens for it. It releases
// deliveries that are held because the token was missing.
func (o Tokens) Set(ctx context.Context, r SetRequest) (c Change, err error) {
	if err := r.checkClient(); err != nil {
		return c, err
	}
	t, err := o.parseToken(r)
	if err != nil {
		return c, err
	}
	if r.ClientID != "" {
		return o.setClient(ctx, r, t)
	}
	if t, err = o.aimToken(ctx, r, t); err != nil {
		return c, err
	}
	keys, err := o.Backend.Keyset()
	if err != nil {
		return c, err
	}
	plain, err := o.readToken(r)
	if err != nil {
		return c, err
	}
	if t.Ciphertext, err = keys.Seal([]byte(plain.Reveal()), t.Binding()); err != nil {
		return c, err
	}
	return o.store(ctx, t, describeChange(t), r.Actor, "the token")
}

// parseToken validates the request and returns a token without its secret and its origin.
func (o Tokens) parseToken(r SetRequest) (t records.Token, err error) {
	if t.Agent, err = o.ParseRef(r.AgentRef); err != nil {
		return t, err
	}
	if r.Header != "" {
		if t.Header, err = mcpcall.CredentialHeader(r.Header); err != nil {
			return t, operator.NewMisuse("--header: %v", err)
		}
	}
	if r.File != "" && !filepath.IsAbs(r.File) {
		return t,
			operator.NewMisuse("--file is read by every worker, from wherever it runs: name it with its absolute path")
	}
	if r.Expires != nil {
		t.ExpiresAt, err = parseExpiry(*r.Expires, time.Now())
	}
	return t, err
}

// parseExpiry parses RFC 3339, or a duration from now. It refuses an empty s, as of a variable that a script forgot to
// set: that token would never expire.
func parseExpiry(s string, now time.Time) (*time.Time, error) {
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		length := s
		if days, ok := strings.CutSuffix(s, "d"); ok {
			if n, err := strconv.ParseUint(days, 10, 16); err == nil {
				length = fmt.Sprintf("%dh", 24*n)
			}
		}
		d, err := time.ParseDuration(length)
		if err != nil {
			return nil, operator.NewMisuse(
				"--expires %q is neither a time, as in 2027-01-31T12:00:00Z, nor in how long, as in 90d or 12h", s)
		}
		at = now.Add(d)
	}
	at = at.UTC().Truncate(time.Second)
	switch {
	case !at.After(now):
		return nil, operator.NewMisuse("--expires %s is over already: such a token is not sent", s)
	case at.Year() > 9999: // in another time zone it may be the year 9999
		return nil, operator.NewMisuse("--expires %s is beyond the year 9999 (UTC)", s)
	}
	return &at, nil
}

// aimToken sets the origin, path and header of the token: from the request or, after consent, from the agent's
// endpoint.
func (o Tokens) aimToken(ctx context.Context, r SetRequest, t records.Token) (records.Token, error) {
	if r.Origin != "" {
		origin, err := netguard.CredentialOriginOf(r.Origin)
		if err != nil {
			return t, operator.NewMisuse("--origin: %v", err)
		}
		t.Origin, t.Path = origin, auth.CredentialPath(r.Origin)
		o.warnListedHeaders(t.Agent)
	} else {
		content, err := o.Backend.OpenContent()
		if err != nil {
			return t, err
		}
		defer content.Close()
		found, err := o.findTarget(ctx, content, t.Agent, ", or say --origin")
		if err != nil {
			return t, err
		}
		t.Origin, t.Path = found.Origin, found.Path
		if t.Header == "" {
			if t.Header, err = found.tokenHeader(); err != nil {
				return t, operator.NewMisuse("%v; name another with --header", err)
			}
		}
		if err := o.confirmTarget(ctx, t, found); err != nil {
			return t, err
		}
	}
	t.Scheme, t.Header = chooseScheme(t.Header, r.File != "")
	o.warnPlainHTTP(t.Origin)
	return t, nil
}

// warnListedHeaders warns if the servers file overrides the credential of the agent, so that the token has no effect.
func (o Tokens) warnListedHeaders(g erc8004.Agent) {
	if listed, err := o.ListedServer(g); err == nil && listed != nil {
		if e, ok := listed.Endpoint(); ok && (e.URL == "" || len(e.Headers) > 0) {
			o.Notify("warning: the servers file has an endpoint and a credential for this agent, " +
				"which take precedence: the token is stored and not sent")
		}
	}
}

func (o Tokens) warnPlainHTTP(origin netguard.CredentialOrigin) {
	if u, err := url.Parse(string(origin)); err == nil && u.Scheme == "http" {
		o.Notify("warning: over plain http everybody on the way to %s reads the token", text.Printable(origin))
	}
}

// chooseScheme returns the scheme of a token in a header. An empty header is Authorization.
func chooseScheme(header string, file bool) (scheme, canonical string) {
	header = cmp.Or(header, operator.Authorization)
	switch {
	case file:
		return records.SchemeFile, header
	case header == operator.Authorization:
		return records.SchemeBearer, header
	}
	return records.SchemeHeader, header
}

// confirmTarget shows the agent's endpoint and asks for consent to send the token there.
func (o Tokens) confirmTarget(ctx context.Context, t records.Token, found target) error {
	_, header := chooseScheme(t.Header, false)
	place := fmt.Sprintf("%s is at %s (%s)", operator.DescribeAgent(t.Agent), text.Printable(t.URL()),
		text.Printable(found.Words))
	return o.confirm(ctx,
		fmt.Sprintf("%s.\nSend its token there, and nowhere else, as %s?",
			place, operator.Token{Header: header}.Sent()),
		fmt.Sprintf("%s: there is no terminal to ask on whether its token may go there, so say%s",
			place, originOption(t)))
}

// confirm asks for consent. The parameter noPerson is the error's text if no person can answer.
func (o Tokens) confirm(ctx context.Context, question, noPerson string) error {
	agreed, err := o.Person.Confirm(ctx, question)
	switch {
	case errors.Is(err, operator.ErrNoPerson):
		return &operator.MisuseError{Text: noPerson}
	case err == nil && !agreed:
		return errors.New("nothing was stored")
	}
	return err
}

// originOption returns the --origin option for the token as it can be typed.
func originOption(t records.Token) string {
	return cmp.Or(outcome.OriginOption(t.URL()), " --origin with its address")
}

// readToken returns the secret to seal: the token, or the path of its file.
func (o Tokens) readToken(r SetRequest) (s secret.Secret, err error) {
	if r.File != "" {
		if _, err := auth.ReadTokenFile(r.File); err != nil {
			o.Notify("warning: here the file %v; deliveries are held (auth_required) wherever a worker finds it so",
				err)
		}
		return secret.New(r.File), nil
	}
	read, err := r.ReadSecret("the token", auth.MaxToken)
	if err != nil {
		return s, err
	}
	read = withoutLineEnd(read)
	if err := auth.CheckToken(read); err != nil {
		return s, operator.NewMisuse("the token on stdin %v", err)
	}
	return secret.New(read), nil
}

func withoutLineEnd(s string) string { return strings.TrimSuffix(strings.TrimSuffix(s, "\n"), "\r") }
