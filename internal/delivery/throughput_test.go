package delivery_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestMinutes: the counts of two workers are added up, minute by minute.
func TestMinutes(t *testing.T) {
	t.Parallel()
	q, err := queue.Open(queue.Config{URL: secret.New(heraldtest.Redis(t))})
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = q.Close() })
	now := time.Date(2026, 1, 1, 12, 0, 30, 0, time.UTC)
	var workers []*throughput.Counter
	for range 2 {
		workers = append(workers, throughput.New(q, slog.New(slog.DiscardHandler), func() time.Time { return now }))
	}
	for _, w := range workers {
		for range 10 {
			w.Count(outcome.Delivered, 15*time.Millisecond)
		}
		w.Count(outcome.Dead, time.Hour)
	}
	now = now.Add(time.Minute)
	workers[0].Count(outcome.Waiting, 0)
	for _, w := range workers { // the last counts are written when a worker ends
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w.Run(ctx)
	}
	got, err := workers[1].Minutes(t.Context(), 3)
	if err != nil || len(got) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	heraldtest.Equal(t, "outcomes", []map[outcome.Status]int64{got[0].Outcomes, got[1].Outcomes, got[2].Outcomes},
		[]map[outcome.Status]int64{{}, {outcome.Delivered: 20, outcome.Dead: 2}, {outcome.Waiting: 1}})
	heraldtest.Equal(t, "the last minute", got[2].At, now.Truncate(time.Minute))
	if hours, err := workers[1].Hours(t.Context(), 2); err != nil || len(hours[0].Outcomes) > 0 || hours[1].Outcomes[outcome.Delivered] != 20 {
		t.Errorf("%+v, %v", hours, err)
	}
	if p50, ok := got[1].Latency.Quantile(0.5); !ok || p50 != 0.015 {
		t.Errorf("p50 %v, %t", p50, ok)
	}
	if _, ok := got[2].Latency.Quantile(0.5); ok {
		t.Error("a wait has a latency")
	}
}

// away refuses writes while fail is set.
type away struct {
	fail atomic.Bool
	got  map[string]map[string]int64
}

func (a *away) AddCounts(_ context.Context, counts map[string]map[string]int64, _ time.Duration) error {
	if a.fail.Load() {
		return errors.New("away")
	}
	for key, named := range counts {
		if a.got[key] == nil {
			a.got[key] = map[string]int64{}
		}
		for name, n := range named {
			a.got[key][name] += n
		}
	}
	return nil
}

func (a *away) Counts(context.Context, []string) ([]map[string]int64, error) { return nil, nil }

// TestRedisAway: counts that Redis did not accept are added to the next ones, once.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		redis := &away{got: map[string]map[string]int64{}}
		redis.fail.Store(true)
		c := throughput.New(redis, slog.New(slog.DiscardHandler), nil)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan struct{})
		go func() { defer close(ran); c.Run(ctx) }()
		c.Count(outcome.Delivered, time.Second)
		<-time.After(5 * time.Second)
		c.Count(outcome.Delivered, 2*time.Second)
		redis.fail.Store(false)
		<-time.After(5 * time.Second)
		cancel()
		<-ran
		total := int64(0)
		for _, named := range redis.got {
			total += named["delivered"]
		}
		if total != 4 { // once in the minute and once in the hour
			t.Errorf("%+v", redis.got)
		}
	})
}
