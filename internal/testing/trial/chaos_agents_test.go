//go:build chaos

package trial

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// These rows are about agents and load.

// story describes how an agent misbehaves, and the expected attempts.
type story struct {
	what   string
	first  Act
	reason string        // expected reason of the first attempt
	wait   time.Duration // expected wait before the second attempt
	spread float64       // tolerance of wait, as a fraction
}

const (
	// schedule is the first wait of HERALD_RETRY_SCHEDULE, jitter the fraction by which a wait may be shorter.
	schedule = time.Second
	jitter   = 0.2
	// promptly is the allowed delay of a second attempt: jitter, asynq's whole seconds, half a second of its poll
	// interval, and a busy machine.
	promptly = 4 * time.Second
)

// TestChaosAgents: agents hang, drip, reset the connection after reading, answer 500 or 429 with Retry-After, or die
// and come back. Each attempt has the right reason and wait, and in the end everything is delivered.
func TestChaosAgents(t *testing.T) {
	const each = 3 // fewer calls than an origin may have in flight
	stories := []story{
		{what: "hangs", first: Act{How: Hang}, reason: "outcome_unknown", wait: schedule, spread: jitter},
		{what: "drips", first: Act{How: Drip}, reason: "outcome_unknown", wait: schedule, spread: jitter},
		{what: "resets after reading", first: Act{How: Reset}, reason: "outcome_unknown", wait: schedule, spread: jitter},
		{what: "500", first: Act{How: Refuse, Status: 500}, reason: "server_error", wait: schedule, spread: jitter},
		{what: "503, Retry-After 6", first: Act{How: Refuse, Status: 503, RetryAfter: 6 * time.Second}, reason: "server_error", wait: 6 * time.Second},
		{what: "429, Retry-After 2", first: Act{How: Refuse, Status: 429, RetryAfter: 2 * time.Second}, reason: "rate_limited", wait: time.Minute},
		{what: "429, Retry-After 70", first: Act{How: Refuse, Status: 429, RetryAfter: 70 * time.Second}, reason: "rate_limited", wait: 70 * time.Second},
		{what: "dies during calls", first: Act{How: Hang}, reason: "outcome_unknown", wait: schedule, spread: jitter},
		{what: "is dead", reason: "connect_failed", wait: schedule, spread: jitter},
	}
	dies, dead := len(stories)-2, len(stories)-1
	r := newRow(t, "agents misbehave", len(stories))
	for i, s := range stories {
		r.agents.Behave(i, First(1, s.first))
	}
	r.agents.Down(dead)
	r.hire(2, 36) // enough for each worker to make all calls at once: three quarters of its slots are for newcomers
	ids := r.enqueue(each*len(stories), r.everyone()...)
	of := func(i int) (out []uuid.UUID) {
		for k := i; k < len(ids); k += len(stories) {
			out = append(out, ids[k])
		}
		return out
	}
	r.underWay(each*(len(stories)-1), 1)
	r.agents.Down(dies)
	r.must(r.agents.Up(dies))
	r.must(Until(r.within(20*time.Second), pollSlow, "two attempts at the dead agent to fail", func() (bool, error) {
		for _, id := range of(dead) {
			all, err := r.Attempts(r.ctx, id)
			if err != nil || len(all) < 2 || all[1].Outcome == "" {
				return false, err
			}
		}
		return true, nil
	}))
	r.must(r.agents.Up(dead))
	v := r.settle(2 * time.Minute)
	wrong := 0
	for i, s := range stories {
		for _, id := range of(i) {
			if err := r.follows(id, s); err != nil {
				wrong++
				t.Errorf("agent %s: %v", s.what, err)
			}
		}
	}
	r.figures.Add("behaviours", len(stories)).Add("wrong", wrong).Add("overlaps", v.calls.Overlaps())
	r.print()
}

// follows compares the attempts at a delivery with its agent's story.
func (r *row) follows(id uuid.UUID, s story) error {
	all, err := r.Attempts(r.ctx, id)
	if err != nil {
		return err
	}
	if len(all) < 2 {
		return fmt.Errorf("%d attempts: %+v", len(all), all)
	}
	if all[0].Outcome != "waiting" || all[0].Reason != s.reason {
		return fmt.Errorf("attempt 1 led to %s %s, want waiting %s", all[0].Outcome, all[0].Reason, s.reason)
	}
	least := time.Duration(float64(s.wait) * (1 - s.spread))
	most := time.Duration(float64(s.wait)*(1+s.spread)) + promptly
	waited := all[1].StartedAt.Sub(all[0].StartedAt.Add(all[0].Took))
	// Durations are stored in milliseconds. A task may be claimed a little before its time (store: clockTolerance).
	if waited < least-time.Second || waited > most {
		return fmt.Errorf("attempt 2 began %s after attempt 1 ended, want %s to %s", waited, least, most)
	}
	if last := all[len(all)-1]; last.Outcome != "delivered" {
		return fmt.Errorf("the last attempt led to %s %s", last.Outcome, last.Reason)
	}
	return nil
}

// TestChaosHangingAgents: two of 200 agents hang, and their calls could hold half of the workers' slots. The others'
// p75, from acceptance to the call, is at most 1.5 times the p75 without hanging agents.
func TestChaosHangingAgents(t *testing.T) {
	c := comparison{name: "1 % of agents hang", bad: []Behaviour{hanging, hanging}, of: func(bad ...Behaviour) load {
		return load{agents: 200, start: StartAgents, producers: 4, perSecond: 1, slots: 16, bad: bad}
	}}
	c.compare(t)
}

// TestChaosSilentOrigins: 64 agents with an origin each, twice as many as a worker has slots, accept calls and never
// answer. The events of an agent that has answered before are still delivered. Their p75, from acceptance to the call,
// is at most 1.5 times the p75 without the other agents.
func TestChaosSilentOrigins(t *testing.T) {
	const silent, events = 64, 50
	bad := make([]Behaviour, silent)
	for i := range bad {
		bad[i] = hanging
	}
	c := comparison{name: "64 silent origins", bad: bad, of: func(bad ...Behaviour) load {
		return load{agents: len(bad) + 1, start: StartAgents, producers: 1, perSecond: 20, slots: 32, bad: bad, standing: events}
	}}
	c.compare(t)
}

// comparison compares a load with and without bad agents.
type comparison struct {
	name  string
	of    func(bad ...Behaviour) load
	bad   []Behaviour
	check func(*testing.T, measuredLoad) // checks the measurement with bad agents
}

// compare runs two Heralds at the same time, one of them with the bad agents, and checks the ratio of their p75s. What
// else the machine does slows both of them alike. All calls of a Herald wait in the same queue, so a worker that waits
// for an agent raises the p75. One stall of a busy machine determines a p99.
//
// The measurement has parts, and the median of the parts' ratios counts.
func (c comparison) compare(t *testing.T) {
	const bound, parts = 1.5, 9
	var without, with measuredLoad
	var ready sync.WaitGroup
	ready.Add(2)
	t.Run("both", func(t *testing.T) {
		t.Run("all are well", func(t *testing.T) {
			t.Parallel()
			without = measureLoad(t, c.of(), &ready)
		})
		t.Run("some are not", func(t *testing.T) {
			t.Parallel()
			with = measureLoad(t, c.of(c.bad...), &ready)
			if c.check != nil {
				c.check(t, with)
			}
		})
	})
	if t.Failed() {
		return
	}
	ratios := make([]float64, parts)
	for i := range ratios {
		ratios[i] = float64(Quantile(with.part(i, parts), 0.75)) / float64(max(Quantile(without.part(i, parts), 0.75), 1))
	}
	slices.Sort(ratios)
	ratio := ratios[parts/2]
	all := [2][]time.Duration{without.part(0, 1), with.part(0, 1)}
	f := NewFigures("chaos", c.name).Add("agents", c.of().agents).Add("bad", len(c.bad)).Add("per_second_each", c.of().perSecond).
		Add("measured_without", len(all[0])).Add("measured_with", len(all[1]))
	for _, q := range []int{50, 75, 95, 99} {
		f.Add(fmt.Sprintf("p%d_without", q), Quantile(all[0], float64(q)/100)).Add(fmt.Sprintf("p%d_with", q), Quantile(all[1], float64(q)/100))
	}
	fmt.Println(f.Add("ratio", ratio).Add("lowest", ratios[0]).Add("highest", ratios[parts-1]).Add("failed_calls", with.failed))
	if ratio > bound {
		t.Errorf("the p75 of healthy agents is %.2f times its value without the others, want at most %.1f", ratio, bound)
	}
	if with.failed == 0 {
		t.Error("no call failed")
	}
}

func hanging(Call) Act { return Act{How: Hang} }

// load describes a steady load.
type load struct {
	agents    int
	start     func(n int) (*Agents, error)
	producers int
	perSecond float64     // events per agent
	slots     int         // slots of each of the two workers
	bad       []Behaviour // behaviour of the first agents; the others take 10 ms
	workers   []string    // environment of the workers
	watched   bool        // count waits for breakers; this reads all deliveries three times a second
	standing  int         // events of each bad agent from the beginning, after one event of each other agent; 0: all agents get the same
	met       bool        // every agent answers one event before the measurement
}

// measuredLoad is the result of a load.
type measuredLoad struct {
	from, to time.Time      // period of the measurement
	calls    []measuredCall // to healthy agents, of events accepted in that period
	failed   int            // calls of the bad agents that were not answered
	open     map[int]int    // how often each agent was seen waiting for a breaker
}

type measuredCall struct {
	accepted time.Time
	latency  time.Duration // from acceptance to the first call
}

// part returns the latencies of part i of n equal parts of the measurement.
func (m measuredLoad) part(i, n int) (latencies []time.Duration) {
	length := m.to.Sub(m.from) / time.Duration(n)
	from := m.from.Add(time.Duration(i) * length)
	for _, c := range m.calls {
		if !c.accepted.Before(from) && c.accepted.Before(from.Add(length)) {
			latencies = append(latencies, c.latency)
		}
	}
	return latencies
}

// measureLoad lets every agent receive events for a while, with its own Herald. It begins when each of the Heralds that
// ready counts is ready.
func measureLoad(t *testing.T, l load, ready *sync.WaitGroup) (m measuredLoad) {
	arrive := sync.OnceFunc(ready.Done)
	t.Cleanup(arrive) // the other Herald does not wait for one that failed
	warm, measured := 5*time.Second, 45*time.Second
	if l.standing > 0 {
		// The backlog is new. Until each connection has planned its statements and every newcomer has had a first
		// attempt, a worker has more work than later.
		warm = 15 * time.Second
	}
	r := newRowWith(t, "load", func() (*Agents, error) { return l.start(l.agents) })
	r.agents.BehaveAll(Taking(10 * time.Millisecond))
	for i, b := range l.bad {
		r.agents.Behave(i, b)
	}
	r.hire(2, l.slots, l.workers...)
	paced := r.everyone()
	if l.met {
		r.enqueue(l.agents, paced...)
		r.must(r.AwaitFinal(r.within(5 * time.Minute)))
	}
	if l.standing > 0 {
		paced = paced[len(l.bad):]
		r.enqueue(len(paced), paced...)
		r.must(r.AwaitFinal(r.within(time.Minute)))
		if len(l.bad) > 0 {
			r.enqueue(l.standing*len(l.bad), span(0, len(l.bad))...)
		}
	}
	arrive()
	ready.Wait()
	ctx := r.within(warm + measured + time.Minute)
	m.from = time.Now().Add(warm)
	m.to = m.from.Add(measured)
	var wg sync.WaitGroup
	watching, stop := context.WithCancel(ctx)
	defer stop()
	if l.watched {
		wg.Go(func() { m.open = r.watchBreakers(watching) })
	}
	var mu sync.Mutex
	var ids []uuid.UUID
	var enqueueing sync.WaitGroup
	for p := range l.producers {
		mine := paced[p*len(paced)/l.producers : (p+1)*len(paced)/l.producers]
		enqueueing.Go(func() {
			accepted, _, err := r.Enqueue(ctx, r.paced(ctx, mine, l.perSecond*float64(len(mine)), warm+measured))
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, accepted...)
			if err != nil {
				t.Error(err)
			}
		})
	}
	enqueueing.Wait()
	healthy := map[uuid.UUID]bool{}
	var rows map[uuid.UUID]Row
	behind := 0
	// If a healthy agent's first attempt took more than a second, because the machine was busy, its next deliveries wait
	// for the slots of slow agents.
	if err := Until(r.within(3*time.Minute), pollSlow, "the healthy agents' deliveries to end", func() (bool, error) {
		all, err := r.Rows(r.ctx)
		if err != nil {
			return false, err
		}
		rows, behind = all, 0
		for _, id := range ids {
			var number int
			if _, err := fmt.Sscan(rows[id].AgentID, &number); err != nil {
				return false, err
			}
			if number > len(l.bad) {
				healthy[id] = true
				if rows[id].Status != "delivered" {
					behind++
				}
			}
		}
		return behind == 0, nil
	}); err != nil {
		t.Errorf("%d of %d deliveries to healthy agents have not been delivered: %v", behind, len(healthy), err)
	}
	stop()
	wg.Wait()
	calls, err := r.agents.Calls()
	r.must(err)
	for _, c := range calls {
		if c.Agent < len(l.bad) && !c.Answered {
			m.failed++
		}
		if d := rows[c.Delivery]; c.Number == 1 && healthy[c.Delivery] && d.CreatedAt.After(m.from) && d.CreatedAt.Before(m.to) {
			m.calls = append(m.calls, measuredCall{d.CreatedAt, c.Begun.Sub(d.CreatedAt)})
		}
	}
	if want := int(l.perSecond * float64(l.agents-len(l.bad)) * measured.Seconds() * 0.9); len(m.calls) < want {
		t.Errorf("%d events were measured, want at least %d: the load did not come", len(m.calls), want)
	}
	return m
}

// watchBreakers counts, until ctx ends, how often deliveries of each agent are seen waiting for a breaker. Such a wait
// takes at least a second, so every wait is seen.
func (r *row) watchBreakers(ctx context.Context) map[int]int {
	seen := map[int]int{}
	ticker := time.NewTicker(300 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return seen
		case <-ticker.C:
		}
		rows, err := r.agentsWaitingFor(ctx, "breaker_open")
		if err != nil && ctx.Err() == nil {
			r.Error(err)
			return seen
		}
		for _, agent := range rows {
			seen[agent]++
		}
	}
}

// agentsWaitingFor returns the numbers of the agents that have deliveries waiting for that reason.
func (r *row) agentsWaitingFor(ctx context.Context, reason string) ([]int, error) {
	return Query(ctx, r.Site, pgx.RowTo[int],
		`SELECT DISTINCT agent_id::int - 1 FROM herald.deliveries WHERE status = 'waiting' AND reason = $1`, reason)
}

// paced returns lines at a steady rate for the duration d, rotating through the agents.
func (r *row) paced(ctx context.Context, agents []int, perSecond float64, d time.Duration) io.Reader {
	in, out := io.Pipe()
	stop := context.AfterFunc(ctx, func() { _ = in.CloseWithError(context.Cause(ctx)) })
	go func() {
		defer stop()
		began := time.Now()
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for sent := 0; time.Since(began) < d; <-ticker.C {
			due := int(time.Since(began).Seconds() * perSecond)
			var b strings.Builder
			for ; sent < due; sent++ {
				b.WriteString(r.lines(1, agents[sent%len(agents)]))
			}
			if _, err := io.WriteString(out, b.String()); err != nil {
				return
			}
		}
		_ = out.Close()
	}()
	return in
}

// TestChaosFlood: 10,000 events for one agent at once do not delay others. One event each for 99 other agents is
// delivered within 2 s.
func TestChaosFlood(t *testing.T) {
	const (
		flood  = 10000
		others = 99
		bound  = 2 * time.Second
	)
	r := newRow(t, "10,000 events for one agent", others+1)
	r.agents.BehaveAll(Taking(10 * time.Millisecond))
	r.agents.Behave(0, Taking(50*time.Millisecond)) // 80/s with four at a time, so that most of the flood remains while the others are served
	// The time of the flood's end is not tested, so afterwards it may be delivered as fast as possible.
	r.hire(2, 16, "HERALD_ENDPOINT_RATE=5000")
	r.enqueue(flood, 0)
	open, err := r.CountOpen(r.ctx)
	r.must(err)
	ids := r.enqueue(others, span(1, others+1)...)
	r.must(Until(r.within(30*time.Second), pollQuick, "the others to be delivered", func() (bool, error) {
		n := 0
		calls, err := r.agents.Calls()
		for _, c := range calls {
			if c.Agent > 0 && c.Answered {
				n++
			}
		}
		return n >= others, err
	}))
	r.agents.Behave(0, Taking(0))
	v := r.settle(150 * time.Second)
	var took []time.Duration
	for _, id := range ids {
		took = append(took, v.rows[id].FinishedAt.Sub(v.rows[id].CreatedAt))
	}
	slowest := Quantile(took, 1)
	r.figures.Add("flood_standing", open).Add("others", len(took)).Add("others_p50", Quantile(took, 0.5)).Add("others_slowest", slowest)
	r.print()
	if slowest > bound {
		t.Errorf("the slowest of the others took %s, want at most %s", slowest, bound)
	}
	if open < flood/2 {
		t.Errorf("only %d of the flood were left when the others came", open)
	}
	if v.tally > 0 {
		t.Errorf("%d calls were made twice", v.tally)
	}
}

// TestChaosProducers: eight producers enqueue the same 1,000 events, half of them in reverse order. There are 1,000
// calls.
func TestChaosProducers(t *testing.T) {
	const (
		producers = 8
		events    = 1000
	)
	r := newRow(t, "8 producers, the same events", 50)
	r.agents.BehaveAll(Taking(0))
	r.hire(2, 16)
	forward := slices.Collect(strings.Lines(r.lines(events, r.everyone()...)))
	backward := slices.Clone(forward)
	slices.Reverse(backward)
	ctx := r.within(time.Minute)
	var wg sync.WaitGroup
	var mu sync.Mutex
	knowns := 0
	for p := range producers {
		text := strings.Join([][]string{forward, backward}[p%2], "")
		wg.Go(func() {
			accepted, known, err := r.Enqueue(ctx, strings.NewReader(text))
			r.remember(accepted)
			mu.Lock()
			defer mu.Unlock()
			knowns += len(known)
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	v := r.settle(time.Minute)
	r.figures.Add("producers", producers).Add("known", knowns)
	r.print()
	if len(r.accepted) != events || knowns != (producers-1)*events {
		t.Errorf("%d events were accepted and %d known, want %d and %d", len(r.accepted), knowns, events, (producers-1)*events)
	}
	if len(v.calls) != events {
		t.Errorf("%d calls came for %d events", len(v.calls), events)
	}
}
