package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"time"
	"unicode"

	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

const (
	batch        = 200              // lines in one commit
	batchTimeout = 30 * time.Second // bounds one batch, including commit and dispatch
	batchBytes   = 8 << 20          // commit a batch earlier when it has this size
	ahead        = 32               // lines read while a batch is committed: at most 8 MiB
	flushAfter   = 200 * time.Millisecond
	maxProblems  = 600 // maximum of characters printed for a problem
)

// submitter is the part of the intake that this command uses.
type submitter interface {
	Submit(ctx context.Context, bodies [][]byte, from store.Source) ([]intake.Answer, error)
}

// tally counts answers.
type tally struct{ accepted, known, refreshed, conflicts, refused int }

func (t tally) printTally(w io.Writer) {
	fmt.Fprintf(w, "enqueue: %d accepted, %d known, %d refused, %d in conflict", t.accepted, t.known, t.refused,
		t.conflicts)
	if t.refreshed > 0 {
		fmt.Fprintf(w, ", %d agents refreshed", t.refreshed)
	}
	fmt.Fprintln(w)
}

func (t *tally) countAnswer(a intake.Answer) {
	switch a.Verdict {
	case store.Accepted:
		t.accepted++
	case store.Known:
		t.known++
	case store.Refreshed:
		t.refreshed++
	case store.Conflict:
		t.conflicts++
	case intake.Refused:
		t.refused++
	}
}

// source is one input: a file or standard input.
type source struct {
	name string // of the file if several are read; otherwise empty
	r    io.Reader
}

// line is one input line: the bytes of a job, or the reason why it was refused.
type line struct {
	at      position
	body    []byte
	refused *intake.Answer
	end     error // end of the input or an error; then there is no line
}

// position is the position of a line in the input.
type position struct {
	file   string // empty for a single input
	number int    // from 1; empty lines count
}

func (p position) String() string {
	if p.file != "" {
		return fmt.Sprintf("%s line %d", p.file, p.number)
	}
	return fmt.Sprintf("line %d", p.number)
}

// submitJobs enqueues the lines of all sources, one source after the other. Every printed job is committed. After an
// error it submits nothing more.
//
// The goroutine that reads ends with submitJobs. If it is blocked in a Read, it stays until that returns, because
// reading standard input cannot be interrupted.
func submitJobs(ctx context.Context, s submitter, in []source, out *printer, bar *inputBar) (tally, error) {
	var t tally
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer bar.Clear()
	lines := readLines(ctx, in, bar)
	for {
		group, end := collectBatch(ctx, lines)
		if len(group) > 0 {
			answers, err := submitBatch(ctx, s, group)
			if err != nil {
				return t, err
			}
			for i, a := range answers {
				t.countAnswer(a)
				out.addAnswer(group[i].at, a)
			}
			if err := out.flush(); err != nil {
				return t, fmt.Errorf("write the answers: %w", err)
			}
			bar.showTally(t)
		}
		if errors.Is(end, io.EOF) {
			return t, nil
		}
		if end != nil {
			return t, end
		}
	}
}

// readLines sends lines to a channel as they arrive, so that the lines of a slow producer are committed early.
func readLines(ctx context.Context, in []source, bar *inputBar) <-chan line {
	ch := make(chan line, ahead)
	give := func(l line) bool {
		select {
		case ch <- l:
			return l.end == nil
		case <-ctx.Done():
			return false
		}
	}
	go func() {
		defer close(ch)
		defer func() {
			if fault := recover(); fault != nil { // a panic of this goroutine is not recovered anywhere else
				give(line{end: fmt.Errorf("reading stopped because of a fault in Herald: %.500s. "+
					"Answered lines are done; try again, and report "+
					"this with the lines below.\n%s", fmt.Sprint(fault), debug.Stack())})
			}
		}()
		before := int64(0)
		for _, src := range in {
			n, ok := readSource(src, give, func(offset int64) { bar.noteOffset(before + offset) })
			if !ok {
				return
			}
			before += n
		}
		give(line{end: io.EOF})
	}()
	return ch
}

// readSource passes the lines of one source to give. It returns false if give did, so that reading ends.
func readSource(src source, give func(line) bool, progress func(offset int64)) (n int64, ok bool) {
	r := job.NewLineReader(src.r, job.MaxBytes)
	for number := 1; ; number++ {
		body, err := r.Next()
		progress(r.Offset())
		l := line{at: position{src.name, number}, body: body}
		var long *job.Refusal
		switch {
		case errors.As(err, &long):
			l.refused = &intake.Answer{Verdict: intake.Refused, Path: long.Path, Problem: long.Problem}
		case errors.Is(err, io.EOF):
			return r.Offset(), true
		case err != nil:
			l.end = fmt.Errorf("read the jobs at %s: %w", l.at, err)
		case len(bytes.TrimSpace(body)) == 0:
			continue
		}
		if !give(l) {
			return r.Offset(), false
		}
	}
}

// collectBatch collects lines until the batch is full or flushAfter has passed since its first line. end is the end of
// the input, an error, or the cause of a cancelled ctx. If ctx is cancelled, the collected lines are dropped.
func collectBatch(ctx context.Context, lines <-chan line) (group []line, end error) {
	var flush <-chan time.Time
	size := 0
	for len(group) < batch && size < batchBytes {
		if ctx.Err() != nil { // select chooses randomly among ready cases
			return nil, whyStopped(ctx)
		}
		select {
		case <-ctx.Done():
			return nil, whyStopped(ctx)
		case <-flush:
			return group, nil
		case l, ok := <-lines:
			switch {
			case !ok:
				return nil, whyStopped(ctx) // the channel is closed without an end only if ctx is cancelled
			case l.end != nil:
				return group, l.end
			}
			group = append(group, l)
			size += len(l.body)
			if flush == nil {
				flush = time.After(flushAfter)
			}
		}
	}
	return group, nil
}

func whyStopped(ctx context.Context) error {
	return fmt.Errorf("stopped before the end of the input: %w", context.Cause(ctx))
}

func submitBatch(ctx context.Context, s submitter, group []line) ([]intake.Answer, error) {
	answers := make([]intake.Answer, len(group))
	bodies, indexes := make([][]byte, 0, len(group)), make([]int, 0, len(group))
	for i, l := range group {
		if l.refused != nil {
			answers[i] = *l.refused
			continue
		}
		bodies, indexes = append(bodies, l.body), append(indexes, i)
	}
	if len(bodies) == 0 {
		return answers, nil
	}
	// A signal stops the reading, but not a commit that has begun.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	got, err := s.Submit(ctx, bodies, store.Source{Name: store.SourceCommand, Trust: store.TrustDirect})
	if err != nil {
		return nil, fmt.Errorf("%w; lines without an answer may not be committed: run again with the same input; "+
			"committed jobs are answered as known", err)
	}
	if len(got) != len(bodies) {
		return nil, fmt.Errorf("%d jobs got %d answers: this is a fault of Herald", len(bodies), len(got))
	}
	for k, a := range got {
		answers[indexes[k]] = a
	}
	return answers, nil
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

func (p *printer) addAnswer(at position, a intake.Answer) {
	if p.json {
		p.addJSON(answerLine{Verdict: a.Verdict, File: at.file, Line: at.number, ID: a.ID, Key: a.Key, Field: a.Path,
			Differs: a.Differs, Problem: a.Problem})
		return
	}
	switch a.Verdict {
	case intake.Refused:
		path := oneLine(cmp.Or(a.Path, "-"))
		fmt.Fprintf(&p.buf, "refused %s %s: %s\n", path, oneLine(at.String()), oneLine(a.Problem))
	case store.Conflict:
		fmt.Fprintf(&p.buf, "conflict %s %s %s %s\n", a.ID, a.Key, a.Path, oneLine(a.Problem))
	case store.Refreshed:
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
	Verdict    store.Verdict `json:"verdict"`
	File       string        `json:"file,omitempty"` // only if several are read
	Line       int           `json:"line,omitempty"`
	UpTo       uint64        `json:"upToBlock,omitempty"` // the last block of the range that contained the event
	ID         uuid.UUID     `json:"id,omitzero"`
	Key        string        `json:"key,omitempty"`
	Agent      string        `json:"agent,omitempty"` // refreshed: the agent of the event
	Field      string        `json:"field,omitempty"`
	Differs    []string      `json:"differs,omitempty"` // known: fields that differ from the event on the chain
	Problem    string        `json:"problem,omitempty"`
	Retraction uuid.UUID     `json:"retraction,omitzero"` // the delivery that retracts the event
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
