package delivery

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// parsePolicy returns a policy of a level.
func parsePolicy(t *testing.T, level policy.Level, document string) policy.Policy {
	t.Helper()
	p, _, err := policy.Parse([]byte(document), level, nil)
	heraldtest.Must(t, err)
	return p
}

// TestFilters checks the effect of a default policy on jobs: a filter acts on the event, even if the job differs from
// it, and ends the delivery before any request and without an attempt. Only a forced replay calls the agent. A filter
// does not act on a delivery whose agent was or may have been called.
func TestFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker(func(c *Config) {
		p := parsePolicy(t, policy.Default, `{"filters": [{"action": "deliver", "when": {"tag1": "good"}}, {"action": "skip", "when": {"tag1": ["noise", "noise-*"]}}]}`)
		c.Metrics = must(NewMetrics(w.registry))
		c.DefaultPolicy = func() policy.Policy { return p }
	}))
	rate := func(w *world, a *agent, tag, said string) map[string]any {
		j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(a.URL)), Tag1: tag})
		j["tag1"] = said
		return j
	}

	w.runParallel(t, "skipped", func(t *testing.T, w *world) {
		a := newAgent(t)
		id := w.accept(rate(w, a, "noise-7", "good"))
		d := w.until(id, outcome.Skipped)
		const why = `rule 2 of the default policy skips the event: {"action":"skip","when":{"tag1":["noise","noise-*"]}}`
		if d.Reason != "filtered" || d.Error != why || d.Attempts != 0 || len(d.History) != 0 || d.Endpoint != "" {
			t.Errorf("%+v", d)
		}
		if got := counted(t, w.registry, "herald_filtered_total"); got["default 2"] < 1 || got["default 1"] > 0 {
			t.Errorf("counted: %v", got)
		}
		for _, force := range []bool{false, true} {
			moved, left, tasks, err := w.store.Replay(heraldtest.Within(t, 30*time.Second), []uuid.UUID{id}, force)
			if err != nil || (moved == 1) != force || strings.Contains(left[id], "needs force") == force {
				t.Fatalf("force %v: %d, %v, %v", force, moved, left, err)
			}
			w.dispatcher.Dispatch(t.Context(), tasks)
		}
		w.ends(id, outcome.Delivered, "", 1)
		heraldtest.Equal(t, "calls", len(a.received()), 1)
	})

	w.runParallel(t, "policies of the agent", func(t *testing.T, w *world) {
		a := newAgent(t)
		id := w.register(at(a.URL))
		rate := func(tag string) map[string]any {
			j, _ := w.rate(devnet.Feedback{AgentID: id, Tag1: tag})
			return j
		}
		set := func(level policy.Level, document string) {
			heraldtest.Must(t, records.New(w.store).ReplacePolicy(t.Context(), w.agentOf(id), level, parsePolicy(t, level, document)))
		}
		set(policy.Operator, `{"filters": [{"action": "deliver", "when": {"tag1": "noise-1"}}]}`)
		w.until(w.accept(rate("noise-1")), outcome.Delivered) // the operator's rule precedes the default
		w.until(w.accept(rate("noise-2")), outcome.Skipped)
		set(policy.Own, `{"filters": [{"action": "deliver", "when": {"tag1": "noise-2"}}, {"action": "skip"}]}`)
		w.until(w.accept(rate("noise-2")), outcome.Skipped) // the agent's own policy only reduces
		w.ends(w.accept(rate("noise-1")), outcome.Skipped, outcome.Filtered, 0, "rule 2 of the agent's own policy")
		set(policy.Own, `{"enabled": false}`)
		w.ends(w.accept(rate("good")), outcome.Held, outcome.AgentDisabled, 0, "policy disables it")
		heraldtest.Equal(t, "calls", len(a.received()), 1)
	})

	w.runParallel(t, "delivered", func(t *testing.T, w *world) {
		a := newAgent(t)
		for _, tag := range []string{"good", "other"} {
			w.until(w.accept(rate(w, a, tag, "noise")), outcome.Delivered)
		}
	})
}

// TestPolicyDelaysCalls checks that a delivery waits, without an attempt, while the policy pauses the agent, or while the
// agent has had as many calls as the policy allows in a second. It waits at most maxTaskWait at a time, and its error
// names the cause. It is delivered after a new policy has removed the cause.
func TestPolicyDelaysCalls(t *testing.T) {
	t.Parallel()
	for document, c := range map[string]struct {
		before int // calls before one has to wait
		says   string
	}{
		`{"pauseUntil": "2999-12-31T18:00:00Z"}`: {0, "the agent's policy pauses its calls until 2999-12-31T18:00:00Z"},
		`{"maxPerSecond": 0.01}`:                 {1, "the agent's policy limits its calls to 0.01 a second; this one comes back in 1m4"}, // 1m41s
	} {
		t.Run(document, func(t *testing.T) {
			t.Parallel()
			w, a := newWorld(t), newAgent(t)
			var p atomic.Pointer[policy.Policy]
			p.Store(new(parsePolicy(t, policy.Default, document)))
			w.serve(w.newWorker(limitOrigins(newLimiter(t, ratelimit.Config{}), nil), func(c *Config) {
				c.DefaultPolicy = func() policy.Policy { return *p.Load() }
			}))
			agent := w.register(at(a.URL))
			for range c.before {
				w.until(w.accept(w.feedback(agent)), outcome.Delivered)
			}
			id := w.accept(w.feedback(agent))
			d := w.ends(id, outcome.Waiting, outcome.Throttled, 0, c.says)
			if at := d.NextAttemptAt; at == nil || time.Until(*at) > 2*maxTaskWait {
				t.Errorf("the next attempt is at %s", at)
			}
			p.Store(&policy.Policy{})
			w.replay(id, false) // ends the wait
			w.until(id, outcome.Delivered)
			heraldtest.Equal(t, "calls", len(a.received()), c.before+1)
		})
	}
}

// TestPolicyBatchSize checks that the policy of an agent lowers the number of deliveries in one call, and does not raise
// it.
func TestPolicyBatchSize(t *testing.T) {
	t.Parallel()
	batches := must(lru.New[erc8004.Agent, batchLimit](1))
	for size, want := range map[int]int{0: 20, 1: 1, 7: 7, 1000: 20} {
		e := &Executor{Config: Config{BatchSize: 20, Now: time.Now}, batches: batches}
		a := &attempt{claim: &ledger.Claim{Job: job.Job{Kind: job.KindNewFeedback}}, policy: policy.Policy{BatchSize: size}}
		heraldtest.Equal(t, fmt.Sprint("of a policy of ", size), e.batchSize(a), want)
	}
}

// TestFiltersSpareCalledDeliveries checks that a filter does not act on a delivery whose agent was or may have been
// called, on a replay, or on a retraction.
func TestFiltersSpareCalledDeliveries(t *testing.T) {
	t.Parallel()
	e := &Executor{Config: Config{Metrics: must(NewMetrics(prometheus.NewRegistry()))}}
	levels := policy.Levels{Default: parsePolicy(t, policy.Default, `{"filters": [{"action": "skip"}, {"action": "skip", "when": {"kind": "FeedbackRevoked"}}]}`)}
	feedback, retraction := job.Job{Kind: job.KindNewFeedback}, job.Job{Kind: job.KindFeedbackRevoked, Reason: job.RevokedByReorg}
	for name, c := range map[string]struct {
		claim   ledger.Claim
		skipped bool
	}{
		"a first attempt":         {ledger.Claim{Job: feedback}, true},
		"a revocation":            {ledger.Claim{Job: job.Job{Kind: job.KindFeedbackRevoked}}, true},
		"a response":              {ledger.Claim{Job: job.Job{Kind: job.KindResponseAppended}}, false},
		"a retraction":            {ledger.Claim{Job: retraction}, false},
		"called, or may be":       {ledger.Claim{Job: feedback, Called: true}, false},
		"replayed by an operator": {ledger.Claim{Job: feedback, Replay: true}, false},
	} {
		heraldtest.Equal(t, name, e.applyFilters(&attempt{claim: &c.claim, levels: levels}) != nil, c.skipped)
	}
}
