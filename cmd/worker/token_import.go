package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
	"golang.org/x/sync/errgroup"
)

type tokenImportCmd struct {
	Chain    uint64 `required:"" help:"The chain of the agents." placeholder:"ID"`
	Registry string `help:"Their IdentityRegistry, when it is not the chain's usual one." placeholder:"0x…"`
	File     string `arg:"" optional:"" help:"CSV. Default: stdin." placeholder:"FILE"`
	Yes      bool   `help:"Store them. Without this it is only shown where each would go."`
	actorFlag
	JSON bool `name:"json" help:"As JSON."`
}

const (
	maxImport     = 256 << 20 // bytes of CSV
	maxImported   = 100_000   // rows
	importAtATime = 8         // agents that are looked up at once
)

// importedToken is one row of the file and what becomes of it.
type importedToken struct {
	Agent   string `json:"agent"`
	Line    int    `json:"line"`
	Origin  string `json:"origin,omitempty"`
	Path    string `json:"path,omitempty"`
	Header  string `json:"header,omitempty"`
	Where   string `json:"where,omitempty"`
	Problem string `json:"problem,omitempty"` // why it is not stored
	Stored  bool   `json:"stored"`

	agent store.Agent
	plain secret.Secret
}

type tokenImport struct {
	Rows     []*importedToken `json:"rows"`
	Good     int              `json:"good"`
	Stored   int              `json:"stored"`
	Released int              `json:"released"`
	Audit    int64            `json:"audit,omitempty"`
}

func (c *tokenImportCmd) Run(a *app) error {
	out := tokenImport{}
	var err error
	if out.Rows, err = c.read(a); err != nil {
		return err
	}
	keys, err := service.Keyset(a.cfg)
	if err != nil {
		return err
	}
	if err := c.look(a, out.Rows); err != nil {
		return err
	}
	for _, r := range out.Rows {
		if r.Problem == "" {
			out.Good++
		}
	}
	if !c.JSON { // before anything is written
		if err := out.list(a); err != nil {
			return err
		}
	}
	if c.Yes && out.Good > 0 {
		err = c.store(a, keys, &out)
	}
	return errors.Join(err, c.conclude(a, &out, err))
}

// read parses the whole file before anything is done. What is wrong with a row is the row's problem; no error holds anything of a token.
func (c *tokenImportCmd) read(a *app) ([]*importedToken, error) {
	from := a.in
	if c.File != "" {
		f, err := os.Open(c.File)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		from = f
	}
	r := csv.NewReader(bufio.NewReader(io.LimitReader(from, maxImport)))
	r.FieldsPerRecord, r.ReuseRecord = 2, true
	var rows []*importedToken
	first := map[string]int{}
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, &misuseError{fmt.Sprintf("the file is not CSV of agent_id,token: %v; nothing was done", err)}
		}
		line, _ := r.FieldPos(0)
		if len(rows) == 0 && fields[0] == "agent_id" && fields[1] == "token" {
			continue // COPY … CSV HEADER
		}
		if len(rows) == maxImported {
			return nil, &misuseError{fmt.Sprintf("the file has more than %d rows: split it", maxImported)}
		}
		row, err := c.row(a, strings.Clone(fields[0]), strings.Clone(fields[1]))
		if err != nil {
			return nil, err
		}
		row.Line = line
		if before, twice := first[row.agent.ID]; twice && row.Problem == "" {
			row.Problem = fmt.Sprintf("the agent is in line %d already", before)
		}
		first[row.agent.ID] = line
		rows = append(rows, row)
	}
	return rows, nil
}

func (c *tokenImportCmd) row(a *app, id, token string) (*importedToken, error) {
	row := &importedToken{Agent: fmt.Sprintf("%d:%s", c.Chain, short(printable(id))), plain: secret.New(token)}
	if n, ok := new(big.Int).SetString(id, 10); !ok || n.Sign() < 0 || n.BitLen() > 256 || strings.Trim(id, "0123456789") != "" {
		row.Problem = "its agent_id is no agent id"
		return row, nil
	}
	g, err := agentArg{Agent: fmt.Sprintf("%d:%s", c.Chain, id), Registry: c.Registry}.agent(a)
	if err != nil {
		return nil, err
	}
	row.agent = g
	if err := agentauth.CheckToken(token); err != nil {
		row.Problem = "its token " + err.Error()
	}
	return row, nil
}

// look finds where each agent is.
func (c *tokenImportCmd) look(a *app, rows []*importedToken) error {
	content, err := service.OpenContent(a.cfg, a.log)
	if err != nil {
		return err
	}
	defer content.Close()
	group, ctx := errgroup.WithContext(a.ctx)
	group.SetLimit(importAtATime)
	for _, r := range rows {
		if r.Problem != "" {
			continue
		}
		group.Go(func() error { return r.find(ctx, a, content) })
	}
	return group.Wait()
}

// find looks up one agent; only what would be the same for every agent is an error.
func (r *importedToken) find(ctx context.Context, a *app, content *service.Content) error {
	t, err := targetOf(ctx, a, content, r.agent, "")
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var misuse *misuseError
	if errors.As(err, &misuse) {
		return err
	}
	if err == nil {
		r.Header, err = t.header()
	}
	if err != nil {
		r.Problem = err.Error()
		return nil
	}
	_, r.Header = schemeOf(r.Header, false)
	r.Origin, r.Path, r.Where = t.Origin, t.Path, t.Words
	return nil
}

func (o *tokenImport) list(a *app) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LINE\tAGENT\tORIGIN\tPATH\tHEADER\tWHERE, OR WHY NOT")
	for _, r := range o.Rows {
		text := r.Where
		if r.Problem != "" {
			text = "not stored: " + r.Problem
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", r.Line, r.Agent, orDash(r.Origin), orDash(short(r.Path)), orDash(r.Header), orDash(text))
	}
	return w.Flush()
}

// store writes what was found, one agent after the other. It can be stopped and run again.
func (c *tokenImportCmd) store(a *app, keys *secret.Keyset, out *tokenImport) (err error) {
	st, err := a.dispatching()
	if err != nil {
		return err
	}
	defer st.close()
	row := store.Audit{Actor: c.actor(), Action: "token import", Matched: int64(out.Good),
		Filter: asJSON(map[string]any{"chain": c.Chain, "rows": len(out.Rows)})}
	out.Audit, err = audited(a.ctx, st, row, func() (int64, error) {
		for _, r := range out.Rows {
			if r.Problem != "" {
				continue
			}
			if err := out.put(a, st, keys, r); err != nil {
				return int64(out.Stored), err
			}
		}
		return int64(out.Stored), nil
	})
	return err
}

func (o *tokenImport) put(a *app, st *openStore, keys *secret.Keyset, r *importedToken) error {
	t := store.Token{Agent: r.agent, Origin: r.Origin, Path: r.Path}
	t.Scheme, t.Header = schemeOf(r.Header, false)
	var err error
	if t.Ciphertext, err = keys.Seal([]byte(r.plain.Reveal()), t.Binding()); err != nil {
		return err
	}
	released, tasks, err := st.SetToken(a.ctx, t)
	st.dispatch(a.ctx, tasks)
	o.Released += released
	if err == nil {
		r.Stored = true
		o.Stored++
	}
	return err
}

// conclude tells what came of it; failed: the writing did not come to its end.
func (c *tokenImportCmd) conclude(a *app, out *tokenImport, failed error) error {
	if c.JSON {
		if out.Rows == nil {
			out.Rows = []*importedToken{}
		}
		if err := writeJSON(a, out); err != nil {
			return err
		}
	} else if err := c.tell(a, out); err != nil {
		return err
	}
	if bad := len(out.Rows) - out.Good; bad > 0 && failed == nil {
		return &leftError{fmt.Sprintf("%d of %d tokens are left out, see above", bad, len(out.Rows))}
	}
	return nil
}

func (c *tokenImportCmd) tell(a *app, out *tokenImport) error {
	origins := map[string]bool{}
	for _, r := range out.Rows {
		if r.Problem == "" {
			origins[r.Origin] = true
		}
	}
	var err error
	switch {
	case !c.Yes && out.Good > 0:
		_, err = fmt.Fprintf(a.out, "%d tokens would be stored for %d origins. Look whether each may have its token. Nothing was changed: the same command with --yes stores them.\n",
			out.Good, len(origins))
	case out.Good == 0:
		_, err = fmt.Fprintln(a.out, "there is nothing to store")
	default:
		_, err = fmt.Fprintf(a.out, "%d of %d tokens are stored for %d origins; %d held deliveries were released (audit %d)\n",
			out.Stored, out.Good, len(origins), out.Released, out.Audit)
	}
	return err
}
