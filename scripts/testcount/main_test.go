package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestRead(t *testing.T) {
	t.Parallel()
	const ok = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"hush\n"}
{"Action":"pass","Package":"p","Test":"TestA/sub"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Elapsed":0.5}
`
	for _, c := range []struct {
		name, in string
		want     count
		shows    string
		noSkip   bool
		fails    bool
	}{
		{"passing", ok, count{passed: 2}, "ok    p", true, false},
		{"a package without tests", ok + `{"Action":"skip","Package":"q"}` + "\n", count{passed: 2}, "ok    p", true, false},
		{"a skipped test", ok + `{"Action":"output","Package":"q","Test":"TestB","Output":"no Postgres\n"}
{"Action":"skip","Package":"q","Test":"TestB"}
{"Action":"pass","Package":"q"}`, count{passed: 2, skipped: 1}, "no Postgres", true, true},
		{"a skipped test that may be", `{"Action":"skip","Package":"q","Test":"TestB"}
{"Action":"pass","Package":"q"}`, count{skipped: 1}, "SKIP  q TestB", false, false},
		{"a failing test", `{"Action":"output","Package":"q","Test":"TestB","Output":"1 is not 2\n"}
{"Action":"fail","Package":"q","Test":"TestB"}
{"Action":"fail","Package":"q"}`, count{failed: 1}, "1 is not 2", false, true},
		{"a failing build", `{"ImportPath":"q","Action":"build-output","Output":"x.go:1: undefined: y\n"}
{"ImportPath":"q","Action":"build-fail"}
{"Action":"fail","Package":"q","FailedBuild":"q"}`, count{failed: 1}, "undefined: y", false, true},
		{"a package that fails after its tests", `{"Action":"pass","Package":"q","Test":"TestB"}
{"Action":"output","Package":"q","Output":"goleak: leaked\n"}
{"Action":"fail","Package":"q"}`, count{passed: 1, failed: 1}, "goleak: leaked", false, true},
		{"a message of the go command", "go: cannot find main module\n", count{}, "cannot find main module", false, true},
		{"nothing", "", count{}, "", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			got := read(strings.NewReader(c.in), &out)
			if got.total != c.want {
				t.Errorf("counted %v, want %v", &got.total, &c.want)
			}
			if !strings.Contains(out.String(), c.shows) {
				t.Errorf("%q is not shown in %q", c.shows, &out)
			}
			if strings.Contains(out.String(), "hush") {
				t.Error("a passing test's output is shown")
			}
			if err := got.total.verdict(c.noSkip); (err != nil) != c.fails {
				t.Errorf("verdict %v, want a failure: %v", err, c.fails)
			}
		})
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	r := read(strings.NewReader(`{"Action":"pass","Package":"p","Test":"TestA/sub","Elapsed":61}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":61}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":21}
{"Action":"pass","Package":"p","Test":"TestC","Elapsed":1}
{"Action":"pass","Package":"p","Elapsed":62}
`), &strings.Builder{})
	var out strings.Builder
	r.times.report(&out, 62*time.Second)
	want := `
slowest packages:
    62.0 s  p

slowest tests:
    61.0 s  p TestA
    21.0 s  p TestB
     1.0 s  p TestC
too slow: p TestA takes 61 s, and 20 s are enough for a test
too slow: p TestB takes 21 s, and 20 s are enough for a test

all in 1m2s
`
	if out.String() != want {
		t.Errorf("reported %s", &out)
	}
	if err := r.times.verdict(time.Minute, 3*time.Minute); err == nil || !strings.Contains(err.Error(), "longer than 1m0s took p TestA") {
		t.Error(err)
	}
	if err := errors.Join(r.times.verdict(0, 0), r.times.verdict(2*time.Minute, 0), r.times.verdict(time.Minute, time.Hour)); err != nil {
		t.Error(err)
	}
}
