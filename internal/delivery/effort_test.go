package delivery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
	"github.com/google/uuid"
)

// budgeted returns a worker whose agents have budgets of 60 s a minute. Its clock does not move, so the budgets are not
// refilled.
func (w *world) budgeted(adapt ...func(*Config)) *worker {
	w.t.Helper()
	now := time.Now()
	b := must(effort.New(effort.Config{Size: time.Minute, Logger: w.logger(), Now: func() time.Time { return now }}))
	w.t.Cleanup(b.Close)
	k := w.newWorker(append(adapt, admitBy(w.t, admission.Config{Efforts: b}))...)
	k.efforts = b
	return k
}

// spend charges an effort to the agent.
func (k *worker) spend(of erc8004.Agent, w effort.What, d time.Duration) {
	k.t.Helper()
	h, err := k.efforts.Begin(k.t.Context(), of)
	heraldtest.Must(k.t, err)
	h.Spend(w, 1, d)
	h.End()
}

// TestEffortIsCharged: a delivery costs its agent a call, a connection, a listing and a fetch. The next one needs no
// connection. Failed attempts and replays are charged, too.
func TestEffortIsCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fails := false
	a := newAgent(t, breaksWhile(500, func() bool { return fails }))
	k := w.budgeted()
	id := w.register(at(a.URL))
	last := effort.Usage{}
	deliver := func(what string, d uuid.UUID, n int, connections, fetches float64) {
		t.Helper()
		must(k.deliver(t.Context(), d, n))
		u := *k.efforts.Usage(t.Context(), w.agentOf(id))
		if u.Calls <= last.Calls || u.UnderWay != 0 {
			t.Errorf("%s: %+v after %+v", what, u, last)
		}
		if (u.Connections-last.Connections >= 0.05) != (connections > 0) || (u.Listings-last.Listings >= 0.02) != (connections > 0) ||
			(u.Fetches > last.Fetches) != (fetches > 0) {
			t.Errorf("%s: %+v after %+v", what, u, last)
		}
		last = u
	}
	file := func() uuid.UUID {
		j, _ := w.rate(devnet.Feedback{AgentID: id, URI: "data:application/json,{}"})
		return w.accept(j)
	}
	first := file()
	deliver("the first", first, 1, 1, 1)
	deliver("the second", file(), 1, 0, 1)
	deliver("one without a file", w.accept(w.feedback(id)), 1, 0, 0)
	_, _, tasks, err := w.store.Replay(heraldtest.Within(t, 10*time.Second), []uuid.UUID{first}, true)
	if err != nil || len(tasks) == 0 {
		t.Fatal(tasks, err)
	}
	deliver("a replay", first, tasks[0].N, 0, 1)
	fails = true
	deliver("one that fails", w.accept(w.feedback(id)), 1, 0, 0)
}

// TestOverBudget: a delivery of an agent that has used up its budget waits at no cost, with a text, before any request to
// the agent is made. Other agents are not affected.
func TestOverBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	k := w.budgeted()
	over, other := w.register(at(a.URL)), w.register(at(a.URL))
	k.spend(w.agentOf(over), effort.Calls, 90*time.Second)
	id := w.accept(w.feedback(over))
	note, err := k.deliver(t.Context(), id, 1)
	if err != nil || !strings.HasPrefix(note, "waiting over_budget: the agent's effort budget is used up: of 60 s of worker time a minute, "+
		"90 s are used (calls 90 s); this one waits until ") {
		t.Errorf("%q, %v", note, err)
	}
	d := w.shows(id, outcome.Waiting, outcome.OverBudget, 0)
	if wait := time.Until(*d.NextAttemptAt); len(d.History) != 0 || wait < 20*time.Second ||
		wait > 37*time.Second { // 30 s, ±20 %
		t.Errorf("%+v, waits %s", d.History, wait)
	}
	w.due(id)
	k.mustDeliver(id, 1, "waiting over_budget")
	checks, _ := k.seen(id, "check") // which finds the event's agent
	heraldtest.Equal(t, "checks", checks, 1)
	k.mustDeliver(w.accept(w.feedback(other)), 1, "")
	heraldtest.Equal(t, "calls", len(a.received()), 1)
}

// TestFilesOverBudget: when fetches have used half of a budget, deliveries with files wait, and those without do not.
func TestFilesOverBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	k := w.budgeted()
	id := w.register(at(a.URL))
	k.spend(w.agentOf(id), effort.Fetches, 31*time.Second)
	j, _ := w.rate(devnet.Feedback{AgentID: id, URI: "data:application/json,{}"})
	d := w.accept(j)
	k.mustDeliver(d, 1, "waiting over_budget: files that feedback of this agent names have used 31 s of the 30 s")
	heraldtest.Equal(t, "the history", len(w.shows(d, outcome.Waiting, outcome.OverBudget, 0).History), 0)
	j, _ = w.rate(devnet.Feedback{AgentID: id, URI: "data:application/json,{}"})
	for _, j := range []map[string]any{w.feedback(id), with(j, map[string]any{"includeFileContent": false})} {
		k.mustDeliver(w.accept(j), 1, "")
	}
	heraldtest.Equal(t, "under way", k.efforts.Usage(t.Context(), w.agentOf(id)).UnderWay, 0)
}

// TestSlowRegistrationIsCharged: if the server of an agent's registration takes 15 s to answer, four attempts use up the
// agent's budget. Its further deliveries then wait at no cost.
func TestSlowRegistrationIsCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ahead atomic.Int64 // of the worker's clock
	documents := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		ahead.Add(int64(15 * time.Second))
		http.Error(rw, "not now", http.StatusServiceUnavailable)
	}))
	t.Cleanup(documents.Close)
	k := w.budgeted(func(c *Config) { c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } })
	id := w.registerURI(documents.URL + "/agent.json")
	for range 4 {
		k.mustDeliver(w.accept(w.feedback(id)), 1, "waiting content_unavailable")
	}
	k.mustDeliver(w.accept(w.feedback(id)), 1, "waiting over_budget")
}

// TestChargeOfResolutions: the time of the chain's node is not charged, and neither are quick resolutions.
func TestChargeOfResolutions(t *testing.T) {
	t.Parallel()
	chain, read, failed := resolver.Step{Took: 2 * time.Second}, resolver.Step{}, errors.New("not fetched")
	for name, c := range map[string]struct {
		steps []resolver.Step
		took  time.Duration
		err   error
		want  float64
	}{
		"cached":      {[]resolver.Step{read}, time.Millisecond, nil, 0},
		"node away":   {[]resolver.Step{chain}, 9 * time.Second, failed, 0},
		"quick":       {[]resolver.Step{chain, read}, 3 * time.Second, nil, 0},
		"slow":        {[]resolver.Step{chain, read}, 5 * time.Second, nil, 3},
		"failed":      {[]resolver.Step{chain, read}, 2500 * time.Millisecond, failed, 0.5},
		"ended early": {nil, 15 * time.Second, failed, 15},
	} {
		b := must(effort.New(effort.Config{Size: time.Minute, Now: heraldtest.NewClock(time.Now()).Now}))
		a := &attempt{pass: must(admission.New(admission.Config{Efforts: b})).Begin("1")}
		heraldtest.Must(t, a.pass.AdmitAgent(t.Context(), erc8004.Agent{ID: "1"}, true))
		a.chargeResolution(c.steps, c.took, c.err)
		a.pass.Leave()
		heraldtest.Equal(t, name, b.Usage(t.Context(), erc8004.Agent{ID: "1"}).Connections, c.want)
		b.Close()
	}
}

// hangingResolver answers when the context ends.
type hangingResolver struct{}

func (hangingResolver) Resolve(ctx context.Context, _ resolver.Agent) (resolver.Target, error) {
	<-ctx.Done()
	return resolver.Target{}, context.Cause(ctx)
}

// TestRefusedResolutionIsNotCharged: a slow resolution for which the worker has no slot costs the agent nothing, because
// the chain's node may be slow.
func TestRefusedResolutionIsNotCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := must(effort.New(effort.Config{Size: time.Minute, Logger: w.logger()}))
	t.Cleanup(b.Close)
	k := w.newWorker(admitBy(t, admission.Config{Efforts: b, Slots: 1}), func(c *Config) { c.Resolver = hangingResolver{} })
	a := newAgent(t)
	id, other := w.register(at(a.URL)), w.agentOf(w.register(at(a.URL)))
	k.executor.Admission.NoteOutcome(w.agentOf(id), true)
	newcomer := k.executor.Admission.Begin("newcomer")
	heraldtest.Must(t, newcomer.AdmitAgent(t.Context(), other, false))
	defer newcomer.Leave()
	k.mustDeliver(w.accept(w.feedback(id)), 1, "waiting agent_busy")
	heraldtest.Equal(t, "seconds of connections", b.Usage(t.Context(), w.agentOf(id)).Connections, 0)
}

// TestSlowAuthorizationIsCharged: requests for an access token that take 15 s use up the agent's budget, whether the
// agent's authorization server is slow, or the agent refuses its token and is slow to name that server.
func TestSlowAuthorizationIsCharged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ahead atomic.Int64 // of the authorizer's clock
	k := w.budgeted()
	k.executor.Authorizer = w.authorizing(func(c *auth.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	}).executor.Authorizer
	for name, toAgent := range map[string]bool{"authorization server": false, "agent's metadata": true} {
		s := guarded(t, oauthtest.Options{})
		id := w.guardedBy(s, clientFor(s))
		if toAgent {
			k.mustDeliver(w.accept(w.feedback(id)), 1, "")
			if used := k.efforts.Usage(t.Context(), w.agentOf(id)).Connections; used > 5 {
				t.Errorf("%s: %g s of connections are used before", name, used)
			}
			s.Revoke()
		}
		s.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
			if s.ToAgent(r) != toAgent || r.URL.Path == "/mcp" {
				return false
			}
			ahead.Add(int64(15 * time.Second))
			http.Error(rw, "not now", http.StatusServiceUnavailable)
			return true
		})
		must(k.deliver(t.Context(), w.accept(w.feedback(id)), 1))
		if used := k.efforts.Usage(t.Context(), w.agentOf(id)).Connections; used < 15 {
			t.Errorf("%s: %g s of connections are used", name, used)
		}
	}
}

// TestSilentFilesLeaveSlots: while the servers of feedback files do not answer, a delivery without a file finds a slot,
// although enough deliveries with such files are due to fill all slots.
func TestSilentFilesLeaveSlots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	var begun, ended atomic.Int32
	files := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		begun.Add(1)
		<-r.Context().Done()
		ended.Add(1)
	}))
	t.Cleanup(files.Close)
	gates := must(admission.New(admission.Config{Slots: 16}))
	t.Cleanup(gates.Close)
	k := w.newWorker(func(c *Config) {
		c.Admission = gates
		c.Fetcher = must(ipfs.New(ipfs.Config{Guard: guardtest.Loopback(t, nil), Logger: w.logger(),
			Timeout: time.Minute, TryTimeout: time.Minute}))
	})
	w.serve(k)
	var jobs []map[string]any
	for range 2 {
		id := w.register(at(a.URL))
		gates.NoteOutcome(w.agentOf(id), true)
		for range ledger.MaxDispatchedPerAgent {
			j, _ := w.rate(devnet.Feedback{AgentID: id, URI: fmt.Sprintf("%s/%d", files.URL, len(jobs))})
			jobs = append(jobs, j)
		}
	}
	other := w.register(at(a.URL))
	gates.NoteOutcome(w.agentOf(other), true)
	plain := w.feedback(other)
	w.submit(jobs...)
	heraldtest.Await(t, "fetches in three quarters of the slots", func() bool { return begun.Load() >= 12 })
	w.until(w.accept(plain), outcome.Delivered)
	if n := begun.Load() - ended.Load(); n < 12 {
		t.Errorf("only %d fetches are in flight", n)
	}
}

// hanging is a chain whose node answers nothing about the events of some agents, but answers all else. So it never
// counts as silent (package node).
type hanging struct {
	event.Chain
	agents       map[string]bool
	begun, ended atomic.Int32
	over         chan struct{} // closed when it answers again
}

func (c *hanging) Check(ctx context.Context, j job.Job, v chain.Verify) (chain.Standing, error) {
	if !c.agents[j.AgentID.String()] {
		return c.Chain.Check(ctx, j, v)
	}
	c.begun.Add(1)
	defer c.ended.Add(1)
	select {
	case <-ctx.Done():
	case <-c.over:
	}
	return chain.Standing{}, &node.UnavailableError{ChainID: j.ChainID, Op: "reading the receipt", Err: errors.New("no answer")}
}

// TestSlowChecksLeaveSlots: while a node is slow, the checks of one chain's events occupy half of the slots, although
// enough deliveries are due to fill all slots. Other deliveries find a slot, also those of newcomers.
func TestSlowChecksLeaveSlots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	gates := must(admission.New(admission.Config{Slots: 16}))
	t.Cleanup(gates.Close)
	slow := &hanging{Chain: w.chain, agents: map[string]bool{}, over: make(chan struct{})}
	k := w.newWorker(func(c *Config) { c.Admission = gates })
	k.chains[w.net.ChainID()] = slow
	var jobs []map[string]any
	for range 2 {
		id := w.register(at(a.URL))
		slow.agents[id.String()] = true
		for range ledger.MaxDispatchedPerAgent {
			jobs = append(jobs, w.feedback(id))
		}
	}
	newcomer := w.feedback(w.register(at(a.URL)))
	w.serve(k)
	t.Cleanup(func() { close(slow.over) }) // before the worker stops, which waits for the checks
	w.submit(jobs...)
	heraldtest.Await(t, "checks in all slots", func() bool { return slow.begun.Load() >= 16 })
	w.until(w.accept(newcomer), outcome.Delivered)
	if n := slow.begun.Load() - slow.ended.Load(); n < 8 {
		t.Errorf("only %d checks are in flight", n)
	}
}
