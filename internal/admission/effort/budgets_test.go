package effort

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/redis/go-redis/v9"
)

// TestReservations: running attempts count with their expected cost. A slow agent therefore has three at a time in a
// budget of 60 s, and one on average.
func TestReservations(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, rdb redis.Cmdable) {
		w := newWorld(t, rdb)
		b, slow := w.worker(), agent(1)
		w.calls(b, slow, 1, 25*time.Second)
		w.Advance(time.Minute)
		w.left(b, slow, 60)
		held := []*Hold{w.begins(b, slow), w.begins(b, slow), w.begins(b, slow)}
		over := w.refused(b, slow)
		heraldtest.Equal(t, "the wait", over.Wait, 15*time.Second) // 75 s of 60 s are reserved
		heraldtest.Contains(t, "the refusal", over.Text, "of 60 s of worker time a minute, 0 s are used (nothing yet)",
			"75 s more are reserved for 3 under way", "waits until "+w.Now().Add(over.Wait).UTC().Format("15:04:05 UTC")+" (15s)")
		// The next delivery returns when the previous one is paid for, not together with it.
		heraldtest.Equal(t, "the wait of the next", w.refused(b, slow).Wait, 40*time.Second)
		w.begins(b, agent(2)) // the effort of one agent does not affect another

		for _, h := range held {
			h.Reach()
		}
		w.Advance(25 * time.Second)
		for _, h := range held {
			h.Spend(Calls, 1, 25*time.Second)
			h.End()
			h.End()
		}
		w.awaitReports(b)
		w.left(b, slow, -15) // the actual cost is charged, also if less was left
		heraldtest.Contains(t, "the refusal", w.refused(b, slow).Text, "75 s are used (calls 75 s)")
		begun := 0
		for range 600 {
			if h, err := b.Begin(t.Context(), slow); err == nil {
				begun++
				w.Advance(time.Second)
				h.Spend(Calls, 1, 25*time.Second)
				h.End()
			} else {
				w.Advance(time.Second)
			}
			w.awaitReports(b)
		}
		if begun < 23 || begun > 25 {
			t.Errorf("%d calls of 25 s in 600 s", begun)
		}
	})
}

// TestRunningAttemptCountsItsTime: an attempt that takes longer than expected reserves the time since it began.
func TestRunningAttemptCountsItsTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	b, quick := w.worker(), agent(1)
	w.calls(b, quick, 4, 10*time.Millisecond)
	h := w.begins(b, quick)
	heraldtest.Equal(t, "an agent that takes 10 ms is costly", h.Costly(), false)
	w.Advance(2 * time.Second)
	heraldtest.Equal(t, "a wait before the agent was asked makes it costly", w.begins(b, quick).Costly(), false)
	h.Reach()
	w.Advance(1100 * time.Millisecond)
	heraldtest.Equal(t, "an agent that has been silent for a second is costly", w.begins(b, quick).Costly(), true)
	w.Advance(59 * time.Second)
	w.refused(b, quick)
}

// TestCostly: an agent is costly if its calls take long, or if it has used half of its budget.
func TestCostly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	b := w.worker()
	costly := func(n int) bool {
		h := w.begins(b, agent(n))
		defer h.End()
		return h.Costly()
	}
	w.calls(b, agent(1), 1, 1100*time.Millisecond)
	w.calls(b, agent(2), 40, 900*time.Millisecond)
	heraldtest.Equal(t, "costly after 1.1 s and after 0.9 s", []bool{costly(1), costly(2)}, []bool{true, false})
	// Half of the budget, in several attempts.
	for range 34 {
		w.spends(b, agent(2), Calls, 900*time.Millisecond)
	}
	heraldtest.Equal(t, "an agent that used half of its budget is costly", costly(2), true)
	// After one long call and some quick ones, the agent is quick again.
	w.calls(b, agent(3), 8, 10*time.Millisecond)
	w.calls(b, agent(3), 1, 25*time.Second)
	w.Advance(time.Minute)
	heraldtest.Equal(t, "costly after a call of 25 s", costly(3), true)
	w.calls(b, agent(3), 7, 10*time.Millisecond)
	heraldtest.Equal(t, "costly after seven quick calls", costly(3), false)
	// The duration of fetches for clients does not make the agent costly.
	for range 3 {
		h := w.begins(b, agent(4))
		h.Spend(Fetches, 1, 5*time.Second)
		h.Spend(Calls, 1, time.Millisecond)
		h.End()
	}
	heraldtest.Equal(t, "costly after files", costly(4), false)
}

// fetches makes an attempt a second for 1000 s. None is refused. Each fetches a file for 15 s, if the budget allows it,
// and makes a call. It returns the duration of the fetches.
func (w *world) fetches(b *Budgets, of erc8004.Agent, what What, call func(*Hold)) (fetched time.Duration) {
	w.Helper()
	for range 1000 {
		h := w.begins(b, of)
		if h.CheckFiles(what) == nil {
			h.Spend(what, 1, 15*time.Second)
			fetched += 15 * time.Second
		}
		call(h)
		h.End()
		w.Advance(time.Second)
	}
	return fetched
}

// TestFilesUseHalfTheBudget: the files that feedback names delay only deliveries with files.
func TestFilesUseHalfTheBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	b, victim := w.worker(), agent(1)
	fetched := w.fetches(b, victim, Fetches, func(h *Hold) { h.Spend(Calls, 1, 10*time.Millisecond) })
	if fetched < 900*time.Second || fetched > 1100*time.Second {
		t.Errorf("%s of files in 1000 s", fetched)
	}
	w.spends(b, victim, Fetches, time.Minute)
	heraldtest.Must(t, w.begins(newWorld(t, nil).worker(), victim).CheckFiles(Fetches))
}

// TestFilesOfResponses: the files of responses use an eighth of the budget at most, so that files of feedback can use
// the rest of their part.
func TestFilesOfResponses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	fetched := w.fetches(w.worker(), agent(1), ResponseFetches, func(h *Hold) {
		heraldtest.Must(t, h.CheckFiles(Fetches))
		h.Spend(Fetches, 1, 10*time.Millisecond)
	})
	if fetched > 1100*time.Second {
		t.Errorf("%s of files of responses in 1000 s", fetched)
	}
}

// TestPrices: quick operations have a minimum price, which is charged once per operation.
func TestPrices(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	b := w.worker()
	h := w.begins(b, agent(1))
	h.Spend(Calls, 1, 500*time.Millisecond)
	h.Spend(Connections, 2, time.Millisecond)
	h.Spend(Listings, 0, 0)
	h.Spend(Listings, 0, 300*time.Millisecond) // another attempt's listing, for which this one waited
	h.Spend(Fetches, 1, 0)
	h.End()
	got := *b.Usage(t.Context(), agent(1))
	want := Usage{Budget: 60, Left: 60 - 0.901, Calls: 0.5, Connections: 0.1, Listings: 0.3, Fetches: 0.001, Mean: 0.9}
	heraldtest.Equal(t, "the result", got, want)
	heraldtest.Equal(t, "the text", got.String(), "59.1 s left of 60 s a minute; used: calls 0.5 s, listings 0.3 s, connections 0.1 s, "+
		"fetches 0 s; an attempt takes 0.9 s")
}

// TestWorkersTogether: in any interleaving, workers that share a Redis together spend at most the budget, the running
// attempts, and the sixtieth that each may leave unreported.
func TestWorkersTogether(t *testing.T) {
	t.Parallel()
	heraldtest.EachRedis(t, func(t *testing.T, url string) {
		rdb := heraldtest.RedisClient(t, url)
		for seed := range 10 {
			playWorkers(t, rdb, seed)
		}
	})
}

type underWay struct {
	*Hold
	worker *Budgets
	took   time.Duration
	end    time.Time
}

func playWorkers(t *testing.T, rdb redis.Cmdable, seed int) {
	r := rand.New(rand.NewPCG(uint64(seed), 2))
	w := newWorld(t, rdb)
	workers := []*Budgets{w.worker(), w.worker(), w.worker()}
	const each, longest = 4, 20 * time.Second
	began, spent := w.Now(), time.Duration(0)
	var running []underWay
	for range 400 {
		w.Advance(time.Duration(r.Int64N(int64(time.Second))))
		b := workers[r.IntN(len(workers))]
		if len(running) < each*len(workers) {
			if h, err := b.Begin(t.Context(), agent(seed)); err == nil {
				h.Reach()
				took := time.Duration(r.Int64N(int64(longest)))
				running = append(running, underWay{h, b, took, w.Now().Add(took)})
			}
		}
		for i := 0; i < len(running); i++ {
			if u := running[i]; !w.Now().Before(u.end) {
				u.Spend(Calls, 1, u.took)
				u.End()
				w.awaitReports(u.worker)
				spent += u.took
				running = append(running[:i], running[i+1:]...)
				i--
			}
		}
		// Each worker may have begun its maximum of attempts before it learned of the others' spending.
		most := time.Minute + w.Now().Sub(began) + time.Duration(len(workers))*(each*longest+time.Second)
		if spent > most {
			t.Fatalf("seed %d: %s were spent in %s", seed, spent, w.Now().Sub(began))
		}
	}
	if least := w.Now().Sub(began) / 2; spent < least {
		t.Errorf("seed %d: only %s were spent in %s", seed, spent, w.Now().Sub(began))
	}
}
