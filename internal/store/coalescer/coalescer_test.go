package coalescer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// ledger provides a coalescer's flush and single functions. Request q is answered with 10 q, or with -q if it was made
// alone. A flight takes as long as the test's functions block.
type ledger struct {
	*Coalescer[int, int]
	mu      sync.Mutex
	flights [][]int // in the order in which they began; one request: made alone
	flush   func(ctx context.Context, group []int) ([]Result[int], error)
	single  func(ctx context.Context, q int) (int, error)
}

func newLedger(cfg Config[int, int]) *ledger {
	l := &ledger{flush: func(_ context.Context, group []int) ([]Result[int], error) { return answerAll(group), nil },
		single: func(_ context.Context, q int) (int, error) { return -q, nil }}
	cfg.Flush = func(ctx context.Context, group []int) ([]Result[int], error) {
		l.note(group...)
		return l.flush(ctx, group)
	}
	cfg.Single = func(ctx context.Context, q int) (int, error) {
		l.note(q)
		return l.single(ctx, q)
	}
	l.Coalescer = New(cfg)
	return l
}

func answerAll(group []int) []Result[int] {
	results := make([]Result[int], len(group))
	for i, q := range group {
		results[i] = Result[int]{Answer: 10 * q, Answered: true}
	}
	return results
}

func (l *ledger) note(group ...int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flights = append(l.flights, group)
}

func (l *ledger) noted() [][]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.flights)
}

// asked is a caller's request and its result.
type asked struct {
	answer int
	err    error
	done   chan struct{}
}

// ask makes a request in the background, and returns as soon as the request waits or has ended.
func (l *ledger) ask(ctx context.Context, q int) *asked {
	a := &asked{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.answer, a.err = l.Do(ctx, q)
	}()
	synctest.Wait()
	return a
}

func (a *asked) want(t *testing.T, answer int, err error) {
	t.Helper()
	<-a.done
	if a.answer != answer || !errors.Is(a.err, err) {
		t.Errorf("answered %d, %v; want %d, %v", a.answer, a.err, answer, err)
	}
}

func (a *asked) waits(t *testing.T) {
	t.Helper()
	select {
	case <-a.done:
		t.Errorf("answered %d, %v, and should wait", a.answer, a.err)
	default:
	}
}

// block makes the first request of a coalescer, which stays under way until release is called.
func (l *ledger) block(t *testing.T, q int) (release func()) {
	t.Helper()
	gate, single := make(chan struct{}), l.single
	l.single = func(ctx context.Context, got int) (int, error) {
		if got == q {
			<-gate
		}
		return single(ctx, got)
	}
	a := l.ask(t.Context(), q)
	a.waits(t)
	return func() {
		close(gate)
		a.want(t, -q, nil)
		synctest.Wait()
	}
}

func TestCoalescerMakesOneRequestAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(Config[int, int]{})
		began := time.Now()
		for q := range 3 {
			l.ask(t.Context(), q).want(t, -q, nil)
		}
		heraldtest.Equal(t, "what was under way", l.noted(), [][]int{{0}, {1}, {2}})
		heraldtest.Equal(t, "an idle coalescer waited", time.Since(began), 0)
	})
}

func TestCoalescerGroupsWaitingRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(Config[int, int]{Flights: 1, Max: 3})
		release := l.block(t, 1)
		var waiting []*asked
		for q := 2; q <= 6; q++ {
			waiting = append(waiting, l.ask(t.Context(), q))
		}
		heraldtest.Equal(t, "what is under way", l.noted(), [][]int{{1}})

		release()
		for i, a := range waiting {
			a.want(t, 10*(i+2), nil)
		}
		heraldtest.Equal(t, "what was under way", l.noted(), [][]int{{1}, {2, 3, 4}, {5, 6}})
		heraldtest.Equal(t, "what was counted", l.Stats(), Stats{Groups: 2, Grouped: 5})
	})
}

func TestCoalescerHasSoManyFlights(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(Config[int, int]{Flights: 2})
		first := l.block(t, 1)
		second := l.block(t, 2)
		third, fourth := l.ask(t.Context(), 3), l.ask(t.Context(), 4)
		third.waits(t)
		second() // while the first is still under way
		third.want(t, 30, nil)
		fourth.want(t, 40, nil)
		first()
		heraldtest.Equal(t, "what was under way", l.noted(), [][]int{{1}, {2}, {3, 4}})
	})
}

func TestCoalescerCallerGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(Config[int, int]{Flights: 1})
		release := l.block(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		second, third, fourth := l.ask(t.Context(), 2), l.ask(ctx, 3), l.ask(t.Context(), 4)
		cancel()
		third.want(t, 0, context.Canceled)
		release()
		second.want(t, 20, nil)
		fourth.want(t, 40, nil)
		heraldtest.Equal(t, "what was under way", l.noted(), [][]int{{1}, {2, 4}})
	})
}

// TestCoalescerGroupIgnoresCancellation: a member of a group that is under way gets its result even after its context
// has ended, leader or not. The flush does not see that context.
func TestCoalescerGroupIgnoresCancellation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(Config[int, int]{Flights: 1})
		gate := make(chan struct{})
		l.flush = func(ctx context.Context, group []int) ([]Result[int], error) {
			<-gate
			return answerAll(group), ctx.Err()
		}
		release := l.block(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		leader, member, other := l.ask(ctx, 2), l.ask(ctx, 3), l.ask(t.Context(), 4)
		release()
		cancel()
		synctest.Wait()
		leader.waits(t)
		member.waits(t)
		close(gate)
		leader.want(t, 20, nil)
		member.want(t, 30, nil)
		other.want(t, 40, nil)
	})
}

func TestCoalescerTriesAlone(t *testing.T) {
	t.Parallel()
	failed, refused := errors.New("deadlock detected"), errors.New("refused")
	for name, tt := range map[string]struct {
		flush func(ctx context.Context, group []int) ([]Result[int], error)
		want  [3]int
		err   error // of the second request
		count Stats
	}{
		"a group that failed, whatever it says beside that": {func(_ context.Context, group []int) ([]Result[int], error) {
			return answerAll(group), failed
		}, [3]int{-2, -3, -4}, nil, Stats{1, 3, 1}},
		"what is missing from the answer": {func(_ context.Context, group []int) ([]Result[int], error) {
			results := answerAll(group)
			results[1].Answered = false
			return results, nil
		}, [3]int{20, -3, 40}, nil, Stats{1, 3, 0}},
		"nothing when a request's own error is the answer": {func(_ context.Context, group []int) ([]Result[int], error) {
			results := answerAll(group)
			results[1] = Result[int]{Err: refused, Answered: true}
			return results, nil
		}, [3]int{20, 0, 40}, refused, Stats{1, 3, 0}},
		"an answer that is too short": {func(_ context.Context, group []int) ([]Result[int], error) {
			return answerAll(group)[:1], nil
		}, [3]int{20, -3, -4}, nil, Stats{1, 3, 0}},
		"a flush that ends with its time": {func(ctx context.Context, group []int) ([]Result[int], error) {
			<-ctx.Done()
			return answerAll(group), ctx.Err()
		}, [3]int{-2, -3, -4}, nil, Stats{1, 3, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(Config[int, int]{Flights: 1})
				l.flush = tt.flush
				release := l.block(t, 1)
				waiting := []*asked{l.ask(t.Context(), 2), l.ask(t.Context(), 3), l.ask(t.Context(), 4)}
				release()
				waiting[0].want(t, tt.want[0], nil)
				waiting[1].want(t, tt.want[1], tt.err)
				waiting[2].want(t, tt.want[2], nil)
				heraldtest.Equal(t, "what was counted", l.Stats(), tt.count)
			})
		})
	}
}

// TestCoalescerTriesAloneWithTheCallersContext: a caller that gives up while its group fails gets its own context's
// error.
func TestCoalescerTriesAloneWithTheCallersContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(Config[int, int]{Flights: 1})
		l.flush = func(ctx context.Context, _ []int) ([]Result[int], error) { <-ctx.Done(); return nil, ctx.Err() }
		l.single = func(ctx context.Context, q int) (int, error) { return -q, ctx.Err() }
		release := l.block(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		gone, stays := l.ask(ctx, 2), l.ask(t.Context(), 3)
		release()
		cancel()
		gone.want(t, -2, context.Canceled)
		stays.want(t, -3, nil)
	})
}

// TestCoalescerGoesOnBesideAStall: a stalled flight, of a group or of one request, delays other requests for the stall
// time at most.
func TestCoalescerGoesOnBesideAStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(Config[int, int]{Flights: 2, Stall: time.Second, Timeout: time.Minute})
		stall := func(ctx context.Context) { <-ctx.Done() }
		l.flush = func(ctx context.Context, group []int) ([]Result[int], error) {
			if slices.Contains(group, 3) {
				stall(ctx)
			}
			return answerAll(group), ctx.Err()
		}
		first, second := l.block(t, 1), l.block(t, 2)
		began := time.Now()
		stalled, with := l.ask(t.Context(), 3), l.ask(t.Context(), 4)
		<-time.After(time.Second) // by the bubble's clock: the two single flights no longer count, so the group begins
		synctest.Wait()
		l.ask(t.Context(), 5).want(t, -5, nil) // concurrently with the group
		again := l.block(t, 6)
		last, beside := l.ask(t.Context(), 7), l.ask(t.Context(), 8)
		last.waits(t)
		last.want(t, 70, nil)
		beside.want(t, 80, nil)
		heraldtest.Equal(t, "the time of the request after a stall", time.Since(began), 2*time.Second)
		stalled.waits(t)
		stalled.want(t, -3, nil)
		with.want(t, -4, nil)
		heraldtest.Equal(t, "a flush had", time.Since(began), time.Second+time.Minute)
		first()
		second()
		again()
		if l.active != 0 || len(l.queue) != 0 {
			t.Errorf("%d flights and %d requests are left", l.active, len(l.queue))
		}
	})
}

// TestCoalescerPanics: a panic reaches the caller that leads the group. The other members are tried alone.
func TestCoalescerPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(Config[int, int]{Flights: 1})
		l.flush = func(context.Context, []int) ([]Result[int], error) { panic("a bug") }
		release := l.block(t, 1)
		var caught any
		leads := make(chan struct{})
		go func() {
			defer close(leads)
			defer func() { caught = recover() }()
			_, _ = l.Do(t.Context(), 2)
		}()
		synctest.Wait()
		member := l.ask(t.Context(), 3)
		release()
		<-leads
		heraldtest.Equal(t, "the leader caught", caught, "a bug")
		member.want(t, -3, nil)
		l.ask(t.Context(), 4).want(t, -4, nil)
		l.Close()
	})
}

func TestCoalescerCloseWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(Config[int, int]{Flights: 1})
		release := l.block(t, 1)
		second, third := l.ask(t.Context(), 2), l.ask(t.Context(), 3)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			l.Close()
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed with requests under way")
		default:
		}
		l.ask(t.Context(), 4).want(t, -4, nil) // a new request is made alone
		release()
		second.want(t, 20, nil)
		third.want(t, 30, nil)
		<-closed
	})
}

// TestCoalescerAnswersEachRequestOnce: with random failures, stalls and cancellations, each request gets one answer,
// its own. A request that a flush has answered is not made again.
func TestCoalescerAnswersEachRequestOnce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { runRandomly(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func runRandomly(t *testing.T, random *rand.Rand) {
	var mu sync.Mutex
	roll := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	const requests = 300
	var committed [requests]atomic.Int32 // how often the ledger answered a request
	answer := func(q int) int { committed[q].Add(1); return q }
	limit, flights := 1+roll(20), 1+roll(3)
	var most atomic.Int32

	l := newLedger(Config[int, int]{Max: limit, Flights: flights, Stall: time.Duration(1+roll(50)) * time.Millisecond,
		Timeout: time.Duration(1+roll(100)) * time.Millisecond, Min: 1 + roll(2)})
	l.flush = func(ctx context.Context, group []int) ([]Result[int], error) {
		if n := int32(len(group)); n > most.Load() {
			most.Store(n)
		}
		select {
		case <-time.After(time.Duration(roll(60)) * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if roll(10) == 0 {
			return nil, errors.New("deadlock detected")
		}
		results := make([]Result[int], len(group))
		for i, q := range group {
			if roll(5) > 0 {
				results[i] = Result[int]{Answer: answer(q), Answered: true}
			}
		}
		return results, nil
	}
	l.single = func(ctx context.Context, q int) (int, error) {
		select {
		case <-time.After(time.Duration(roll(30)) * time.Millisecond):
			return answer(q), nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}

	var all sync.WaitGroup
	for q := range requests {
		all.Go(func() {
			<-time.After(time.Duration(roll(1000)) * time.Millisecond)
			ctx, cancel := t.Context(), func() {}
			if roll(4) == 0 {
				ctx, cancel = context.WithTimeout(ctx, time.Duration(roll(50))*time.Millisecond)
			}
			defer cancel()
			got, err := l.Do(ctx, q)
			switch times := committed[q].Load(); {
			case err != nil && (times != 0 || ctx.Err() == nil):
				t.Errorf("request %d was committed %d times, and its caller got %v", q, times, err)
			case err == nil && (got != q || times != 1):
				t.Errorf("request %d was committed %d times and answered with %d", q, times, got)
			}
		})
	}
	all.Wait()
	l.Close()
	if l.active != 0 || len(l.queue) != 0 || int(most.Load()) > limit {
		t.Errorf("%d flights and %d requests are left; the largest group had %d of %d", l.active, len(l.queue), most.Load(), limit)
	}
}
