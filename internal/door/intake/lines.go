package intake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/agentherald/herald/internal/job"
)

// Source is one input of JSON Lines.
type Source struct {
	Name string // for the positions of its lines; empty if there is only one source
	io.Reader
}

// Line is one line of a source: the bytes of a job, or the reason why it is refused.
type Line struct {
	Source  string
	Number  int64 // from 1; empty lines count
	Body    []byte
	Refused *job.Refusal // the line is too long
	End     error        // io.EOF after the last line, or the error that ended the reading; then there is no line
}

// Position returns the position of the line in the input.
func (l Line) Position() string {
	if l.Source != "" {
		return fmt.Sprintf("%s line %d", l.Source, l.Number)
	}
	return fmt.Sprintf("line %d", l.Number)
}

const (
	linesAhead    = 32      // lines read while a group is committed: at most 8 MiB
	maxGroupBytes = 8 << 20 // a group that has this size ends
)

// ReadLines sends the lines of all sources to a channel as they arrive, so that those of a slow sender are committed
// early. It skips empty lines, also those with white space. The channel is closed after a line with End, or when ctx
// ends. noteOffset is called with the number of bytes that were read.
//
// The goroutine that reads ends with ctx. If it is blocked in a Read, it stays until that returns.
func ReadLines(ctx context.Context, sources []Source, noteOffset func(int64)) <-chan Line {
	lines := make(chan Line, linesAhead)
	give := func(l Line) bool {
		select {
		case lines <- l:
			return l.End == nil
		case <-ctx.Done():
			return false
		}
	}
	go func() {
		defer close(lines)
		defer func() {
			if fault := recover(); fault != nil { // a panic of this goroutine is not recovered anywhere else
				give(Line{End: fmt.Errorf("reading stopped because of a fault in Herald: %.500s. "+
					"Answered lines are done; try again, and report "+
					"this with the lines below.\n%s", fmt.Sprint(fault), debug.Stack())})
			}
		}()
		before := int64(0)
		for _, src := range sources {
			r := job.NewLineReader(src, job.MaxBytes)
			for l := (Line{Source: src.Name, Number: 1}); ; l.Number++ {
				var err error
				l.Body, err = r.Next()
				noteOffset(before + r.Offset())
				if errors.Is(err, io.EOF) {
					break
				}
				if l.Refused = nil; err != nil && !errors.As(err, &l.Refused) {
					l.End = fmt.Errorf("read the jobs at %s: %w", l.Position(), err)
				}
				if (len(bytes.TrimSpace(l.Body)) > 0 || err != nil) && !give(l) {
					return
				}
			}
			before += r.Offset()
		}
		give(Line{End: io.EOF})
	}()
	return lines
}

// CollectLines waits for one line and collects further ones until the group has most lines, or wait has passed since
// its first line. With wait 0 it collects only those that have arrived. end is the last line, which has an End, or nil
// while more may follow. If ctx ends, the collected lines are dropped, and the End is its cause.
func CollectLines(ctx context.Context, lines <-chan Line, most int, wait time.Duration) (group []Line, end *Line) {
	var late <-chan time.Time
	for size := 0; len(group) < most && size < maxGroupBytes; {
		if ctx.Err() != nil { // select chooses randomly among ready cases
			return nil, &Line{End: context.Cause(ctx)}
		}
		if wait == 0 && len(group) > 0 && len(lines) == 0 {
			return group, nil
		}
		select {
		case <-ctx.Done():
		case <-late:
			return group, nil
		case l, ok := <-lines:
			switch {
			case !ok:
				return nil, &Line{End: context.Cause(ctx)} // the channel is closed without an End only then
			case l.End != nil:
				return group, &l
			}
			group = append(group, l)
			size += len(l.Body)
			if late == nil && wait > 0 {
				late = time.After(wait)
			}
		}
	}
	return group, nil
}

// SubmitLines returns one answer for each line of a group, in order. submit commits those that are not refused.
func SubmitLines(group []Line, submit func(bodies [][]byte) ([]Answer, error)) (answers []Answer, err error) {
	var bodies [][]byte
	for _, l := range group {
		if l.Refused == nil {
			bodies = append(bodies, l.Body)
		}
	}
	var committed []Answer
	if len(bodies) > 0 {
		committed, err = submit(bodies)
	}
	for _, l := range group {
		switch {
		case err != nil:
			return nil, err
		case l.Refused != nil:
			answers = append(answers, Answer{Verdict: Refused, Path: l.Refused.Path, Problem: l.Refused.Problem})
		default:
			answers, committed = append(answers, committed[0]), committed[1:]
		}
	}
	return answers, nil
}
