//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
)

// vitals are values of a worker's /metrics. For several workers, they are the maximum of each value.
type vitals struct {
	memory     float64 // resident bytes
	goroutines float64
}

// trend shows whether the goroutines grow during a run.
type trend struct{ first, last float64 } // the maximum in the first and in the last third of the samples

// sampleEvery is the sampling interval. It is long because each scrape makes the worker count open rows.
const sampleEvery = 2 * time.Second

func readVitals(ctx context.Context, ws []*trial.Worker) (v vitals) {
	for _, w := range ws {
		text := script.Must(w.Metrics(ctx))
		v.memory = max(v.memory, script.Must(metric(text, "process_resident_memory_bytes")))
		v.goroutines = max(v.goroutines, script.Must(metric(text, "go_goroutines")))
	}
	return v
}

// metric parses a metric without labels.
func metric(text, name string) (float64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("/metrics has no %s", name)
}

// countGoroutines samples the goroutines of workers until the returned function is called.
func countGoroutines(ctx context.Context, ws []*trial.Worker) (end func() []float64) {
	ctx, cancel := context.WithCancel(ctx)
	var samples []float64
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(sampleEvery)
		defer ticker.Stop()
		for {
			_ = script.Try(func() { samples = append(samples, readVitals(ctx, ws).goroutines) }) // a worker may be too busy for a sample
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
	return func() []float64 {
		cancel()
		wg.Wait()
		return samples
	}
}

func trendOf(samples []float64) (t trend) {
	third := len(samples) / 3
	if third == 0 {
		return t
	}
	for i := range third {
		t.first, t.last = max(t.first, samples[i]), max(t.last, samples[len(samples)-1-i])
	}
	return t
}
