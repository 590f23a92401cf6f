package tokens

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

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/records"
	"golang.org/x/sync/errgroup"
)

const (
	maxImport     = 256 << 20 // bytes of CSV
	maxImported   = 100_000   // rows
	importAtATime = 8         // agents that are resolved concurrently
)

// ImportedRow is one row of the file and its result.
type ImportedRow struct {
	Agent   string                    `json:"agent"`
	Line    int                       `json:"line"`
	Origin  netguard.CredentialOrigin `json:"origin,omitempty"`
	Path    string                    `json:"path,omitempty"`
	Header  string                    `json:"header,omitempty"`
	Where   string                    `json:"where,omitempty"`
	Problem string                    `json:"problem,omitempty"` // why it is not stored
	Stored  bool                      `json:"stored"`

	agent erc8004.Agent
	plain secret.Secret
}

// ImportRequest selects a file of tokens, or the table of the old backend.
type ImportRequest struct {
	Chain    uint64 `required:"" help:"The chain of the agents." placeholder:"ID"`
	Registry string `help:"Their IdentityRegistry, when it is not the chain's usual one." placeholder:"0x…"`
	From     string `help:"Read the table itself instead: the name of the environment variable that holds its database's URL, as in OLD_DATABASE_URL, or DATABASE_URL where both have one." placeholder:"VARIABLE"`
	Schema   string `help:"With --from: the table's schema. Default: ${default}." default:"public" placeholder:"NAME"`
	File     string `arg:"" optional:"" help:"CSV. Default: stdin." placeholder:"FILE"`

	Stdin   io.Reader `kong:"-"`
	Environ []string  `kong:"-"` // as os.Environ returns it
}

// Import is a file of tokens and the result of each row.
type Import struct {
	Rows     []*ImportedRow `json:"rows"`
	Good     int            `json:"good"`
	Stored   int            `json:"stored"`
	Released int            `json:"released"`
	Audit    int64          `json:"audit,omitempty"`

	Origins int `json:"-"` // of the rows that can be stored
	ask     ImportRequest
	keys    *secret.Keyset
	first   map[string]int // agent → line of its first row
}

// ReadImport reads tokens and finds out where each would be sent. It stores nothing. A line in the table of the old
// backend is the position in the order of agent ids.
func (o Tokens) ReadImport(ctx context.Context, r ImportRequest) (*Import, error) {
	out := &Import{ask: r, Rows: []*ImportedRow{}, first: map[string]int{}}
	read := out.readFile
	if r.From != "" {
		read = out.readTable
	}
	err := read(ctx, o)
	if err == nil {
		out.keys, err = o.Backend.Keyset()
	}
	if err == nil {
		err = out.findTargets(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	origins := map[netguard.CredentialOrigin]bool{}
	for _, r := range out.Rows {
		if r.Problem == "" {
			out.Good++
			origins[r.Origin] = true
		}
	}
	out.Origins = len(origins)
	return out, nil
}

// End returns the error with which the command ends: a *LeftError if some rows cannot be stored.
func (i *Import) End() error {
	if bad := len(i.Rows) - i.Good; bad > 0 {
		return &operator.LeftError{Text: fmt.Sprintf("%d of %s %s left out, see above", bad,
			text.Count(len(i.Rows), "token", "tokens"), text.Plural(bad, "is", "are"))}
	}
	return nil
}

// readFile parses the whole CSV of agent_id,token before anything else is done. A fault of one row is recorded in that
// row. No error contains any part of a token.
func (i *Import) readFile(ctx context.Context, o Tokens) error {
	from := i.ask.Stdin
	if i.ask.File != "" {
		f, err := os.Open(i.ask.File)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		from = f
	}
	r := csv.NewReader(bufio.NewReader(io.LimitReader(from, maxImport)))
	r.FieldsPerRecord, r.ReuseRecord = 2, true
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("read the tokens: %w; nothing was done", context.Cause(ctx))
		}
		if err != nil {
			return operator.NewMisuse("the file is not CSV of agent_id,token: %v; nothing was done", err)
		}
		line, _ := r.FieldPos(0)
		if len(i.Rows) == 0 && fields[0] == "agent_id" && fields[1] == "token" {
			continue // the header of COPY … CSV HEADER
		}
		if err := i.addRow(o, line, strings.Clone(fields[0]), strings.Clone(fields[1])); err != nil {
			return err
		}
	}
}

func (i *Import) addRow(o Tokens, line int, agentID, token string) error {
	if len(i.Rows) == maxImported {
		return operator.NewMisuse("there are more than %d rows: split the file", maxImported)
	}
	row, err := i.parseRow(o, agentID, token)
	if err != nil {
		return err
	}
	row.Line = line
	if before, twice := i.first[row.agent.ID]; twice && row.Problem == "" {
		row.Problem = fmt.Sprintf("the agent is in line %d already", before)
	}
	i.first[row.agent.ID] = line
	i.Rows = append(i.Rows, row)
	return nil
}

func (i *Import) parseRow(o Tokens, id, token string) (*ImportedRow, error) {
	row := &ImportedRow{Agent: erc8004.FormatAgent(i.ask.Chain, text.Shorten(text.Printable(id))),
		plain: secret.New(token)}
	if n, ok := new(big.Int).SetString(id, 10); !ok || n.BitLen() > 256 || strings.Trim(id, "0123456789") != "" {
		row.Problem = "its agent_id is no agent id"
		return row, nil
	}
	g, err := o.ParseRef(operator.AgentRef{Agent: erc8004.FormatAgent(i.ask.Chain, id), Registry: i.ask.Registry})
	if err != nil {
		return nil, err
	}
	row.agent = g
	if err := auth.CheckToken(token); err != nil {
		row.Problem = "its token " + err.Error()
	}
	return row, nil
}

// findTargets resolves every valid row's agent concurrently.
func (i *Import) findTargets(ctx context.Context, o Tokens) error {
	content, err := o.Backend.OpenContent()
	if err != nil {
		return err
	}
	defer content.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(importAtATime)
	for _, r := range i.Rows {
		if r.Problem != "" {
			continue
		}
		group.Go(func() error { return r.findTarget(ctx, o, content) })
	}
	return group.Wait()
}

// findTarget resolves the row's agent. It returns only errors that would be the same for every agent; others become the
// row's problem.
func (r *ImportedRow) findTarget(ctx context.Context, o Tokens, content *operator.Content) error {
	t, err := o.findTarget(ctx, content, r.agent, "")
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if _, ok := errors.AsType[*operator.MisuseError](err); ok {
		return err
	}
	if err == nil {
		r.Header, err = t.tokenHeader()
	}
	if err != nil {
		r.Problem = err.Error()
		return nil
	}
	_, r.Header = chooseScheme(r.Header, false)
	r.Origin, r.Path, r.Where = t.Origin, t.Path, t.Words
	return nil
}

// StoreImport stores the rows one after the other. It can be stopped and run again.
func (o Tokens) StoreImport(ctx context.Context, i *Import, actor string) error {
	st, err := o.OpenDispatching(ctx)
	if err != nil {
		return err
	}
	defer st.Close()
	if err := checkWorkers(ctx, st, i.keys.PrimaryID()); err != nil {
		return err
	}
	row := records.Audit{Actor: actor, Action: "token import", Matched: int64(i.Good)}
	what := map[string]any{"chain": i.ask.Chain, "rows": len(i.Rows)}
	i.Audit, err = operator.RunAudited(ctx, st, row, what, func() (int64, error) {
		for _, r := range i.Rows {
			if r.Problem != "" {
				continue
			}
			if err := i.storeRow(ctx, st, r); err != nil {
				return int64(i.Stored), err
			}
		}
		return int64(i.Stored), nil
	})
	return err
}

func (i *Import) storeRow(ctx context.Context, st *operator.Session, r *ImportedRow) error {
	t := records.Token{Agent: r.agent, Origin: r.Origin, Path: r.Path}
	t.Scheme, t.Header = chooseScheme(r.Header, false)
	var err error
	if t.Ciphertext, err = i.keys.Seal([]byte(r.plain.Reveal()), t.Binding()); err != nil {
		return err
	}
	released, tasks, err := st.SetToken(ctx, t)
	st.Dispatch(ctx, tasks)
	i.Released += released
	if err == nil {
		r.Stored = true
		i.Stored++
	}
	return err
}
