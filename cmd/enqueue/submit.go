package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

const (
	batch       = 200              // lines committed together
	patience    = 30 * time.Second // one batch, commit and dispatch included
	batchBytes  = 8 << 20          // a batch of large jobs is committed earlier
	flushAfter  = 200 * time.Millisecond
	maxProblems = 400 // characters of a problem that are printed
)

// submitter is the intake as this command needs it.
type submitter interface {
	Submit(ctx context.Context, bodies [][]byte) ([]delivery.Answer, error)
}

// tally counts answers.
type tally struct{ accepted, known, refreshed, conflicts, refused int }

func (t tally) say(w io.Writer) {
	fmt.Fprintf(w, "enqueue: %d accepted, %d known, %d refused, %d in conflict", t.accepted, t.known, t.refused, t.conflicts)
	if t.refreshed > 0 {
		fmt.Fprintf(w, ", %d agents refreshed", t.refreshed)
	}
	fmt.Fprintln(w)
}

func (t *tally) add(a delivery.Answer) {
	switch a.Verdict {
	case store.Accepted:
		t.accepted++
	case store.Known:
		t.known++
	case store.Refreshed:
		t.refreshed++
	case store.Conflict:
		t.conflicts++
	case delivery.Refused:
		t.refused++
	}
}

// line is what the reader gives: a job's bytes, or why the line is none.
type line struct {
	body    []byte
	refused *delivery.Answer
	end     error // the input's end or fault; no line
}

// submit reads to the end of in. What was printed is committed; an error leaves the rest unsubmitted.
func submit(ctx context.Context, s submitter, in io.Reader, out *printer, bar *progress) (tally, error) {
	lines := read(ctx, in, bar)
	var t tally
	for {
		group, end := collect(ctx, lines)
		if len(group) > 0 {
			answers, err := answer(ctx, s, group)
			if err != nil {
				return t, err
			}
			for _, a := range answers {
				t.add(a)
				if err := out.print(a); err != nil {
					return t, fmt.Errorf("write the answers: %w", err)
				}
			}
			bar.show(t)
		}
		if errors.Is(end, io.EOF) {
			bar.end()
			return t, nil
		}
		if end != nil {
			bar.end()
			return t, end
		}
	}
}

// read gives lines as they come, so that a slow producer's lines are committed without waiting for a full batch.
func read(ctx context.Context, in io.Reader, bar *progress) <-chan line {
	ch := make(chan line, batch)
	go func() {
		defer close(ch)
		send := func(l line) bool {
			select {
			case ch <- l:
				return true
			case <-ctx.Done():
				return false
			}
		}
		r := job.NewLineReader(in, job.MaxBytes)
		for {
			body, err := r.Next()
			bar.read(r.Offset())
			var long *job.Refusal
			switch {
			case errors.As(err, &long):
				if !send(line{refused: &delivery.Answer{Verdict: delivery.Refused, Path: long.Path, Problem: long.Problem}}) {
					return
				}
			case err != nil:
				if !errors.Is(err, io.EOF) {
					err = fmt.Errorf("read the jobs: %w", err)
				}
				send(line{end: err})
				return
			case len(strings.TrimSpace(string(body))) == 0:
			case !send(line{body: body}):
				return
			}
		}
	}()
	return ch
}

// collect gathers a batch: full, or what came within flushAfter of its first line.
func collect(ctx context.Context, lines <-chan line) (group []line, end error) {
	var flush <-chan time.Time
	size := 0
	for len(group) < batch && size < batchBytes {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-flush:
			return group, nil
		case l, ok := <-lines:
			switch {
			case !ok:
				return group, context.Cause(ctx)
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

func answer(ctx context.Context, s submitter, group []line) ([]delivery.Answer, error) {
	answers := make([]delivery.Answer, len(group))
	var bodies [][]byte
	var places []int
	for i, l := range group {
		if l.refused != nil {
			answers[i] = *l.refused
			continue
		}
		bodies, places = append(bodies, l.body), append(places, i)
	}
	// A signal ends the reading, not a commit that has begun.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	got, err := s.Submit(ctx, bodies)
	if err != nil {
		return nil, err
	}
	for k, a := range got {
		answers[places[k]] = a
	}
	return answers, nil
}

// printer writes one line per answer.
type printer struct {
	w    io.Writer
	json bool
}

func newPrinter(w io.Writer, asJSON bool) *printer { return &printer{w, asJSON} }

func (p *printer) print(a delivery.Answer) error {
	if p.json {
		return p.printJSON(a)
	}
	var err error
	switch a.Verdict {
	case delivery.Refused:
		path := a.Path
		if path == "" {
			path = "-"
		}
		_, err = fmt.Fprintf(p.w, "refused %s %s\n", oneLine(path), oneLine(a.Problem))
	case store.Conflict:
		_, err = fmt.Fprintf(p.w, "conflict %s %s %s differs from what is known\n", a.ID, a.Key, a.Path)
	case store.Refreshed:
		_, err = fmt.Fprintln(p.w, "accepted - -")
	default:
		_, err = fmt.Fprintf(p.w, "%s %s %s\n", a.Verdict, a.ID, a.Key)
	}
	return err
}

func (p *printer) printJSON(a delivery.Answer) error {
	verdict := a.Verdict
	if verdict == store.Refreshed {
		verdict = store.Accepted
	}
	v := struct {
		Verdict store.Verdict `json:"verdict"`
		ID      *uuid.UUID    `json:"id,omitempty"`
		Key     string        `json:"key,omitempty"`
		Field   string        `json:"field,omitempty"`
		Problem string        `json:"problem,omitempty"`
	}{Verdict: verdict, Key: a.Key, Field: a.Path, Problem: a.Problem}
	if a.ID != uuid.Nil {
		v.ID = &a.ID
	}
	return json.NewEncoder(p.w).Encode(v)
}

// oneLine keeps a stranger's text from breaking the line-per-line promise or the terminal.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if r := []rune(s); len(r) > maxProblems {
		s = string(r[:maxProblems]) + "…"
	}
	return s
}
