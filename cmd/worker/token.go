package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
)

type tokenCmd struct {
	Set    tokenSetCmd    `cmd:"" help:"Store the token that an agent wants, or the OAuth client that gets tokens for it, from stdin, and release deliveries held because this token was missing."`
	Login  tokenLoginCmd  `cmd:"" help:"Log in for an agent that wants a person to: prints the address to open in a browser, and stores what comes of it."`
	List   tokenListCmd   `cmd:"" help:"List stored tokens: for whom, for which origin and path, until when. Never the tokens. All of them, without pages: an operator stored each."`
	Remove tokenRemoveCmd `cmd:"" help:"Forget the token of an agent for an origin; what came by OAuth is revoked at its authorization server, if that can."`
	Import tokenImportCmd `cmd:"" help:"Store the tokens of the old backend's table: CSV of agent_id,token, as COPY … TO STDOUT CSV writes it."`
}

type tokenSetCmd struct {
	agentArg
	Origin  string `help:"Where the token may go, with all below it: https://agent.example/mcp, or a whole origin, https://agent.example. Default: where the agent is now, after you were asked." placeholder:"URL"`
	Header  string `help:"The header that carries the bare token. Default: what the agent's registration names, else Authorization with Bearer." placeholder:"NAME"`
	File    string `help:"Instead of a token on stdin: a file that holds it, which every worker reads with every delivery." placeholder:"PATH"`
	Expires string `help:"When it is not sent any more: RFC 3339, or in how long, as in 90d or 12h." placeholder:"TIME"`
	clientFlags
	Unchecked bool `help:"With --client-id: store the client although its authorization server was not asked for a token."`
	actorFlag
	JSON bool `name:"json" help:"As JSON."`
}

// tokenChange is what set and remove answer.
type tokenChange struct {
	Agent      string     `json:"agent"`
	Registry   string     `json:"identityRegistry"`
	Origin     string     `json:"origin"`
	Path       string     `json:"path,omitempty"`
	Scheme     string     `json:"scheme,omitempty"`
	Header     string     `json:"header,omitempty"`
	Issuer     string     `json:"issuer,omitempty"` // this and the next three: of an OAuth credential
	ClientID   string     `json:"clientId,omitempty"`
	AuthMethod string     `json:"authMethod,omitempty"`
	Scope      string     `json:"scope,omitempty"` // that was asked for
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"`
	Released   int        `json:"released"`
	Audit      int64      `json:"audit"`

	Revocation *revocation `json:"revocation,omitempty"` // of an OAuth credential that was removed
}

// audit is what the trail keeps of a change; no secret is in it.
func (c tokenChange) audit(actor, action string) store.Audit {
	filter := map[string]any{"agent": c.Agent, "registry": c.Registry, "origin": c.Origin}
	if c.Path != "" {
		filter["path"] = short(c.Path)
	}
	if c.Scheme != "" {
		filter["scheme"], filter["header"] = c.Scheme, c.Header
	}
	if c.Issuer != "" {
		filter["issuer"], filter["clientId"] = c.Issuer, c.ClientID
	}
	if c.Scope != "" {
		filter["scope"] = short(c.Scope)
	}
	if c.ExpiresAt != nil {
		filter["expiresAt"] = c.ExpiresAt
	}
	return store.Audit{Actor: actor, Action: action, Filter: asJSON(filter), Matched: 1}
}

func (c *tokenSetCmd) Run(a *app) error {
	if err := c.checkClient(); err != nil {
		return err
	}
	if c.ClientID != "" {
		return c.setClient(a)
	}
	t, err := c.token(a)
	if err != nil {
		return err
	}
	if t, err = c.aim(a, t); err != nil {
		return err
	}
	keys, err := service.Keyset(a.cfg)
	if err != nil {
		return err
	}
	plain, err := c.secret(a)
	if err != nil {
		return err
	}
	if t.Ciphertext, err = keys.Seal([]byte(plain.Reveal()), t.Binding()); err != nil {
		return err
	}
	st, err := a.dispatching()
	if err != nil {
		return err
	}
	defer st.close()
	out := changeOfToken(t)
	if err := out.store(a, st, t, c.actor(), "token set"); err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(a, out)
	}
	_, err = fmt.Fprintln(a.out, out.words("the token", t))
	return err
}

// store writes the token and its audit row, and hands out what that releases.
func (c *tokenChange) store(a *app, st *openStore, t store.Token, actor, action string) (err error) {
	c.Audit, err = audited(a.ctx, st, c.audit(actor, action), func() (int64, error) {
		released, tasks, err := st.SetToken(a.ctx, t)
		st.dispatch(a.ctx, tasks)
		c.Released = released
		return int64(released), err
	})
	return err
}

// words tell what was stored.
func (c *tokenChange) words(what string, t store.Token) string {
	until := ""
	if t.ExpiresAt != nil {
		until = " until " + t.ExpiresAt.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s of %s is stored for %s, sent as %s%s; %d held deliveries were released (audit %d)",
		what, nameOf(t.Agent), placeWords(t), printable(howSent(t)), until, c.Released, c.Audit)
}

// placeWords tell where a token goes.
func placeWords(t store.Token) string {
	switch t.Path {
	case "":
		return printable(t.Origin) + " (the agent's own path)"
	case "/":
		return printable(t.Origin) + " (every path)"
	}
	return printable(short(t.URL()))
}

func changeOfToken(t store.Token) tokenChange {
	return tokenChange{Agent: fmt.Sprintf("%d:%s", t.ChainID, t.ID), Registry: t.Registry, Origin: t.Origin, Path: t.Path, Scheme: t.Scheme, Header: t.Header, Issuer: t.Issuer, ExpiresAt: t.ExpiresAt}
}

// howSent tells a scheme in words.
func howSent(t store.Token) string {
	how := "the header " + t.Header
	if t.Header == authorization {
		how = "Authorization: Bearer"
	}
	if t.Scheme == store.SchemeFile {
		how += ", read from a file"
	}
	return how + sourceWords(t)
}

const authorization = "Authorization"

// token reads the command line, without the secret and where it goes.
func (c *tokenSetCmd) token(a *app) (t store.Token, err error) {
	if t.Agent, err = c.agent(a); err != nil {
		return t, err
	}
	if c.Header != "" {
		if t.Header, err = mcpcall.CredentialHeader(c.Header); err != nil {
			return t, &misuseError{fmt.Sprintf("--header: %v", err)}
		}
	}
	if c.File != "" && !filepath.IsAbs(c.File) {
		return t, &misuseError{"--file is read by every worker, from wherever it runs: name it with its absolute path"}
	}
	t.ExpiresAt, err = parseExpiry(c.Expires, time.Now())
	return t, err
}

// parseExpiry reads RFC 3339, or how long from now; empty is never.
func parseExpiry(s string, now time.Time) (*time.Time, error) {
	if s == "" {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		text := s
		if days, ok := strings.CutSuffix(s, "d"); ok {
			if n, err := strconv.ParseUint(days, 10, 16); err == nil {
				text = fmt.Sprintf("%dh", 24*n)
			}
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil, &misuseError{fmt.Sprintf("--expires %q is neither a time, as in 2027-01-31T12:00:00Z, nor in how long, as in 90d or 12h", s)}
		}
		at = now.Add(d)
	}
	if !at.After(now) {
		return nil, &misuseError{fmt.Sprintf("--expires %s is over already: such a token is not sent", s)}
	}
	at = at.UTC().Truncate(time.Second)
	return &at, nil
}

// aim says where the token goes and how: as the command line has it, else as the agent is found, if somebody agrees.
func (c *tokenSetCmd) aim(a *app, t store.Token) (store.Token, error) {
	if c.Origin != "" {
		origin, err := agentauth.CredentialOrigin(c.Origin)
		if err != nil {
			return t, &misuseError{fmt.Sprintf("--origin: %v", err)}
		}
		t.Origin, t.Path = origin, agentauth.CredentialPath(c.Origin)
		warnOfHeaders(a, t.Agent)
	} else {
		found, err := findTarget(a, t.Agent, ", or say --origin")
		if err != nil {
			return t, err
		}
		t.Origin, t.Path = found.Origin, found.Path
		if t.Header == "" {
			if t.Header, err = found.header(); err != nil {
				return t, &misuseError{fmt.Sprintf("%v; name another with --header", err)}
			}
		}
		if err := c.ask(a, t, found); err != nil {
			return t, err
		}
	}
	t.Scheme, t.Header = schemeOf(t.Header, c.File != "")
	warnOfPlain(a, t.Origin)
	return t, nil
}

// warnOfHeaders says that the operator himself has something else sent.
func warnOfHeaders(a *app, g store.Agent) {
	if listed, err := a.listedServer(g); err == nil && listed != nil {
		if e, ok := listed.Endpoint(); ok && (e.URL == "" || len(e.Headers) > 0) {
			fmt.Fprintln(a.err, "warning: the servers file says how this agent is called and what it is sent, and that wins: the token is stored and not sent")
		}
	}
}

func warnOfPlain(a *app, origin string) {
	if u, err := url.Parse(origin); err == nil && u.Scheme == "http" {
		fmt.Fprintf(a.err, "warning: over plain http everybody on the way to %s reads the token\n", printable(origin))
	}
}

func schemeOf(header string, file bool) (scheme, canonical string) {
	switch {
	case header == "":
		header = authorization
	case header != authorization:
		scheme = store.SchemeHeader
	}
	if scheme == "" {
		scheme = store.SchemeBearer
	}
	if file {
		scheme = store.SchemeFile
	}
	return scheme, header
}

// ask shows where the agent is and has somebody agree that its token goes there.
func (c *tokenSetCmd) ask(a *app, t store.Token, found target) error {
	tty, err := a.tty()
	if err != nil {
		return &misuseError{fmt.Sprintf("%s is at %s (%s): nobody is here to be asked whether its token may go there, so say%s",
			nameOf(t.Agent), printable(t.URL()), printable(found.Words), originOption(t))}
	}
	defer func() { _ = tty.Close() }()
	_, sent := schemeOf(t.Header, false)
	fmt.Fprintf(tty, "%s is at %s (%s).\nSend its token there, and nowhere else, as %s? [y/N] ", nameOf(t.Agent), printable(t.URL()), printable(found.Words),
		printable(howSent(store.Token{Header: sent})))
	return yes(a.ctx, tty)
}

// originOption is the option that says where the token goes, as it can be typed.
func originOption(t store.Token) string {
	return cmp.Or(retry.OriginOption(t.URL()), " --origin with its address")
}

// yes is the answer of whoever sits there. It does not outlast ctx, though nothing may end the reading before the process does.
func yes(ctx context.Context, tty io.Reader) error {
	answered := make(chan bool, 1)
	go func() {
		answer, err := readLine(tty, 16)
		answered <- err == nil && (strings.EqualFold(answer, "y") || strings.EqualFold(answer, "yes"))
	}()
	select {
	case agreed := <-answered:
		if agreed {
			return nil
		}
	case <-ctx.Done():
	}
	return errors.New("nothing was stored")
}

// readLine reads up to a line feed, byte by byte, so that it takes nothing of what follows. At most limit bytes.
func readLine(r io.Reader, limit int) (string, error) {
	var line []byte
	for b := make([]byte, 1); len(line) < limit; {
		n, err := r.Read(b)
		if n > 0 && b[0] == '\n' {
			break
		}
		line = append(line, b[:n]...)
		if err != nil && len(line) == 0 {
			return "", err
		}
		if err != nil {
			break
		}
	}
	return strings.TrimSpace(string(line)), nil
}

// secret is what is sealed: the token from stdin, or the path of its file.
func (c *tokenSetCmd) secret(a *app) (s secret.Secret, err error) {
	if c.File != "" {
		if _, err := agentauth.ReadTokenFile(c.File); err != nil {
			fmt.Fprintf(a.err, "warning: here the file %v; deliveries are held (auth_required) wherever a worker finds it so\n", err)
		}
		return secret.New(c.File), nil
	}
	text, err := fromStdin(a, "the token", agentauth.MaxToken)
	if err != nil {
		return s, err
	}
	text = withoutLineEnd(text)
	if err := agentauth.CheckToken(text); err != nil {
		return s, &misuseError{fmt.Sprintf("the token on stdin %v", err)}
	}
	return secret.New(text), nil
}

// fromStdin is a secret that somebody gave there, up to limit bytes.
func fromStdin(a *app, what string, limit int64) (string, error) {
	if f, ok := a.in.(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			return "", &misuseError{fmt.Sprintf("give %s on stdin, from a file or a program, not by typing it: worker token … < FILE", what)}
		}
	}
	raw, err := io.ReadAll(io.LimitReader(a.in, limit+3)) // a line end more, and one byte that is too much
	if err != nil {
		return "", fmt.Errorf("read %s from stdin: %w", what, err)
	}
	return string(raw), nil
}

func withoutLineEnd(s string) string { return strings.TrimSuffix(strings.TrimSuffix(s, "\n"), "\r") }

type tokenListCmd struct {
	JSON bool `name:"json" help:"As JSON."`
}

// listedToken is a stored token without what is secret.
type listedToken struct {
	Agent     string     `json:"agent"`
	Registry  string     `json:"identityRegistry"`
	Origin    string     `json:"origin"`
	Path      string     `json:"path,omitempty"` // and below; none: the path that is registered, or that the servers file says
	Scheme    string     `json:"scheme"`
	Header    string     `json:"header"`
	Issuer    string     `json:"issuer,omitempty"` // that gives the tokens, of an OAuth credential
	Key       uint32     `json:"key"`              // that sealed it
	CreatedAt time.Time  `json:"createdAt"`
	UpdatedAt time.Time  `json:"updatedAt"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	State     string     `json:"state"` // valid soon expired sealed: with a key that HERALD_KEYSET lacks
}

func (c *tokenListCmd) Run(a *app) error {
	st, err := a.readStore()
	if err != nil {
		return err
	}
	defer st.close()
	list, missing := []listedToken{}, map[uint32]bool{}
	now := time.Now()
	keys, err := service.Keyset(a.cfg)
	if err != nil {
		keys = nil // who lists has no need of it
	}
	if err := eachToken(a, st.TokensAfter, func(t store.Token) error {
		l := listedOf(t, now)
		if keys != nil && !keys.Has(l.Key) {
			l.State, missing[l.Key] = "sealed", true
		}
		list = append(list, l)
		return nil
	}); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		fmt.Fprintf(a.err, "warning: what is in state sealed cannot be sent: key %d sealed it, which is not in HERALD_KEYSET; put the keyset back that has this key\n", id)
	}
	if c.JSON {
		return writeJSON(a, list)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AGENT\tORIGIN\tPATH\tSCHEME\tHEADER\tISSUER\tKEY\tSTORED\tEXPIRES\tSTATE")
	for _, t := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", t.Agent, orDash(t.Origin), orDash(short(t.Path)), orDash(t.Scheme), orDash(t.Header), orDash(short(t.Issuer)), t.Key, when(&t.UpdatedAt), when(t.ExpiresAt), t.State)
	}
	return w.Flush()
}

func listedOf(t store.Token, now time.Time) listedToken {
	key, _ := secret.KeyID(t.Ciphertext)
	return listedToken{Agent: fmt.Sprintf("%d:%s", t.ChainID, t.ID), Registry: t.Registry, Origin: t.Origin, Path: t.Path, Scheme: t.Scheme, Header: t.Header, Issuer: t.Issuer,
		Key: key, CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt, ExpiresAt: t.ExpiresAt, State: tokenState(t, now)}
}

func tokenState(t store.Token, now time.Time) string {
	switch {
	case t.ExpiresAt == nil || t.ExpiresAt.After(now.Add(service.TokenWarning)):
		return "valid"
	case t.ExpiresAt.After(now):
		return "soon"
	}
	return "expired"
}

// eachToken goes through all that are stored, page by page.
func eachToken(a *app, after func(context.Context, *store.Token) ([]store.Token, error), do func(store.Token) error) error {
	for last := (*store.Token)(nil); ; {
		page, err := after(a.ctx, last)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, t := range page {
			if err := do(t); err != nil {
				return err
			}
		}
		last = &page[len(page)-1]
	}
}

// showTokens tells where tokens of an agent may go, when there are some.
func showTokens(a *app, tokens []store.Token, now time.Time) error {
	for _, t := range tokens {
		until := ""
		if t.ExpiresAt != nil {
			until = ", until " + when(t.ExpiresAt)
			if tokenState(t, now) == "expired" {
				until = ", expired at " + when(t.ExpiresAt)
			}
		}
		if _, err := fmt.Fprintf(a.out, "token stored for %s, sent as %s%s\n", placeWords(t), printable(howSent(t)), until); err != nil {
			return err
		}
	}
	return nil
}

// withoutToken is what is wrong with a command line, without the token that somebody put there.
func withoutToken(args []string, err error) error {
	quoted := len(args) > 0 && args[0] == "token" && slices.ContainsFunc(args[1:], func(s string) bool {
		_, value, _ := strings.Cut(s, "=")
		return len(s) > 3 && strings.Contains(err.Error(), s) || len(value) > 3 && strings.Contains(err.Error(), value)
	})
	if !quoted && !secretFlag(err) {
		return err
	}
	return errors.New("the command line has something that is not understood; a token is given on stdin and never there, where the shell's history and ps keep it: " +
		"if it was there, have it replaced. `worker token --help` shows what is")
}

// secretFlag tells whether the command line has a flag that there is not, and that whoever wrote it took for the place of a secret.
func secretFlag(err error) bool {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag ")
	name, _, _ = strings.Cut(strings.ToLower(name), ",") // what it may have meant follows
	return ok && slices.ContainsFunc([]string{"secret", "token", "password", "key"}, func(word string) bool { return strings.Contains(name, word) })
}
