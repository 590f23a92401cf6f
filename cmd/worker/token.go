package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
)

type tokenCmd struct {
	Set    tokenSetCmd    `cmd:"" help:"Store the token that an agent wants, from stdin, and release what is held for want of it."`
	List   tokenListCmd   `cmd:"" help:"List stored tokens: for whom, for which origin, until when. Never the tokens."`
	Remove tokenRemoveCmd `cmd:"" help:"Forget the token of an agent for an origin."`
	Import tokenImportCmd `cmd:"" help:"Store the tokens of the old backend's table: CSV of agent_id,token, as COPY … TO STDOUT CSV writes it."`
}

type tokenSetCmd struct {
	agentArg
	Origin  string `help:"Where the token may go, as in https://agent.example. Default: where the agent is now, after you were asked." placeholder:"URL"`
	Header  string `help:"The header that carries the bare token. Default: what the agent's registration names, else Authorization with Bearer." placeholder:"NAME"`
	File    string `help:"Instead of a token on stdin: a file that holds it, which every worker reads with every delivery." placeholder:"PATH"`
	Expires string `help:"When it is not sent any more: RFC 3339, or in how long, as in 90d or 12h." placeholder:"TIME"`
	actorFlag
	JSON bool `name:"json" help:"As JSON."`
}

// tokenChange is what set and remove answer.
type tokenChange struct {
	Agent     string     `json:"agent"`
	Registry  string     `json:"identityRegistry"`
	Origin    string     `json:"origin"`
	Scheme    string     `json:"scheme,omitempty"`
	Header    string     `json:"header,omitempty"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	Released  int        `json:"released"`
	Audit     int64      `json:"audit"`
}

// audit is what the trail keeps of a change; no secret is in it.
func (c tokenChange) audit(actor, action string) store.Audit {
	filter := map[string]any{"agent": c.Agent, "registry": c.Registry, "origin": c.Origin}
	if c.Scheme != "" {
		filter["scheme"], filter["header"] = c.Scheme, c.Header
	}
	if c.ExpiresAt != nil {
		filter["expiresAt"] = c.ExpiresAt
	}
	return store.Audit{Actor: actor, Action: action, Filter: asJSON(filter), Matched: 1}
}

func (c *tokenSetCmd) Run(a *app) error {
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
	out.Audit, err = audited(a.ctx, st, out.audit(c.actor(), "token set"), func() (int64, error) {
		released, tasks, err := st.SetToken(a.ctx, t)
		st.dispatch(a.ctx, tasks)
		out.Released = released
		return int64(released), err
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(a, out)
	}
	until := ""
	if t.ExpiresAt != nil {
		until = " until " + t.ExpiresAt.UTC().Format(time.RFC3339)
	}
	_, err = fmt.Fprintf(a.out, "the token of %s is stored for %s, sent as %s%s; %d held deliveries were released (audit %d)\n",
		nameOf(t.Agent), printable(t.Origin), printable(howSent(t)), until, out.Released, out.Audit)
	return err
}

func changeOfToken(t store.Token) tokenChange {
	return tokenChange{Agent: fmt.Sprintf("%d:%s", t.ChainID, t.ID), Registry: t.Registry, Origin: t.Origin, Scheme: t.Scheme, Header: t.Header, ExpiresAt: t.ExpiresAt}
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
	return how
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
		origin, err := delivery.CredentialOrigin(c.Origin)
		if err != nil {
			return t, &misuseError{fmt.Sprintf("--origin: %v", err)}
		}
		t.Origin = origin
		if listed, err := a.listedServer(t.Agent); err == nil && listed != nil {
			if e, ok := listed.Endpoint(); ok && (e.URL == "" || len(e.Headers) > 0) {
				fmt.Fprintln(a.err, "warning: the servers file says how this agent is called and what it is sent, and that wins: the token is stored and not sent")
			}
		}
	} else {
		found, err := findTarget(a, t.Agent)
		if err != nil {
			return t, err
		}
		t.Origin = found.Origin
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
	if u, err := url.Parse(t.Origin); err == nil && u.Scheme == "http" {
		fmt.Fprintf(a.err, "warning: over plain http everybody on the way to %s reads the token\n", printable(t.Origin))
	}
	return t, nil
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
		return &misuseError{fmt.Sprintf("%s is at %s (%s): nobody is here to be asked whether its token may go there, so say --origin %s",
			nameOf(t.Agent), printable(t.Origin), printable(found.Words), printable(t.Origin))}
	}
	defer func() { _ = tty.Close() }()
	_, sent := schemeOf(t.Header, false)
	fmt.Fprintf(tty, "%s is at %s (%s).\nSend its token there, and nowhere else, as %s? [y/N] ", nameOf(t.Agent), printable(t.Origin), printable(found.Words),
		printable(howSent(store.Token{Header: sent})))
	answer, err := readLine(tty, 16)
	if err != nil || !strings.EqualFold(answer, "y") && !strings.EqualFold(answer, "yes") {
		return errors.New("nothing was stored")
	}
	return nil
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
		if _, err := delivery.ReadTokenFile(c.File); err != nil {
			fmt.Fprintf(a.err, "warning: here the file %v; deliveries are held (auth_required) wherever a worker finds it so\n", err)
		}
		return secret.New(c.File), nil
	}
	if f, ok := a.in.(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			return s, &misuseError{"give the token on stdin, from a file or a program, not by typing it: worker token set … < token.txt"}
		}
	}
	raw, err := io.ReadAll(io.LimitReader(a.in, delivery.MaxToken+3))
	if err != nil {
		return s, fmt.Errorf("read the token from stdin: %w", err)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	if err := delivery.CheckToken(text); err != nil {
		return s, &misuseError{fmt.Sprintf("the token on stdin %v", err)}
	}
	return secret.New(text), nil
}

type tokenListCmd struct {
	JSON bool `name:"json" help:"As JSON."`
}

// listedToken is a stored token without what is secret.
type listedToken struct {
	Agent     string     `json:"agent"`
	Registry  string     `json:"identityRegistry"`
	Origin    string     `json:"origin"`
	Scheme    string     `json:"scheme"`
	Header    string     `json:"header"`
	Key       uint32     `json:"key"` // that sealed it
	CreatedAt time.Time  `json:"createdAt"`
	UpdatedAt time.Time  `json:"updatedAt"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	State     string     `json:"state"` // valid soon expired
}

func (c *tokenListCmd) Run(a *app) error {
	st, err := a.store()
	if err != nil {
		return err
	}
	defer st.close()
	list := []listedToken{}
	now := time.Now()
	if err := eachToken(a, st, func(t store.Token) error {
		key, _ := secret.KeyID(t.Ciphertext)
		list = append(list, listedToken{Agent: fmt.Sprintf("%d:%s", t.ChainID, t.ID), Registry: t.Registry, Origin: t.Origin, Scheme: t.Scheme, Header: t.Header,
			Key: key, CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt, ExpiresAt: t.ExpiresAt, State: tokenState(t, now)})
		return nil
	}); err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(a, list)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AGENT\tORIGIN\tSCHEME\tHEADER\tKEY\tSTORED\tEXPIRES\tSTATE")
	for _, t := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", t.Agent, orDash(t.Origin), orDash(t.Scheme), orDash(t.Header), t.Key, when(&t.UpdatedAt), when(t.ExpiresAt), t.State)
	}
	return w.Flush()
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

// eachToken goes through all that are stored.
func eachToken(a *app, st *openStore, do func(store.Token) error) error {
	for last := (*store.Token)(nil); ; {
		page, err := st.TokensAfter(a.ctx, last)
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

type tokenRemoveCmd struct {
	agentArg
	Origin string `required:"" help:"The origin it was stored for, as token list tells." placeholder:"URL"`
	actorFlag
	JSON bool `name:"json" help:"As JSON."`
}

func (c *tokenRemoveCmd) Run(a *app) error {
	g, err := c.agent(a)
	if err != nil {
		return err
	}
	origin, err := delivery.CredentialOrigin(c.Origin)
	if err != nil {
		return &misuseError{fmt.Sprintf("--origin: %v", err)}
	}
	st, err := a.dispatching()
	if err != nil {
		return err
	}
	defer st.close()
	out := changeOfToken(store.Token{Agent: g, Origin: origin})
	out.Audit, err = audited(a.ctx, st, out.audit(c.actor(), "token remove"), func() (int64, error) {
		released, tasks, err := st.RemoveToken(a.ctx, g, origin)
		st.dispatch(a.ctx, tasks)
		out.Released = released
		return 1, err
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("no token of %s is stored for %s: `worker token list`", nameOf(g), printable(origin))
	case err != nil:
		return err
	case c.JSON:
		return writeJSON(a, out)
	}
	_, err = fmt.Fprintf(a.out, "the token of %s for %s is removed; %d held deliveries were released (audit %d)\n", nameOf(g), printable(origin), out.Released, out.Audit)
	return err
}

// showTokens tells where tokens of an agent may go, when there are some.
func showTokens(a *app, st *openStore, g store.Agent) error {
	tokens, _, err := st.AgentTokens(a.ctx, g)
	if err != nil {
		return err
	}
	now := time.Now()
	for _, t := range tokens {
		until := ""
		if t.ExpiresAt != nil {
			until = ", until " + when(t.ExpiresAt)
			if tokenState(t, now) == "expired" {
				until = ", expired at " + when(t.ExpiresAt)
			}
		}
		if _, err := fmt.Fprintf(a.out, "token stored for %s, sent as %s%s\n", printable(t.Origin), printable(howSent(t)), until); err != nil {
			return err
		}
	}
	return nil
}

// withoutToken is what is wrong with a command line, without the token that somebody put there.
func withoutToken(args []string, err error) error {
	if len(args) == 0 || args[0] != "token" || !slices.ContainsFunc(args[1:], func(s string) bool {
		_, value, _ := strings.Cut(s, "=")
		return len(s) > 3 && strings.Contains(err.Error(), s) || len(value) > 3 && strings.Contains(err.Error(), value)
	}) {
		return err
	}
	return errors.New("the command line has something that is not understood; a token is given on stdin and never there, where the shell's history and ps keep it: " +
		"if it was there, have it replaced. `worker token --help` shows what is")
}
