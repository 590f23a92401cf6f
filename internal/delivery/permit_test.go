package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// newLimiter returns a limiter whose permits last for a minute.
func newLimiter(t testing.TB, cfg ratelimit.Config) *ratelimit.Limiter {
	cfg.PermitTTL = time.Minute
	l := must(ratelimit.New(cfg))
	t.Cleanup(l.Close)
	return l
}

// TestLimitsOfAnOrigin: deliveries that exceed an origin's limits wait at no cost, and the agent's other deliveries are
// not dispatched in their place.
func TestLimitsOfAnOrigin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	// limited returns a worker with limits of its own.
	limited := func(t *testing.T, w *world, cfg ratelimit.Config) *worker {
		cfg.MaxWait = time.Millisecond
		return w.newWorker(limitOrigins(newLimiter(t, cfg), nil))
	}
	waits := func(t *testing.T, w *world, id uuid.UUID, why outcome.Reason) {
		t.Helper()
		heraldtest.Equal(t, "the history", len(w.shows(id, outcome.Waiting, why, 0).History), 0)
	}

	w.run(t, "calls in flight", func(t *testing.T, w *world) {
		begun, finish := make(chan bool, 1), make(chan bool)
		a := newAgent(t, silentUntil(begun, finish))
		k := limited(t, w, ratelimit.Config{Inflight: 1})
		first, second := w.dispatchTo(a.URL), w.dispatchTo(a.URL) // two agents of one origin
		done := k.goDeliver(first, 1)
		heraldtest.Receive(t, "the call", begun)
		k.mustDeliver(second, 1, "waiting agent_busy")
		waits(t, w, second, "agent_busy")
		close(finish)
		heraldtest.Equal(t, "the note", heraldtest.Receive(t, "the end", done), "")
		w.due(second)
		k.mustDeliver(second, 1, "")
	})

	w.run(t, "the agent's line stays in Postgres", func(t *testing.T, w *world) {
		a := newAgent(t)
		k := limited(t, w, ratelimit.Config{Rate: 0.01, Burst: 1})
		k.mustDeliver(w.dispatchTo(a.URL), 1, "")
		agent := w.register(at(a.URL))
		var last ledger.Delivery
		for range ledger.MaxDispatchedPerAgent + 2 {
			last = w.row(w.accept(w.feedback(agent)))
		}
		if last.Dispatch != 0 {
			t.Fatalf("the last one is dispatched: %d", last.Dispatch)
		}
		first := must(records.New(w.store).Deliveries(t.Context(), records.Filter{ChainID: &last.ChainID, AgentID: last.AgentID, Statuses: []outcome.Status{outcome.Queued}, Limit: 100}))
		k.mustDeliver(first[len(first)-1].ID, 1, "waiting throttled")
		waits(t, w, first[len(first)-1].ID, "throttled")
		heraldtest.Equal(t, "dispatches of the next delivery, which would wait too", w.row(first[1].ID).Dispatch, 0)
	})
}

// TestFaultQuotesNoAnswer: all callers of an endpoint see the text of its breaker. So the text does not contain an answer
// to one of them.
func TestFaultQuotesNoAnswer(t *testing.T) {
	t.Parallel()
	quoted := errors.New("no route for Bearer hidden-token")
	moved := outcome.Fail(outcome.ConnectFailed, "the agent moved to https://new.example; at its former endpoint, "+quoted.Error())
	for _, c := range []struct {
		want string
		err  error
	}{
		{"connect_failed", &mcpcall.CallError{Stage: mcpcall.StageOpen, Status: http.StatusNotFound, Err: quoted}},
		{"connect_failed", &mcpcall.CallError{Stage: mcpcall.StageList, Err: fmt.Errorf("%w: %w", mcpcall.ErrSessionGone, quoted)}},
		{"connect_failed", moved}, // checkMove
		{"connect_failed", &mcpcall.CallError{Stage: mcpcall.StageOpen, Code: -32600, Err: fmt.Errorf("%w: %w", mcpcall.ErrOccupied, quoted)}},
		{"connect_failed", &mcpcall.CallError{Stage: mcpcall.StageOpen, Err: &mcpcall.BadAnswerError{Why: quoted.Error()}}},
		{"server_error", &mcpcall.CallError{Stage: mcpcall.StageOpen, Status: http.StatusBadGateway, Err: quoted}},
		{"connecting to the agent: connection refused", &mcpcall.CallError{Stage: mcpcall.StageOpen, Err: errors.New("connection refused")}},
	} {
		heraldtest.Equal(t, "the fault", describeFault(c.err), c.want)
	}
}

// TestUnboundAgentsShare: agents that are not bound to the endpoint by its domain share one small bucket per origin,
// with any claims of theirs. So do jobs that name an endpoint. Bound agents do not wait for it and lose nothing to it.
func TestUnboundAgentsShare(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bucket := func(t *testing.T, cfg ratelimit.Config) *ratelimit.Limiter {
		cfg.MaxWait = time.Millisecond
		return newLimiter(t, cfg)
	}
	// names lists agents as registrations and domains do.
	names := func(w *world, agents ...*big.Int) []any {
		var list []any
		for _, id := range agents {
			list = append(list, map[string]any{"agentId": id, "agentRegistry": fmt.Sprintf("eip155:%d:%s", w.net.ChainID(), w.net.Deployment().Identity)})
		}
		return list
	}
	// mint registers an agent whose registration claims url.
	mint := func(w *world, url string) *big.Int {
		id, doc := w.register(nil), at(url)
		doc["registrations"] = names(w, id)
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, err := w.net.SetURI(heraldtest.Within(w.t, 20*time.Second), w.net.Account(0), id, "data:application/json,"+string(asJSON(doc))); err != nil {
			w.t.Fatal(err)
		}
		return id
	}
	// victim registers an agent that the domain of a's endpoint lists.
	victim := func(w *world, a *agent) *big.Int {
		id := w.register(at(a.URL))
		a.mu.Lock()
		defer a.mu.Unlock()
		a.domain = string(asJSON(map[string]any{"registrations": names(w, id)}))
		return id
	}
	rated := func(w *world, id *big.Int) uuid.UUID { return w.accept(w.feedback(id)) }

	w.runParallel(t, "in flight", func(t *testing.T, w *world) {
		begun, finish := make(chan bool, 1), make(chan bool)
		var first atomic.Bool
		a := newAgent(t, onCall(func(int, http.ResponseWriter, *http.Request, json.RawMessage) bool {
			if !first.Swap(true) {
				begun <- true
				<-finish
			}
			return false
		}))
		byDomain, file := victim(w, a), newOperator(w)
		k := w.newWorker(func(c *Config) {
			limitOrigins(bucket(t, ratelimit.Config{Inflight: 4}), bucket(t, ratelimit.Config{Inflight: 1, MaxWaiters: -1}))(c)
			c.Servers = file.server
		})
		holder, waits := rated(w, mint(w, a.URL)), w.dispatchTo(strings.Replace(a.URL, "http://", "HTTP://", 1)+"/other")
		done := k.goDeliver(holder, 1)
		heraldtest.Receive(t, "the call", begun)
		if note, err := k.deliver(t.Context(), waits, 1); err != nil || !strings.HasPrefix(note, "waiting agent_busy") || !strings.Contains(note, "not known to be bound") {
			t.Errorf("an unbound agent beside another: %q, %v", note, err)
		}
		w.shows(waits, outcome.Waiting, outcome.AgentBusy, 0)
		for _, agent := range []*big.Int{w.register(nil), byDomain} { // also one whose registration names this URL
			id := w.accept(with(w.feedback(agent), own(a.URL, nil)))
			if note, err := k.deliver(t.Context(), id, 1); err != nil || !strings.HasPrefix(note, "waiting agent_busy") ||
				!strings.Contains(note, "The job names its endpoint itself") {
				t.Errorf("with the job's own target: %q, %v", note, err)
			}
		}
		listed := w.register(nil)
		file.say(listed, map[string]any{"url": a.URL})
		k.mustDeliver(rated(w, byDomain), 1, "")
		k.mustDeliver(w.accept(with(w.feedback(listed), own(a.URL, nil))), 1, "") // a target that the operator listed
		k.mustDeliver(w.dispatchTo(newAgent(t).URL), 1, "")                       // of another origin
		close(finish)
		heraldtest.Equal(t, "the note", heraldtest.Receive(t, "the end", done), "")
		w.due(waits)
		k.mustDeliver(waits, 1, "")
		_, step := k.seen(waits, "resolve")
		heraldtest.Contains(t, "the time line", step.Detail, "nothing binds")
	})

	w.runParallel(t, "the origin's calls in flight are the bound agents'", func(t *testing.T, w *world) {
		const inflight = 4
		begun, finish := make(chan bool, 1+inflight), make(chan bool)
		a := newAgent(t, silentUntil(begun, finish))
		byDomain := victim(w, a)
		k := w.newWorker(func(c *Config) {
			limitOrigins(bucket(t, ratelimit.Config{Inflight: inflight, MaxWaiters: -1}), bucket(t, ratelimit.Config{Inflight: 1, MaxWaiters: -1}))(c)
		})
		done := []<-chan string{k.goDeliver(rated(w, mint(w, a.URL)), 1)}
		heraldtest.Receive(t, "the unbound agent's call", begun)
		for range inflight {
			done = append(done, k.goDeliver(rated(w, byDomain), 1))
		}
		for n := range inflight {
			heraldtest.Receive(t, fmt.Sprintf("call %d of the bound agent", n+1), begun)
		}
		close(finish)
		for _, done := range done {
			heraldtest.Equal(t, "the note", heraldtest.Receive(t, "the end", done), "")
		}
	})

	for name, byJob := range map[string]bool{"of unbound agents": false, "of jobs that name the endpoint": true} {
		w.runParallel(t, "ten failures "+name+" open no breaker of the bound agent's", func(t *testing.T, w *world) {
			var broken atomic.Bool
			a := newAgent(t, breaksWhile(500, broken.Load))
			byDomain, stranger := victim(w, a), w.register(nil)
			k := w.newWorker(func(c *Config) {
				limitOrigins(bucket(t, ratelimit.Config{}), bucket(t, ratelimit.Config{Inflight: 1}))(c)
			})
			for n, want := range append(slices.Repeat([]string{"server_error"}, 10), "breaker_open: most of the latest calls to the agent's endpoint failed, the last with: server_error. ") {
				broken.Store(n < 10)
				id := uuid.UUID{}
				if byJob {
					id = w.accept(with(w.feedback(stranger), own(a.URL, nil)))
				} else {
					id = rated(w, mint(w, a.URL))
				}
				k.mustDeliver(id, 1, "waiting "+want)
			}
			k.mustDeliver(rated(w, byDomain), 1, "")
		})
	}
}

// failing is a caller whose calls fail.
type failing struct {
	Caller
	err error
}

func (f failing) Call(context.Context, mcpcall.Endpoint, mcpcall.Request) (mcpcall.Answer, error) {
	return mcpcall.Answer{}, f.err
}

// TestShortTimeoutOfAJobIsNoFailure: a timeout that a job made shorter than usual does not count against the endpoint.
// Neither does a refusal, which shows that the endpoint works, or a fault of Herald's own.
func TestShortTimeoutOfAJobIsNoFailure(t *testing.T) {
	t.Parallel()
	call := func(e mcpcall.CallError) error {
		e.Stage, e.Err = mcpcall.StageCall, errors.New("it failed")
		return &e
	}
	for name, c := range map[string]struct {
		err     error
		timeout time.Duration // of 20 s
		want    ratelimit.Result
	}{
		"the job's time":     {call(mcpcall.CallError{Timeout: true, Written: true}), 3 * time.Second, ratelimit.Neutral},
		"the same for all":   {call(mcpcall.CallError{Timeout: true, Written: true}), 20 * time.Second, ratelimit.Failed},
		"another failure":    {call(mcpcall.CallError{Status: 500, Written: true}), 3 * time.Second, ratelimit.Failed},
		"it says no":         {call(mcpcall.CallError{Code: -32602, Written: true}), 20 * time.Second, ratelimit.OK},
		"no such tool":       {outcome.Fail(outcome.ToolNotFound, "none"), 20 * time.Second, ratelimit.OK},
		"later":              {call(mcpcall.CallError{Status: 429, Written: true}), 20 * time.Second, ratelimit.Neutral},
		"a fault of our own": {errAway, 20 * time.Second, ratelimit.Neutral},
		"it accepts":         {nil, 20 * time.Second, ratelimit.OK},
	} {
		e := &Executor{Config: Config{Caller: failing{err: c.err}, Now: time.Now, Metrics: must(NewMetrics(prometheus.NewRegistry()))}}
		answer, err := e.sendCall(t.Context(), mcpcall.Endpoint{}, mcpcall.Request{}, "tool", c.timeout, 20*time.Second)
		heraldtest.Equal(t, name, endpointHealth(answer, err), c.want)
	}
	heraldtest.Equal(t, "a panic before the call", endpointHealth(toolAnswer{}, nil), ratelimit.Neutral)
}

// TestPermitOfALongAttempt: an agent that lists its tools slowly keeps its permit during the call too, so no other call
// overtakes it, and its result counts for the breaker.
func TestPermitOfALongAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var passed atomic.Int64 // of the clock, in addition to the time
	now := func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	l := newLimiter(t, ratelimit.Config{Inflight: 1, MinCalls: 1, MaxWait: time.Millisecond, Now: now})
	k := w.newWorker(limitOrigins(l, nil), func(c *Config) { c.Lease, c.Now = time.Minute, now })
	var second uuid.UUID
	a := newAgent(t, onAny(func(method string, rw http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
		switch method {
		case "tools/list":
			passed.Add(int64(57 * time.Second))
		case "tools/call":
			passed.Add(int64(4 * time.Second))
			// Not mustDeliver, which may not be called in a handler.
			if note, err := k.deliver(t.Context(), second, 1); err != nil || !strings.HasPrefix(note, "waiting agent_busy") {
				t.Errorf("a second call during the first one: %q, %v", note, err)
			}
			http.Error(rw, "broken", http.StatusInternalServerError)
			return true
		}
		return false
	}))
	first := w.dispatchTo(a.URL)
	second = w.dispatchTo(a.URL)
	k.mustDeliver(first, 1, "waiting")
	heraldtest.Equal(t, "endpoints with an open breaker", l.Stats().Open, 1)
}
