//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	warmTime    = 500 * time.Millisecond // at the beginning of each turn, not measured
	callTimeout = 35 * time.Second       // slightly more than the bridge's own
)

// cell identifies a row of the tables.
type cell struct {
	transport string
	way       string
	inflight  int
}

func (c cell) String() string {
	return fmt.Sprintf("%s over %s, %d in flight", c.way, c.transport, c.inflight)
}

// sample is the result of one turn.
type sample struct {
	rate     float64 // calls per second
	p50, p99 time.Duration
}

// slice is how long one of several ways runs before the next one's turn. It is short, so that other load on the
// machine affects all ways. It is long enough that the last calls of a slice, when fewer are in flight, do not
// matter.
const slice = 200 * time.Millisecond

// drive makes inflight concurrent calls in each of the given ways for the time d, in turns of one slice. It returns
// at the first failed call.
func drive(ctx context.Context, inflight int, d time.Duration, calls ...func(context.Context) error) ([]sample, error) {
	for _, call := range calls {
		if _, err := spell(ctx, inflight, min(d, warmTime), call); err != nil {
			return nil, err
		}
	}
	took := make([][]time.Duration, len(calls))
	elapsed := make([]time.Duration, len(calls))
	one := min(slice, d)
	if len(calls) == 1 {
		one = d
	}
	for elapsed[len(calls)-1] < d {
		for i, call := range calls {
			began := time.Now()
			more, err := spell(ctx, inflight, one, call)
			elapsed[i] += time.Since(began)
			if err != nil {
				return nil, err
			}
			took[i] = append(took[i], more...)
		}
	}
	out := make([]sample, len(calls))
	for i := range calls {
		slices.Sort(took[i])
		out[i] = sample{rate: float64(len(took[i])) / elapsed[i].Seconds(), p50: quantile(took[i], 0.5), p99: quantile(took[i], 0.99)}
	}
	return out, nil
}

// spell returns the duration of each call. Every caller makes at least one.
func spell(ctx context.Context, inflight int, d time.Duration, call func(context.Context) error) ([]time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := time.Now().Add(d)
	each := make([][]time.Duration, inflight)
	var callers sync.WaitGroup
	for i := range each {
		callers.Go(func() {
			for began := time.Now(); began.Before(end) || len(each[i]) == 0; began = time.Now() {
				if err := one(ctx, call); err != nil {
					cancel(err)
					return
				}
				each[i] = append(each[i], time.Since(began))
			}
		})
	}
	callers.Wait()
	return slices.Concat(each...), context.Cause(ctx)
}

func one(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return call(ctx)
}

// quantile returns the smallest of sorted values that is not exceeded by at least the share q of them.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	at := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(at, 0), len(sorted)-1)]
}

// median returns the median of values, which it does not modify.
func median[T int64 | float64 | time.Duration](values []T) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}
