package effort

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/prometheus/client_golang/prometheus"
)

// TestRestartedWorker: a new worker reads from Redis which agents are slow or over budget before it gives them a slot.
func TestRestartedWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, heraldtest.RedisClient(t, heraldtest.RealRedis(t)))
	b := w.worker()
	w.calls(b, agent(1), 1, 25*time.Second)
	w.spends(b, agent(2), Calls, 90*time.Second)

	next := w.worker()
	heraldtest.Equal(t, "a slow agent is costly after a restart", w.begins(next, agent(1)).Costly(), true)
	w.refused(next, agent(2))
	w.left(next, agent(2), -30)
	u, err := ReadUsage(t.Context(), heraldtest.RedisClient(t, heraldtest.RealRedis(t)), time.Minute, agent(2))
	if err != nil || u.Left != 60 {
		t.Errorf("elsewhere: %+v, %v", u, err)
	}
	shown, err := ReadUsage(t.Context(), w.redis, time.Minute, agent(1))
	if err != nil || shown.Mean != 25 {
		t.Errorf("%+v, %v", shown, err)
	}
}

// TestMeanInRedis: a known mean cost replaces the one in Redis, and an unknown one (0) does not.
func TestMeanInRedis(t *testing.T) {
	t.Parallel()
	s := newShared(heraldtest.RedisClient(t, heraldtest.RealRedis(t)), newRules(60e6))
	for _, c := range []struct{ local, want float64 }{{5, 5}, {0, 5}, {7, 7}} {
		k, err := s.addSpent(t.Context(), agent(1), [kindCount]float64{}, known{mean: c.local})
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "the mean", k.mean, c.want)
	}
}

// TestReportsAtOnce: no charge is lost if workers add to an agent's usage at the same time.
func TestReportsAtOnce(t *testing.T) {
	t.Parallel()
	s := newShared(heraldtest.RedisClient(t, heraldtest.RealRedis(t)), newRules(60e6))
	s.now = func() int64 { return 1e15 } // nothing is refilled
	spent := [kindCount]float64{Calls: 1e6}
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for range 20 {
				if _, err := s.addSpent(t.Context(), agent(1), spent, known{used: spent}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	k, err := s.readSpent(t.Context(), agent(1))
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "the usage", k.used, [kindCount]float64{Calls: 160e6})
}

// TestQuickAgentsAskNothing: an attempt at a known agent sends no request to Redis until the unreported effort reaches
// a sixtieth of the budget.
func TestQuickAgentsAskNothing(t *testing.T) {
	t.Parallel()
	rdb := heraldtest.RedisClient(t, heraldtest.RealRedis(t))
	w := newWorld(t, rdb)
	b := w.worker()
	spend := func(n int) {
		for range n {
			w.spends(b, agent(1), Calls, 10*time.Millisecond)
		}
	}
	spend(1)
	heraldtest.Must(t, rdb.(io.Closer).Close())
	spend(98)
	if b.isAway() {
		t.Fatal("Redis was asked")
	}
	spend(1)
	if !b.isAway() {
		t.Fatal("Redis was not told of a second of effort")
	}
	w.left(b, agent(1), 59)
}

// TestRedisAway: without Redis, each worker counts by itself. When Redis is back, each worker reports its usage.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	url := heraldtest.RealRedis(t)
	gate, through := heraldtest.RedisGate(t, url)
	w := newWorld(t, heraldtest.RedisClient(t, through))
	b := w.worker()
	w.begins(b, agent(1)).End()
	gate.Close()
	w.spends(b, agent(1), Calls, 90*time.Second)
	w.refused(b, agent(1))
	w.refused(b, agent(1))
	w.begins(b, agent(2)).End()

	gate.Open()
	heraldtest.Await(t, "Redis to answer", func() bool { return w.redis.Ping(t.Context()).Err() == nil })
	w.Advance(35 * time.Second) // 55 s are used
	w.spends(b, agent(1), Calls, time.Second)
	w.left(b, agent(1), 4)
	w.left(w.worker(), agent(1), 4)
}

// TestSlowAgentIsKnownAfterOutage: a worker that could not write an agent's usage writes it once Redis answers, without
// another charge. A worker whose attempt did not contact the agent reads the usage again at its next attempt.
func TestSlowAgentIsKnownAfterOutage(t *testing.T) {
	t.Parallel()
	gate, through := heraldtest.RedisGate(t, heraldtest.RealRedis(t))
	w := newWorld(t, heraldtest.RedisClient(t, through))
	measured, other := w.worker(), w.worker()
	gate.Close()
	w.spends(measured, agent(1), Calls, 25*time.Second)
	w.begins(other, agent(1)).End()

	gate.Open()
	heraldtest.Await(t, "Redis to answer", func() bool { return w.redis.Ping(t.Context()).Err() == nil })
	w.Advance(2 * awayFor)
	w.awaitReports(measured)
	h := w.begins(other, agent(1))
	defer h.End()
	heraldtest.Equal(t, "the other worker takes the agent for a costly one", h.Costly(), true)
}

// TestEmptiedRedis: after Redis lost its data, a worker reports its known usage with its next charge, without the
// refilled part.
func TestEmptiedRedis(t *testing.T) {
	t.Parallel()
	rdb := heraldtest.RedisClient(t, heraldtest.RealRedis(t))
	w := newWorld(t, rdb)
	b := w.worker()
	w.spends(b, agent(1), Calls, 40*time.Second)
	heraldtest.Must(t, rdb.FlushDB(t.Context()).Err())
	w.Advance(10 * time.Second)
	w.spends(b, agent(1), Calls, 2*time.Second)
	w.left(b, agent(1), 28)
	w.left(w.worker(), agent(1), 28)
}

// TestReportedEffort: effort that is charged during a report is not lost. Effort that was refilled while Redis was down
// is not reported, because it would be charged twice.
func TestReportedEffort(t *testing.T) {
	t.Parallel()
	w := newWorld(t, heraldtest.RedisClient(t, heraldtest.RealRedis(t)))
	b := w.worker()
	w.spends(b, agent(1), Calls, 500*time.Millisecond)
	b.mu.Lock()
	a := b.findAccount(agent(1))
	b.adoptShared(a, known{used: [kindCount]float64{Calls: 3e6}})
	b.mu.Unlock()
	w.left(b, agent(1), 56.5)

	b.mu.Lock()
	b.awayUntil = b.readClock() + 3600e6
	b.mu.Unlock()
	w.calls(b, agent(2), 60, 10*time.Second)
	w.left(b, agent(2), 50)
	w.calls(w.worker(), agent(2), 1, 2*time.Second) // used are 8 s unreported and 2 s reported
	b.mu.Lock()
	b.awayUntil = 0
	b.mu.Unlock()
	w.spends(b, agent(2), Calls, 20*time.Second)
	w.left(b, agent(2), 30)
}

// TestMetrics checks the seconds by purpose and the number of waiting agents.
func TestMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	b := w.worker()
	for n, took := range []time.Duration{10 * time.Second, 61 * time.Second, 70 * time.Second} {
		h := w.begins(b, agent(n))
		h.Spend(Calls, 1, took)
		h.Spend(Fetches, 1, time.Second)
		h.End()
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(b)
	got, err := reg.Gather()
	heraldtest.Must(t, err)
	values := map[string]float64{}
	for _, f := range got {
		for _, m := range f.Metric {
			label := ""
			for _, l := range m.Label {
				label = l.GetValue()
			}
			values[f.GetName()+" "+label] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{"herald_effort_seconds_total calls": 141, "herald_effort_seconds_total fetches": 3,
		"herald_effort_seconds_total connections": 0, "herald_agents_over_budget ": 2} {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s is %g (%v), want %g", name, got, ok, want)
		}
	}
}
