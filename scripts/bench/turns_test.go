//go:build linux

package main

import (
	"strings"
	"testing"
)

func TestRateIn(t *testing.T) {
	t.Parallel()
	// rateIn parses the reports of this version and of older ones.
	r := report{loads: []loadResult{{load: load{queue: realRedis, inflight: 16, agents: 64, n: 12000}, rate: 2345}}}
	for text, want := range map[string]float64{
		r.markdown(): 2345,
		"| Redis | 16 | 64 | 24000 | 943/s | – | 0.68, 0.85, 0.22, 0.12 | 1.00 | 51, 70, 70 MB | 35, 247, 232 |\n": 943,
	} {
		if got, err := rateIn(text); err != nil || got != want {
			t.Errorf("%v, %v, want %v in %s", got, err, want, text)
		}
	}
	for _, text := range []string{"", "| Redis | 16 | 640 | 24000 | 943/s |\n", "| Redis | 16 | 64 | 24000 | soon |\n"} {
		if got, err := rateIn(text); err == nil {
			t.Errorf("%v in %q", got, text)
		}
	}
}

func TestTurnsTable(t *testing.T) {
	t.Parallel()
	got := turnsTable(&tree{name: "before", rates: []float64{500, 400, 900}}, &tree{name: "this tree", rates: []float64{1100, 1500, 1000, 1300}}, 12000)
	for _, want := range []string{"| before | 500/s, 400/s, 900/s | 500/s | 600/s |", "| this tree | 1,100/s, 1,500/s, 1,000/s, 1,300/s | 1,200/s | 1,225/s |",
		"| ratio | | 2.40 × | 2.04 × |"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	if median(nil) != 0 {
		t.Error("nothing has no median")
	}
}
