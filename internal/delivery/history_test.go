package delivery

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/agentherald/herald/internal/secret"
	"github.com/prometheus/client_golang/prometheus"
)

// oneSeed runs one history alone, as HERALD_HISTORY_SEED does:
//
//	GOMAXPROCS=1 go test ./internal/delivery -run 'TestHistories$' -v -seed 4711
//
// On one processor the same seed tells the same story but for a few who look at the same instant; on more it is mostly so.
var oneSeed = flag.Uint64("seed", 0, "the seed of the one history to run")

// histories is the number of fresh histories: HERALD_HISTORIES, or none. make soak runs thousands.
func histories(t *testing.T) int {
	text := os.Getenv("HERALD_HISTORIES")
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("HERALD_HISTORIES is %q, not a number", text)
	}
	return n
}

func seedAlone(t *testing.T) uint64 {
	if text := os.Getenv("HERALD_HISTORY_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("HERALD_HISTORY_SEED is %q, not a number", text)
		}
		return n
	}
	return *oneSeed
}

// lab is what histories share.
type lab struct {
	metrics *Metrics
	keys    *secret.Keyset

	mu     sync.Mutex
	told   int            // histories
	counts map[string]int // histories in which it happened
}

func newLab() *lab {
	return &lab{metrics: must(NewMetrics(prometheus.NewRegistry())), keys: must(secret.Create()), counts: map[string]int{}}
}

// one runs a history in a bubble and returns it.
func (l *lab) one(t *testing.T, seed uint64, planted fault) (h *history) {
	synctest.Test(t, func(t *testing.T) {
		h = newHistory(seed, bubble, planted, l.metrics, l.keys)
		h.ground = h.memory()
		h.run()
	})
	l.add(h)
	return h
}

func (l *lab) add(h *history) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told++
	for what := range h.counts {
		l.counts[what]++
	}
}

// missing is what must happen and did not.
func (l *lab) missing() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(mustHappen), func(what string) bool { return l.counts[what] > 0 })
}

// happened is a table of what the histories met.
func (l *lab) happened() (table string) {
	for _, what := range slices.Sorted(maps.Keys(l.counts)) {
		table += fmt.Sprintf("%7d  %s\n", l.counts[what], what)
	}
	return table
}

// TestHistories drives the real executor, runner, dispatcher and reconciler of several processes through histories in which processes
// die, freeze and stop, Postgres and Redis go away, freeze, lose answers and data, and agents behave as agents do. In each:
// everything ends; attempts stay within their budget; nothing is called without a claim, or with less of its lease left than
// the call may take; no two calls run at once for one delivery unless a process slept past its lease; nothing is asked again
// whose result is known; no agent has more than eight dispatched;
// of one client's deliveries no two calls run at once, and none goes before an earlier one that is known and has not had its time.
func TestHistories(t *testing.T) {
	t.Parallel()
	l := newLab()
	if seed := seedAlone(t); seed != 0 {
		h := l.one(t, seed, none)
		if t.Log(h.story()); len(h.broken) > 0 {
			t.Errorf("seed %d: %d violations", seed, len(h.broken))
		}
		return
	}
	seeds := append(readSeeds(t)[none], seedsFrom(1, 40)...)
	if n := histories(t); n > 0 {
		seeds = freshSeeds(t, n)
	}
	l.all(t, seeds)
	if missing := l.missing(); len(missing) > 0 && !t.Failed() {
		// One seed tells not quite the same story on every machine.
		t.Logf("the known histories miss %q: looking for them in others", missing)
		for from := uint64(1); from < mostSearched && len(l.missing()) > 0 && !t.Failed(); from += searchedAtOnce {
			l.all(t, seedsFrom(from, searchedAtOnce))
		}
	}
	t.Logf("%d histories; in how many of them it happened:\n%s", l.told, l.happened())
	for _, what := range l.missing() {
		if !t.Failed() {
			t.Errorf("in none of the histories: %s", what)
		}
	}
}

// all runs histories, many of them on all processors. It stops after three that were violated.
func (l *lab) all(t *testing.T, seeds []uint64) {
	var next, failed atomic.Int64
	processors := 1
	if len(seeds) > 2*searchedAtOnce {
		processors = runtime.GOMAXPROCS(0)
	}
	t.Run("all", func(t *testing.T) {
		for range processors {
			t.Run("", func(t *testing.T) {
				if processors > 1 {
					t.Parallel()
				}
				for i := next.Add(1) - 1; i < int64(len(seeds)) && failed.Load() < 3; i = next.Add(1) - 1 {
					if h := l.one(t, seeds[i], none); len(h.broken) > 0 {
						failed.Add(1)
						t.Errorf("seed %d (alone: GOMAXPROCS=1 HERALD_HISTORY_SEED=%d)\n%s", seeds[i], seeds[i], h.story())
					}
				}
			})
		}
	})
}

// mustHappen is what the histories have to meet, or they show nothing.
var mustHappen = []string{
	"killed during a call", "stopped in order", "process frozen", "process without Postgres",
	"Postgres down", "Postgres frozen", "Redis down", "Redis frozen", "Redis emptied", "Redis away with Postgres", "power cut",
	"answer of Postgres lost", "frozen Postgres did it later", "lease ran out", "lease extended", "task replaced",
	"task recovered by asynq", "asynq lease lost", "acknowledgement lost", "task put back at shutdown",
	"went ahead of one that had its time", "dispatched by followers",
	"dispatched by lost before", "dispatched by due", "dispatched by backlog",
	"outcome kept in Redis", "outcome adopted", "Redis does not tell", "late success", "late outcome refused",
	"two calls at once, one had slept", "called again", "limited",
	"replayed", "cancelled", "reason held_unknown", "reason auth_required", "reason outcome_unknown",
	"recorded dead", "ended delivered", "ended dead", "ended rejected", "ended cancelled",
}

// TestHistoriesNotice: with a protection switched off, the histories find out.
func TestHistoriesNotice(t *testing.T) {
	t.Parallel()
	known := readSeeds(t)
	for _, planted := range faults {
		t.Run(string(planted), func(t *testing.T) {
			t.Parallel()
			l := newLab()
			for _, seed := range append(slices.Clone(known[planted]), seedsFrom(1, 500)...) {
				if h := l.one(t, seed, planted); len(h.broken) > 0 {
					t.Logf("history %d shows it: %s", seed, h.broken[0])
					return
				}
			}
			t.Errorf("%d histories do not show it", l.told)
		})
	}
}

// faults are the protections that can be switched off.
var faults = []fault{noFence, hastyLeases, forgetfulResults, noHistory, endlessBudget, blindReconciler, noGrace, noOrder}
