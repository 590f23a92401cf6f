package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const (
	mostListed = 10
	tooSlow    = 20 // seconds
)

// timed is a test or a package and the seconds that it took. Those of a parallel test do not include its wait for a place.
type timed struct {
	name    string
	seconds float64
}

// times are of all packages and of all tests that are not subtests.
type times struct{ tests, packages []timed }

// report lists the slowest, and the tests that are too slow.
func (t *times) report(out io.Writer, took time.Duration) {
	for _, list := range []struct {
		name string
		of   []timed
	}{{"packages", t.packages}, {"tests", t.tests}} {
		if len(list.of) == 0 {
			continue
		}
		fmt.Fprintf(out, "\nslowest %s:\n", list.name)
		sorted := sortTimes(list.of)
		for _, v := range sorted[:min(len(sorted), mostListed)] {
			fmt.Fprintf(out, "%8.1f s  %s\n", v.seconds, v.name)
		}
	}
	for _, v := range sortTimes(t.tests) {
		if v.seconds > tooSlow {
			fmt.Fprintf(out, "too slow: %s takes %.0f s, and %d s are enough for a test\n", v.name, v.seconds, tooSlow)
		}
	}
	fmt.Fprintf(out, "\nall in %s\n", took.Round(time.Second))
}

// verdict is an error if a test took longer than most, unless that is 0. On a busy machine, or with empty caches, the whole
// run is slow. So a test may take a third of the run if that is more than most: 60 s of three minutes.
func (t *times) verdict(most, took time.Duration) error {
	var names []string
	for _, v := range t.tests {
		if most > 0 && v.seconds > max(most, took/3).Seconds() {
			names = append(names, v.name)
		}
	}
	if names == nil {
		return nil
	}
	return fmt.Errorf("longer than %s took %s", max(most, took/3), strings.Join(names, ", "))
}

// sortTimes returns the slowest first.
func sortTimes(of []timed) []timed {
	return slices.SortedFunc(slices.Values(of), func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
}
