package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/agentherald/herald/internal/base/progress"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

const (
	batch        = 200                  // lines in one commit
	batchTimeout = 30 * time.Second     // bounds one batch, including commit and dispatch
	flushAfter   = 5 * time.Millisecond // commit a smaller batch then
	maxProblems  = 600                  // maximum of characters printed for a problem
)

// submitter is the part of the intake that this command uses.
type submitter interface {
	Submit(ctx context.Context, bodies [][]byte, from ledger.Source) ([]intake.Answer, error)
}

// tally counts answers by verdict.
type tally map[ledger.Verdict]int

func (t tally) printTally(w io.Writer) {
	fmt.Fprintf(w, "enqueue: %d accepted, %d known, %d refused, %d in conflict", t[ledger.Accepted], t[ledger.Known],
		t[intake.Refused], t[ledger.Conflict])
	if n := t[ledger.Refreshed]; n > 0 {
		fmt.Fprintf(w, ", %s refreshed", text.Count(n, "agent", "agents"))
	}
	fmt.Fprintln(w)
}

// countAll returns the number of all answers.
func (t tally) countAll() (n int) {
	for _, of := range t {
		n += of
	}
	return n
}

// countFailed returns the number of jobs that were not taken.
func (t tally) countFailed() int { return t[intake.Refused] + t[ledger.Conflict] }

// submitJobs enqueues the lines of all sources, one source after the other. Every printed job is committed. After an
// error it submits nothing more.
func submitJobs(ctx context.Context, s submitter, in []intake.Source, out *printer, bar *inputBar) (tally, error) {
	t := tally{}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer bar.Clear()
	lines := intake.ReadLines(ctx, in, bar.bytes.Store)
	for {
		group, end := intake.CollectLines(ctx, lines, batch, flushAfter)
		if len(group) > 0 {
			answers, err := intake.SubmitLines(group, func(bodies [][]byte) ([]intake.Answer, error) {
				return submitBatch(ctx, s, bodies)
			})
			if err != nil {
				return t, err
			}
			for i, a := range answers {
				t[a.Verdict]++
				out.addAnswer(group[i], a)
			}
			if err := out.flush(); err != nil {
				return t, fmt.Errorf("write the answers: %w", err)
			}
			bar.showTally(t)
		}
		switch {
		case end == nil:
		case errors.Is(end.End, io.EOF):
			return t, nil
		case ctx.Err() != nil:
			return t, fmt.Errorf("stopped before the end of the input: %w", end.End)
		default:
			return t, end.End
		}
	}
}

func submitBatch(ctx context.Context, s submitter, bodies [][]byte) ([]intake.Answer, error) {
	// A signal stops the reading, but not a commit that has begun.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	got, err := s.Submit(ctx, bodies, ledger.Source{Name: ledger.SourceCommand, Trust: ledger.TrustDirect})
	if err != nil {
		return nil, fmt.Errorf("%w; lines without an answer may not be committed: run again with the same input; "+
			"committed jobs are answered as known", err)
	}
	return got, nil
}

// printer writes one line per answer and flushes once per batch.
type printer struct {
	w    io.Writer
	json bool
	buf  bytes.Buffer
}

func newPrinter(w io.Writer, asJSON bool) *printer { return &printer{w: w, json: asJSON} }

func (p *printer) flush() error {
	_, err := p.w.Write(p.buf.Bytes())
	p.buf.Reset()
	return err
}

func (p *printer) addAnswer(at intake.Line, a intake.Answer) {
	if p.json {
		p.addJSON(answerLine{Verdict: a.Verdict, File: at.Source, Line: at.Number, ID: a.ID, Key: a.Key, Field: a.Path,
			Differs: a.Differs, Problem: a.Problem})
		return
	}
	switch a.Verdict {
	case intake.Refused:
		path := oneLine(cmp.Or(a.Path, "-"))
		fmt.Fprintf(&p.buf, "refused %s %s: %s\n", path, oneLine(at.Position()), oneLine(a.Problem))
	case ledger.Conflict:
		fmt.Fprintf(&p.buf, "conflict %s %s %s %s\n", a.ID, a.Key, a.Path, oneLine(a.Problem))
	case ledger.Refreshed:
		p.buf.WriteString("refreshed - -\n") // an agent update has neither id nor key
	default:
		fmt.Fprintf(&p.buf, "%s %s %s", a.Verdict, a.ID, a.Key)
		if len(a.Differs) > 0 {
			fmt.Fprintf(&p.buf, " differs from the chain in %s", strings.Join(a.Differs, ", "))
		}
		p.buf.WriteByte('\n')
	}
}

// answerLine is an answer as JSON: for a line of the input, or for an event of a chain.
type answerLine struct {
	Verdict    ledger.Verdict `json:"verdict"`
	File       string         `json:"file,omitempty"` // only if several are read
	Line       int64          `json:"line,omitempty"`
	UpTo       uint64         `json:"upToBlock,omitempty"` // the last block of the range that contained the event
	ID         uuid.UUID      `json:"id,omitzero"`
	Key        string         `json:"key,omitempty"`
	Agent      string         `json:"agent,omitempty"` // refreshed: the agent of the event
	Field      string         `json:"field,omitempty"`
	Differs    []string       `json:"differs,omitempty"` // known: fields that differ from the event on the chain
	Problem    string         `json:"problem,omitempty"`
	Retraction uuid.UUID      `json:"retraction,omitzero"` // the delivery that retracts the event
}

func (p *printer) addJSON(l answerLine) {
	_ = json.NewEncoder(&p.buf).Encode(l) // cannot fail: it encodes strings into a buffer
}

// oneLine replaces a stranger's line breaks and control characters, so that an answer stays one line and cannot control
// the terminal.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if r := []rune(s); len(r) > maxProblems {
		s = string(r[:maxProblems]) + "…"
	}
	return s
}

// inputBar draws how much of the input has been read. A short input shows no bar.
type inputBar struct {
	*progress.Bar
	size  int64        // bytes of input; 0 if unknown
	bytes atomic.Int64 // how far the input has been read
}

func newInputBar(w io.Writer, size int64) *inputBar {
	return &inputBar{Bar: progress.New(w, time.Second), size: size}
}

func (b *inputBar) showTally(t tally) {
	share, percent := -1.0, ""
	if b.size > 0 {
		share = min(float64(b.bytes.Load())/float64(b.size), 1)
		percent = fmt.Sprintf("%3.0f %%  ", 100*share)
	}
	b.Draw(share, func(seconds float64) string {
		lines := t.countAll()
		return fmt.Sprintf("%s%s, %.0f/s, %d refused", percent, text.Count(lines, "line", "lines"),
			float64(lines)/seconds, t.countFailed())
	})
}
