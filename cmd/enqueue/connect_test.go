package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/testing/awaytest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestConnectionFails checks that every failure to connect leads to exit code 1, a sentence with the cause and a
// remedy, and no answer to any line.
func TestConnectionFails(t *testing.T) {
	t.Parallel()
	for _, w := range awaytest.Ways(t) {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			environ := append([]string{"HERALD_CACHE=" + t.TempDir()}, w.Env...)
			if !strings.Contains(strings.Join(environ, " "), "HERALD_DATA=") {
				environ = append(environ, "HERALD_DATA="+t.TempDir())
			}
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), process{[]string{w.Flag()}, environ, strings.NewReader(feedback(1) + "\n"), &stdout, &stderr}, connectIntake)
			if complaint := w.Complaint(code, stdout.String(), stderr.String()); complaint != "" || stdout.Len() > 0 {
				t.Errorf("%s\n%s%s", complaint, stdout.String(), stderr.String())
			}
		})
	}
}

// brokenReader returns one line, then panics.
type brokenReader struct{ line io.Reader }

func (r brokenReader) Read(p []byte) (int, error) {
	if n, err := r.line.Read(p); err == nil {
		return n, nil
	}
	panic("the reader is broken")
}

// TestPanicIsASentence checks that a panic is reported like other failures: of the command, in the first line of the
// output, and of the goroutine that reads.
func TestPanicIsASentence(t *testing.T) {
	t.Parallel()
	broken := func(context.Context, *config.Config, time.Duration, io.Writer) (submitter, func(), error) {
		var b *bytes.Buffer
		b.WriteByte('x')
		return nil, nil, nil
	}
	released := 0
	half := brokenReader{strings.NewReader(feedback(1) + "\n")}
	for says, c := range map[string]struct {
		stdin   io.Reader
		connect connector
	}{
		"\nenqueue: stopped by a fault in Herald: runtime error: invalid memory address": {strings.NewReader("x"), broken},
		"enqueue: reading stopped because of a fault in Herald: the reader is broken. ":  {half, to(newJobList(t), &released)},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), process{nil, nil, c.stdin, &stdout, &stderr}, c.connect)
		heraldtest.Equal(t, "the exit code", code, exitFailed)
		heraldtest.Contains(t, "the error", "\n"+stderr.String(), says, "connect_test.go:")
	}
}
