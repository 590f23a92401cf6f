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
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	noSkip := flag.Bool("noskip", false, "a skipped test is a failure of the run")
	totals := flag.String("totals", "", "append \"passed failed skipped\" to this `file`")
	most := flag.Duration("most", 0, "a test that takes longer, and more than a third of the run, is a failure of the run; 0: none is")
	flag.Parse()
	began, took := time.Now(), time.Duration(0)
	r, err := read(os.Stdin, os.Stdout)
	if err == nil {
		took = time.Since(began)
		r.times.report(os.Stdout, took)
		err = r.total.report(os.Stdout, *totals)
	}
	if err == nil {
		err = errors.Join(r.total.verdict(*noSkip), r.times.verdict(*most, took))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testcount:", err)
		os.Exit(1)
	}
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

// run is the state while reading: counts by package, and the output of tests that have not ended.
type run struct {
	total    count
	times    times
	packages map[string]*count
	output   map[[2]string]*bytes.Buffer
	out      io.Writer
}

func read(in io.Reader, out io.Writer) (*run, error) {
	r := &run{packages: map[string]*count{}, output: map[[2]string]*bytes.Buffer{}, out: out}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the test output: %w", err)
		}
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
		r.buffer(e).WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.packageEnded(e)
		} else {
			r.testEnded(e)
		}
	}
}

func (r *run) buffer(e event) *bytes.Buffer {
	key := [2]string{e.Package, e.Test}
	if r.output[key] == nil {
		r.output[key] = &bytes.Buffer{}
	}
	return r.output[key]
}

func (r *run) of(pkg string) *count {
	if r.packages[pkg] == nil {
		r.packages[pkg] = &count{}
	}
	return r.packages[pkg]
}

func (r *run) testEnded(e event) {
	key := [2]string{e.Package, e.Test}
	text := r.buffer(e).String()
	delete(r.output, key)
	c := r.of(e.Package)
	if !strings.Contains(e.Test, "/") {
		r.times.tests = append(r.times.tests, timed{shorten(e.Package) + " " + e.Test, e.Elapsed})
	}
	switch e.Action {
	case "pass":
		c.passed++
	case "fail":
		c.failed++
		fmt.Fprintf(r.out, "FAIL  %s %s\n%s", e.Package, e.Test, text)
	case "skip":
		c.skipped++
		fmt.Fprintf(r.out, "SKIP  %s %s\n%s", e.Package, e.Test, text)
	}
}

func (r *run) packageEnded(e event) {
	c := r.of(e.Package)
	if e.Action == "fail" && (c.failed == 0 || e.FailedBuild != "") {
		c.failed++
	}
	if e.Action == "fail" {
		// Print the package's output outside its tests, and that of tests that a panic or a timeout interrupted.
		for key, text := range r.output {
			if key[0] == e.Package {
				fmt.Fprintf(r.out, "%s %s\n%s", key[0], key[1], text)
			}
		}
	}
	for key := range r.output {
		if key[0] == e.Package {
			delete(r.output, key)
		}
	}
	r.total.passed += c.passed
	r.total.failed += c.failed
	r.total.skipped += c.skipped
	if *c == (count{}) {
		return // the package has no tests
	}
	word := "ok  "
	if e.Action == "fail" {
		word = "FAIL"
	}
	r.times.packages = append(r.times.packages, timed{shorten(e.Package), e.Elapsed})
	fmt.Fprintf(r.out, "%s  %-36s %7.2fs  %s\n", word, shorten(e.Package), e.Elapsed, c)
}

func shorten(pkg string) string { return strings.TrimPrefix(pkg, "github.com/agentherald/herald/") }

func (c *count) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

// report writes the last line, and appends the totals to the file totals if it is set.
func (c *count) report(out io.Writer, totals string) error {
	fmt.Fprintln(out, c)
	if totals == "" {
		return nil
	}
	f, err := os.OpenFile(totals, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the totals: %w", err)
	}
	_, err = fmt.Fprintln(f, c.passed, c.failed, c.skipped)
	return errors.Join(err, f.Close())
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
