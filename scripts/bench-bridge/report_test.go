//go:build linux

package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// measured returns a report in which Herald reaches times the bridge's rate and adds the duration added to a bare call.
func measured(times float64, added time.Duration) *report {
	r := &report{rounds: 3, time: time.Second}
	const bridgeRate = 200.0
	bareRate := bridgeRate * 100
	for range r.rounds {
		for _, over := range []string{overHTTP, overStdio} {
			for _, n := range inflights {
				r.add(cell{over, bridgeWay, n}, sample{bridgeRate, 60 * time.Millisecond, 100 * time.Millisecond})
				r.add(cell{over, heraldWay, n}, sample{bridgeRate * times, 100*time.Microsecond + added, 5 * time.Millisecond})
				r.add(cell{over, bareWay, n}, sample{bareRate, 100 * time.Microsecond, 4 * time.Millisecond})
			}
		}
	}
	return r
}

func TestTargets(t *testing.T) {
	t.Parallel()
	if err := measured(90, 20*time.Microsecond).missed(); err != nil {
		t.Errorf("all is well: %v", err)
	}
	slow := measured(90, 40*time.Microsecond) // this one is reported, but has no target
	if err := slow.missed(); err != nil || !strings.Contains(slow.markdown(), "| HTTP, one at a time, p50 | 40 µs | 100 µs |") {
		t.Errorf("%v:\n%s", err, slow.markdown())
	}
	for want, r := range map[string]*report{
		"missed: pooled HTTP, 16 in flight, calls a second": measured(24, 20*time.Microsecond),
		"missed: kept-alive stdio":                          measured(49, 20*time.Microsecond),
	} {
		err := r.missed()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if !strings.Contains(r.markdown(), "**not met**") {
			t.Errorf("%s: the page does not say so", want)
		}
	}
}

func TestMedianAndQuantile(t *testing.T) {
	t.Parallel()
	if got := median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("%v", got)
	}
	if got := median([]time.Duration{4, 2}); got != 3 {
		t.Errorf("%v", got)
	}
	if got := median([]int64(nil)); got != 0 {
		t.Errorf("%v", got)
	}
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	if p50, p99 := quantile(hundred, 0.5), quantile(hundred, 0.99); p50 != 50 || p99 != 99 {
		t.Errorf("%d %d", p50, p99)
	}
}

func TestDriveStopsAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	if _, err := drive(t.Context(), 4, time.Minute, func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	well := func(context.Context) error { return nil }
	samples, err := drive(t.Context(), 4, time.Millisecond, well, well)
	if err != nil || len(samples) != 2 {
		t.Fatalf("%+v %v", samples, err)
	}
	for _, s := range samples {
		if s.rate <= 0 || s.p99 < s.p50 {
			t.Errorf("%+v", s)
		}
	}
}

func TestTheFeedbackFitsTheAgentsSchema(t *testing.T) {
	t.Parallel()
	if err := reallyValidates(); err != nil {
		t.Error(err)
	}
}
