package delivery

import (
	"context"
	"encoding/json"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// TestBatchToolSchema: the items of the published schema have receiveFeedback's properties. A tool with this schema
// gets complete and unchanged items.
func TestBatchToolSchema(t *testing.T) {
	t.Parallel()
	one, several := readSchema(t, tools.Feedback), readSchema(t, tools.Batch)
	var alone, list map[string]any
	for raw, into := range map[string]*map[string]any{string(one.raw): &alone, string(several.Properties["deliveries"]): &list} {
		heraldtest.Must(t, json.Unmarshal([]byte(raw), into))
	}
	delete(alone, "$schema")
	if string(asJSON(list["items"])) != string(asJSON(alone)) || list["maxItems"] != float64(MaxBatch) || several.Title != tools.Batch {
		t.Error("docs/tools: a batch's items are not what agent.receiveFeedback takes, or their most is another")
	}

	j := job.Job{Kind: job.KindNewFeedback, ChainID: 8453, AgentID: big.NewInt(42), FeedbackIndex: 7, Value: big.NewInt(9977), ValueDecimals: 2, Tag1: "a\u202eb"}
	file := job.File{Content: json.RawMessage(`{"n":1e2}`), Source: "cid", Verification: "raw"}
	const id = "6ba7b810-9dad-51d1-80b4-00c04fd430c8"
	fitted, err := tools.FitItem(t.Context(), nil, j, file, id, mcpcall.Tool{Name: tools.Batch, InputSchema: several.raw})
	heraldtest.Must(t, err)
	single := composed(t, withTool(j), file, one.raw)
	if string(fitted.Sent) != string(single) || !fitted.Cleaned {
		t.Errorf("an item is\n%s\nalone it is\n%s", fitted.Sent, single)
	}
	whole := string(asJSON(tools.List(fitted.Arguments)))
	heraldtest.Must(t, several.compiled.Validate(must(jsonschema.UnmarshalJSON(strings.NewReader(whole)))))

	for name, schema := range map[string]string{
		"another argument":  `{"type":"object","properties":{"items":{"type":"array"}},"additionalProperties":false}`,
		"one more argument": `{"type":"object","required":["token"]}`,
		"two at least":      `{"type":"object","properties":{"deliveries":{"type":"array","minItems":2}}}`,
		"texts":             `{"type":"object","properties":{"deliveries":{"type":"array","items":{"type":"string"}}}}`,
		"no schema":         `{"type":"nonsense"}`,
		"something else":    `{"type":"object","properties":{"deliveries":{"type":"object"}}}`,
	} {
		_, err := tools.FitItem(t.Context(), nil, j, file, id, mcpcall.Tool{Name: tools.Batch, InputSchema: json.RawMessage(schema)})
		heraldtest.Fails(t, name, err)
	}
}

func withTool(j job.Job) job.Job {
	j.Action.ToolName = tools.Feedback
	return j
}

// TestBatchOnlyOfKnownAgents: an agent without a success, and each agent if batches are off, gets one delivery per
// call.
func TestBatchOnlyOfKnownAgents(t *testing.T) {
	t.Parallel()
	for name, adapt := range map[string]func(t *testing.T, w *Config){
		"a newcomer": func(t *testing.T, c *Config) { admitBy(t, admission.Config{Slots: 16})(c) },
		"off":        func(_ *testing.T, c *Config) { c.BatchSize = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newBatchAgent(t, 50)
			w, k, flood := newBatchWorld(t, a, func(c *Config) { adapt(t, c) })
			ids := flood(20, 1)
			w.lead(k, ids)
			if batches, singles := a.received(); len(batches) != 0 || len(singles) != 1 {
				t.Fatalf("%d batches, %d alone", len(batches), len(singles))
			}
			must(k.deliver(heraldtest.Within(t, 30*time.Second), ids[1], 1))
			batches, _ := a.received()
			heraldtest.Equal(t, "a batch after a success", len(batches) == 1, name == "a newcomer")
		})
	}
}

// expireLeases ends the leases of all running deliveries, of which there must be want.
func (w *world) expireLeases(want int) {
	w.t.Helper()
	w.exec(`UPDATE herald.work SET lease_until = now() - interval '1 second' WHERE status = 'running'`)
	if n, dead, err := w.store.ExpireLeases(w.t.Context(), 100, 11); err != nil || n != want || dead != 0 {
		w.t.Fatalf("%d leases, %d dead, %v", n, dead, err)
	}
}

// TestBatchOfALostWorker: the deliveries of a lost worker's batch return when their leases expire, with an attempt of
// unknown outcome. The lost worker's late answers end the deliveries that have not ended.
func TestBatchOfALostWorker(t *testing.T) {
	t.Parallel()
	a := newBatchAgent(t, 50)
	called, release := make(chan struct{}), make(chan struct{})
	a.gate = func(n int) {
		if n == 1 {
			close(called)
			<-release
		}
	}
	w, k, flood := newBatchWorld(t, a)
	ids := flood(20, 1)
	done := k.goDeliver(ids[0], 1)
	<-called
	w.expireLeases(13)
	other := w.newWorker(func(c *Config) { c.Servers, c.Members = k.executor.Servers, w.store })
	clear(other.chains)
	must(other.deliver(heraldtest.Within(t, 30*time.Second), ids[1], 1))
	for _, id := range ids[8:] {
		heraldtest.Equal(t, "the outcome of the first attempt", w.shows(id, outcome.Delivered, "", 2).History[0].Outcome,
			"")
	}
	close(release)
	<-done
	for _, id := range ids[8:] { // the late success completes its own attempt
		heraldtest.Await(t, "the late answer", func() bool { return w.row(id).History[0].Outcome == "delivered" })
	}
}

// TestBatchLeavesKnownOutcomes: a delivery whose outcome a lost worker spooled is in no batch. Its own task records that
// outcome, so the agent gets each delivery once.
func TestBatchLeavesKnownOutcomes(t *testing.T) {
	t.Parallel()
	a := newBatchAgent(t, 50)
	w, k, flood := newBatchWorld(t, a)
	ids, spooled := flood(12, 1), make(chan bool, 12)
	dying := w.newWorker(func(c *Config) {
		c.Servers, c.Members = k.executor.Servers, w.store
		c.Ledger = &faulty{Ledger: w.store, record: func(context.Context, *ledger.Claim, ledger.Outcome) (ledger.Recorded, error) {
			return ledger.Recorded{}, errAway
		}}
		c.Spool = &results{OutcomeSpool: w.queue.Outcomes(), keep: func() error { spooled <- true; return nil }}
	})
	clear(dying.chains)
	ended := dying.goDeliver(ids[0], 1)
	for range 5 { // eight are dispatched: the leader and seven that do not follow
		heraldtest.Receive(t, "an outcome is spooled", spooled)
	}
	dying.giveUp()
	heraldtest.Receive(t, "the end", ended)
	w.expireLeases(5)

	must(k.deliver(heraldtest.Within(t, 30*time.Second), ids[1], 1))
	batches, singles := a.received()
	if len(batches) != 1 || len(singles) != 1 || singles[0] != ids[1].String() {
		t.Errorf("%d batches, alone: %s", len(batches), singles)
	}
	w.serve(k)
	for _, id := range ids {
		w.until(id, outcome.Delivered)
	}
	var calls, once []string
	batches, calls = a.received()
	for _, item := range slices.Concat(batches...) {
		calls = append(calls, item.DeliveryID)
	}
	for _, id := range ids {
		once = append(once, id.String())
	}
	heraldtest.Equal(t, "called, each once", slices.Sorted(slices.Values(calls)), slices.Sorted(slices.Values(once)))
}

// TestBatchLimitSettles: an agent answers in time only if a call has at most 20 deliveries. Few calls exceed that limit.
func TestBatchLimitSettles(t *testing.T) {
	t.Parallel()
	e := &Executor{Config: Config{BatchSize: MaxBatch, Now: time.Now, Metrics: must(NewMetrics(prometheus.NewRegistry()))}, batches: must(lru.New[erc8004.Agent, batchLimit](1))}
	a := &attempt{claim: &ledger.Claim{Job: job.Job{Kind: job.KindNewFeedback}}}
	const calls, most = 100, 20
	failed, delivered := 0, 0
	for range calls {
		var failure error
		if a.batch = (&batch{size: e.batchSize(a)}); a.batch.size > most {
			failure = outcome.Fail(outcome.Unknown, "no answer")
			failed++
		} else {
			delivered += a.batch.size
		}
		a.answer.called = true
		_ = e.splitAnswer(t.Context(), a, failure)
	}
	if failed > calls/8 || delivered < calls*most/2 {
		t.Errorf("of %d calls, %d failed; %d deliveries", calls, failed, delivered)
	}
}

// TestTokenStoredWhileBatchGathers: an operator stores a token after the leader's claim and before those of the members.
// The agent refuses the former token, with which the call is made. No delivery of the batch stays held.
func TestTokenStoredWhileBatchGathers(t *testing.T) {
	t.Parallel()
	a := newBatchAgent(t, 50, func(a *batchAgent) {
		a.before = hangUp(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	})
	w, k, flood := newBatchWorld(t, a)
	ids := flood(12, 1)
	agent, _ := new(big.Int).SetString(w.row(ids[0]).AgentID, 10)
	w.bearer(agent, a.URL)
	recorded := make(chan struct{}) // closed when the leader's outcome is recorded
	k = w.newWorker(func(c *Config) {
		c.Servers = k.executor.Servers
		c.Members = &slowMembers{w.store, func() { w.bearer(agent, a.URL) }}
		c.Ledger = &faulty{Ledger: w.store, record: func(ctx context.Context, c *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error) {
			if c.ID == ids[0] {
				defer close(recorded)
			} else {
				<-recorded
			}
			return w.store.Record(ctx, c, o)
		}}
	})
	clear(k.chains)
	w.lead(k, ids)
	for _, id := range append(ids[8:], ids[0]) {
		d := w.shows(id, outcome.Queued, "", 1)
		heraldtest.Equal(t, "the refusal", d.History[0].Reason, outcome.AuthRequired)
	}
}
