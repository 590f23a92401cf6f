// Command testcount reads `go test -json` on standard input, prints the results for a person, and ends with one line:
//
//	12 passed, 0 failed, 0 skipped
//
// Passing tests are counted, failing tests are shown with their output, skipped tests with their reason. Tests and
// subtests count alike. A package that fails outside its tests (it does not build, it panics, it leaks a goroutine)
// counts as one failure. Before the last line it lists the ten slowest tests and packages, and each test of more than
// 20 s. The exit status is 1 if a test failed, if no test ran, if a test took too long (-most), and with -noskip if a test was
// skipped.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/agentherald/herald/scripts/script"
)

func main() {
	noSkip := flag.Bool("noskip", false, "a skipped test is a failure of the run")
	totals := flag.String("totals", "", "append \"passed failed skipped\" to this `file`")
	most := flag.Duration("most", 0, "a test that takes longer, and more than a third of the run, is a failure of the run; 0: none is")
	flag.Parse()
	script.Run("testcount", func(context.Context) {
		began := time.Now()
		r := read(os.Stdin, os.Stdout)
		took := time.Since(began)
		r.times.report(os.Stdout, took)
		fmt.Println(&r.total)
		if *totals != "" {
			f := script.Must(os.OpenFile(*totals, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644))
			defer script.Close(f.Close)
			script.Must(fmt.Fprintln(f, r.total.passed, r.total.failed, r.total.skipped))
		}
		script.Check(errors.Join(r.total.verdict(*noSkip), r.times.verdict(*most, took)))
	})
}

// event is one line of `go test -json` (go doc test2json, and build events since Go 1.24).
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build events
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

type count struct{ passed, failed, skipped int }

// run is the state while reading.
type run struct {
	total    count
	times    times
	packages map[string]*running
	out      io.Writer
}

// running is a package that has not ended: its counts, and the output of tests that have not ended. The key "" is for output
// outside of tests.
type running struct {
	count
	output map[string]*bytes.Buffer
}

func read(in io.Reader, out io.Writer) *run {
	r := &run{packages: map[string]*running{}, out: out}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if errors.Is(err, io.EOF) {
			return r
		}
		script.Check(err)
	}
}

// line processes one line. A line that is not an event (a message of the go command) is printed.
func (r *run) line(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil || e.Action == "" {
		_, _ = r.out.Write(line)
		return
	}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.of(e).output[e.Test].WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.packageEnded(e)
		} else {
			r.testEnded(e)
		}
	}
}

// of returns the package of an event, with a buffer for its test.
func (r *run) of(e event) *running {
	if r.packages[e.Package] == nil {
		r.packages[e.Package] = &running{output: map[string]*bytes.Buffer{}}
	}
	p := r.packages[e.Package]
	if p.output[e.Test] == nil {
		p.output[e.Test] = &bytes.Buffer{}
	}
	return p
}

func (r *run) testEnded(e event) {
	p := r.of(e)
	text := p.output[e.Test].String()
	delete(p.output, e.Test)
	if !strings.Contains(e.Test, "/") {
		r.times.tests = append(r.times.tests, timed{shorten(e.Package) + " " + e.Test, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		p.passed++
	case "fail":
		p.failed++
		fmt.Fprintf(r.out, "FAIL  %s %s\n%s", e.Package, e.Test, text)
	case "skip":
		p.skipped++
		fmt.Fprintf(r.out, "SKIP  %s %s\n%s", e.Package, e.Test, text)
	}
}

func (r *run) packageEnded(e event) {
	p := r.of(e)
	delete(r.packages, e.Package)
	word := "ok  "
	if e.Action == "fail" {
		word = "FAIL"
		if p.failed == 0 || e.FailedBuild != "" {
			p.failed++
		}
		// Print the package's output outside its tests, and that of tests that a panic or a timeout interrupted.
		for test, text := range p.output {
			if text.Len() > 0 {
				fmt.Fprintf(r.out, "%s %s\n%s", e.Package, test, text)
			}
		}
	}
	if p.count == (count{}) {
		return // the package has no tests
	}
	r.total.passed += p.passed
	r.total.failed += p.failed
	r.total.skipped += p.skipped
	r.times.packages = append(r.times.packages, timed{shorten(e.Package), e.Elapsed})
	fmt.Fprintf(r.out, "%s  %-36s %7.2fs  %s\n", word, shorten(e.Package), e.Elapsed, &p.count)
}

func shorten(pkg string) string { return strings.TrimPrefix(pkg, "github.com/agentherald/herald/") }

func (c *count) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

func (c *count) verdict(noSkip bool) error {
	switch {
	case c.failed > 0:
		return errors.New("some tests failed, see above")
	case c.passed+c.skipped == 0:
		return errors.New("no test ran")
	case noSkip && c.skipped > 0:
		return errors.New("tests were skipped, and here none may be: see SKIP above")
	}
	return nil
}
