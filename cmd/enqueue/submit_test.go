package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/model"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

const (
	client = "0x1111111111111111111111111111111111111111"
	limit  = job.MaxBytes
)

// feedback returns a job for agent 42 on Base.
func feedback(index int) string { return feedbackOf(index, 95) }

func feedbackOf(index, score int) string {
	return fmt.Sprintf(`{"type":"NewFeedback","chainId":8453,"agentId":"42","clientAddress":"%s","feedbackIndex":%d,"score":%d}`, client, index, score)
}

func key(index int) string {
	return fmt.Sprintf("eip155:8453:0x8004baa17c55a88189ae136b182e5fda19de9b63/42/%s/%d#NewFeedback", client, index)
}

// jobList is an intake whose ledger is the model.
type jobList struct {
	*intake.Intake
	accepted int
	batches  []int         // number of bodies in each Submit
	fail     error         // returned by each Submit
	called   chan struct{} // if set, receives one value per Submit
}

func newJobList(t testing.TB) *jobList {
	t.Helper()
	keys, err := secret.Create()
	heraldtest.Must(t, err)
	in, err := intake.New(intake.Config{Ledger: model.New(time.Now), Sealer: keys})
	heraldtest.Must(t, err)
	return &jobList{Intake: in}
}

func (l *jobList) Submit(ctx context.Context, bodies [][]byte, from ledger.Source) ([]intake.Answer, error) {
	l.batches = append(l.batches, len(bodies))
	if l.called != nil {
		defer func() { l.called <- struct{}{} }()
	}
	if l.fail != nil {
		return nil, l.fail
	}
	if _, bounded := ctx.Deadline(); !bounded || ctx.Err() != nil {
		return nil, errors.New("a commit is bounded in time, and not ended by a signal")
	}
	answers, err := l.Intake.Submit(ctx, bodies, from)
	for _, a := range answers {
		if a.Verdict == ledger.Accepted {
			l.accepted++
		}
	}
	return answers, err
}

func from(r io.Reader) []intake.Source { return []intake.Source{{Reader: r}} }

func quiet() *inputBar { return newInputBar(io.Discard, 0) }

func lines(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") }

func TestSubmit(t *testing.T) {
	t.Parallel()
	in := strings.Join([]string{
		feedback(1),
		"nonsense",
		"",
		feedback(2) + "\r",
		`{"type":"NewFeedback","feedbackIndex":0,` + feedback(3)[strings.Index(feedback(3), `"chainId"`):],
		strings.Repeat("x", 5<<20),
		" \t",
		feedback(1),
		feedbackOf(2, 94),
		`{"type":"AgentUpdated","chainId":8453,"agentId":42}`,
		"{\"a\u202e\x1b[31m\":1}",
		feedback(4), // without a newline at the end
	}, "\n")
	answer := func(verdict string, line, index int) string {
		return fmt.Sprintf(`{"verdict":%q,"line":%d,"id":%q,"key":%q`, verdict, line, job.IDOf(key(index)), key(index))
	}
	id := func(index int) string { return job.IDOf(key(index)).String() }
	want := [][2]string{ // the beginnings of each answer as text and as JSON
		{"accepted " + id(1) + " " + key(1), answer("accepted", 1, 1) + "}"},
		{"refused - line 2: is not JSON", `{"verdict":"refused","line":2,"problem":"is not JSON`},
		{"accepted " + id(2) + " " + key(2), answer("accepted", 4, 2) + "}"},
		{"refused feedbackIndex line 5: ", `{"verdict":"refused","line":5,"field":"feedbackIndex","problem":"is given twice"}`},
		{"refused - line 6: is 5242880 bytes long", `{"verdict":"refused","line":6,"problem":"is 5242880 bytes long`},
		{"known " + id(1) + " " + key(1), answer("known", 8, 1) + "}"},
		{"conflict " + id(2) + " " + key(2) + " value is \"",
			answer("conflict", 9, 2) + `,"field":"value","problem":"is \"95\" in the committed job and \"94\" in this one"}`},
		{"refreshed - -", `{"verdict":"refreshed","line":10}`},
		{"refused ", `{"verdict":"refused","line":11,`},
		{"accepted " + id(4) + " " + key(4), answer("accepted", 12, 4) + "}"},
	}
	for format, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		got, err := submitJobs(t.Context(), newJobList(t), from(strings.NewReader(in)), newPrinter(&out, asJSON), quiet())
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "the tally", got,
			tally{ledger.Accepted: 3, ledger.Known: 1, ledger.Refreshed: 1, ledger.Conflict: 1, intake.Refused: 4})
		answers := lines(out.String())
		heraldtest.Equal(t, "answers", len(answers), len(want))
		for i, line := range answers {
			if !strings.HasPrefix(line, want[i][format]) || asJSON && !json.Valid([]byte(line)) {
				t.Errorf("answer %d: got %q, want %q…", i, line, want[i][format])
			}
		}
		heraldtest.Lacks(t, "what the terminal gets of a stranger", out.String(), "\x1b", "\u202e")
	}
}

// TestSubmitNamesFileAndLine checks that answers name the file and the line, with lines counted per file. A file
// without a final newline does not merge with the next one.
func TestSubmitNamesFileAndLine(t *testing.T) {
	t.Parallel()
	in := func() []intake.Source {
		return []intake.Source{{Name: "a.jsonl", Reader: strings.NewReader(feedback(1) + "\n\nnonsense")}, {Name: "b \x1b[2J.jsonl", Reader: strings.NewReader("[]\n" + feedback(2))}}
	}
	for asJSON, want := range map[bool][]string{
		false: {"accepted " + job.IDOf(key(1)).String(), "refused - a.jsonl line 3: is not JSON", "refused - b  [2J.jsonl line 1: ", "accepted "},
		true: {`{"verdict":"accepted","file":"a.jsonl","line":1,`, `{"verdict":"refused","file":"a.jsonl","line":3,`,
			`{"verdict":"refused","file":"b \u001b[2J.jsonl","line":1,`, `{"verdict":"accepted","file":"b \u001b[2J.jsonl","line":2,`},
	} {
		var out bytes.Buffer
		got, err := submitJobs(t.Context(), newJobList(t), in(), newPrinter(&out, asJSON), quiet())
		if err != nil || got[ledger.Accepted] != 2 || got[intake.Refused] != 2 || len(lines(out.String())) != 4 {
			t.Fatalf("%+v, %v\n%s", got, err, out.String())
		}
		for i, line := range lines(out.String()) {
			if !strings.HasPrefix(line, want[i]) {
				t.Errorf("answer %d: %q, want %q…", i, line, want[i])
			}
		}
	}
}

// TestSubmitNothing checks that empty lines, and lines that are too long to be jobs, cause no commit.
func TestSubmitNothing(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", limit+1) + "\n"
	for in, refused := range map[string]int{"": 0, "\n": 0, " \n\r\n\t": 0, long + long: 2} {
		var out bytes.Buffer
		l := newJobList(t)
		got, err := submitJobs(t.Context(), l, from(strings.NewReader(in)), newPrinter(&out, false), quiet())
		if err != nil || got[intake.Refused] != refused || strings.Count(out.String(), "\n") != refused || len(l.batches) > 0 {
			t.Errorf("%.10q: %+v, %v, %.100q", in, got, err, out.String())
		}
	}
}

func TestSubmitBatches(t *testing.T) {
	t.Parallel()
	var in strings.Builder
	for i := range 2*batch + 1 {
		in.WriteString(feedback(i+1) + "\n")
	}
	var out bytes.Buffer
	l := newJobList(t)
	got, err := submitJobs(t.Context(), l, from(strings.NewReader(in.String())), newPrinter(&out, false), quiet())
	if err != nil || got[ledger.Accepted] != 2*batch+1 {
		t.Fatalf("%+v, %v", got, err)
	}
	sum := 0
	for _, n := range l.batches {
		sum += n
		if n > batch {
			t.Errorf("a batch of %d", n)
		}
	}
	if sum != 2*batch+1 || batch > ledger.MaxAccept {
		t.Errorf("batches %v", l.batches)
	}
	for i, line := range lines(out.String()) {
		if !strings.HasSuffix(line, " "+key(i+1)) {
			t.Fatalf("line %d: %s", i, line)
		}
	}

	// Large jobs are committed in smaller batches.
	in.Reset()
	for i := range 80 {
		in.WriteString(feedback(i+1) + strings.Repeat(" ", limit-200) + "\n")
	}
	l = newJobList(t)
	got, err = submitJobs(t.Context(), l, from(strings.NewReader(in.String())), newPrinter(&out, false), quiet())
	if err != nil || got[ledger.Accepted] != 80 || len(l.batches) < 3 {
		t.Errorf("%+v, %v, batches %v", got, err, l.batches)
	}
}

// TestSubmitSlowProducer checks that the lines of a producer that writes rarely, or only after the answer to the last
// line, are committed at once, although no further line follows.
func TestSubmitSlowProducer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		l := newJobList(t)
		l.called = make(chan struct{})
		var out bytes.Buffer
		done := make(chan error)
		go func() {
			_, err := submitJobs(t.Context(), l, from(r), newPrinter(&out, false), quiet())
			done <- err
		}()
		for i := range 3 {
			began := time.Now() // the time of the synctest bubble
			fmt.Fprintln(w, feedback(i+1))
			<-l.called
			if waited := time.Since(began); waited > 10*time.Millisecond {
				t.Errorf("waited %s", waited)
			}
		}
		_ = w.Close()
		if err := <-done; err != nil || len(lines(out.String())) != 3 {
			t.Errorf("%v: %s", err, out.String())
		}
	})
}

func TestSubmitStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		r, w := io.Pipe()
		l := newJobList(t)
		l.called = make(chan struct{})
		var out bytes.Buffer
		type result struct {
			tally
			err error
		}
		done := make(chan result)
		go func() {
			got, err := submitJobs(ctx, l, from(r), newPrinter(&out, false), quiet())
			done <- result{got, err}
		}()
		fmt.Fprintln(w, feedback(1))
		<-l.called
		fmt.Fprintln(w, feedback(2)) // read, but not in a committed batch yet
		synctest.Wait()
		why := errors.New("a signal")
		cancel(why)
		if got := <-done; !errors.Is(got.err, why) || got.tally[ledger.Accepted] != 1 || len(l.batches) != 1 {
			t.Errorf("%+v, batches %v", got, l.batches)
		}
		_ = w.Close() // the reader's goroutine blocks in Read; the bubble fails if it remains
		heraldtest.Equal(t, "answers", len(lines(out.String())), 1)
	})
}

type faultyWriter struct{ err error }

func (w faultyWriter) Write([]byte) (int, error) { return 0, w.err }

func TestSubmitFaults(t *testing.T) {
	t.Parallel()
	fault := errors.New("a fault")
	one := feedback(1) + "\n"

	var out bytes.Buffer
	got, err := submitJobs(t.Context(), newJobList(t), from(io.MultiReader(strings.NewReader(one+one[:10]), iotest.ErrReader(fault))), newPrinter(&out, false), quiet())
	if !errors.Is(err, fault) || got[ledger.Accepted] != 1 || len(lines(out.String())) != 1 {
		t.Errorf("input: %+v, %v, %s", got, err, out.String())
	}
	out.Reset()
	failing := newJobList(t)
	failing.fail = fault
	got, err = submitJobs(t.Context(), failing, from(strings.NewReader(one)), newPrinter(&out, false), quiet())
	if !errors.Is(err, fault) || len(got) > 0 || out.Len() > 0 || !strings.Contains(err.Error(), "run again with the same input") {
		t.Errorf("commit: %+v, %v, %s", got, err, out.String())
	}
	_, err = submitJobs(t.Context(), newJobList(t), from(strings.NewReader(one)), newPrinter(faultyWriter{fault}, false),
		quiet())
	heraldtest.Fails(t, "answers", err, fault)
	// The reader's buffer is full of lines that will not be processed.
	_, err = submitJobs(t.Context(), failing, from(strings.NewReader(strings.Repeat(one, 10*batch))),
		newPrinter(&out, false), quiet())
	heraldtest.Fails(t, "commit", err, fault)
}

func TestPrinterConflict(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newPrinter(&out, false)
	p.addAnswer(intake.Line{Number: 1}, intake.Answer{Verdict: ledger.Conflict, ID: uuid.Nil, Key: "k", Path: "value", Problem: `is "1" in the committed job and "2" in this one`})
	p.addAnswer(intake.Line{Number: 1}, intake.Answer{Verdict: intake.Refused, Path: "a\nb", Problem: strings.Repeat("é", 1000) + "\xff"})
	heraldtest.Must(t, p.flush())
	want := "conflict 00000000-0000-0000-0000-000000000000 k value is \"1\" in the committed job and \"2\" in this one\nrefused a b line 1: " + strings.Repeat("é", maxProblems) + "…\n"
	heraldtest.Equal(t, "out.String()", out.String(), want)
}
