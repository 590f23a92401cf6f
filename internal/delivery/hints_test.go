package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/door/watch"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// repositioned returns a job with other position fields.
func repositioned(j map[string]any, position map[string]any) map[string]any {
	out := maps.Clone(j)
	maps.Copy(out, position)
	return out
}

// submitAs enqueues jobs of a sender.
func (w *world) submitAs(from ledger.Source, jobs ...map[string]any) []intake.Answer {
	w.t.Helper()
	bodies := make([][]byte, len(jobs))
	for i, j := range jobs {
		bodies[i] = asJSON(j)
	}
	return must(w.intake.Submit(heraldtest.Within(w.t, 20*time.Second), bodies, from))
}

var thiefs = ledger.SourceToken("thief", ledger.TrustOrdinary)

// TestFalseJobs: a sender enqueues false jobs of an event first. The agent is called once, with the content of the log,
// also if no other sender enqueues the event.
func TestFalseJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	agent := w.register(at(a.URL))
	w.serve(w.newWorker())
	second := strings.ToLower(common.HexToAddress("0x5ec0").Hex())
	nothing := map[string]any{}
	nowhere := map[string]any{"transactionHash": fmt.Sprintf("0x%064x", 9)}
	later := repositioned(nowhere, map[string]any{"blockNumber": 900, "blockHash": nil}) // the chain has fewer blocks
	forged := func(p map[string]any) map[string]any {
		return repositioned(p, map[string]any{"value": "1", "tag1": "forged", "feedbackURI": "ipfs://forged"})
	}
	bare := map[string]any{"transactionHash": nil, "logIndex": nil, "blockHash": nil, "blockNumber": nil}
	elsewhere := map[string]any{"blockNumber": 1, "blockHash": fmt.Sprintf("0x%064x", 7), "timestamp": 4_000_000_000}
	for name, c := range map[string]struct {
		jobs   []map[string]any
		honest bool // another sender enqueues the true job
		says   []string
	}{
		"another content":                     {[]map[string]any{forged(nothing)}, false, []string{"value", "tag1", "feedbackURI"}},
		"another position":                    {[]map[string]any{nowhere}, false, []string{"transactionHash"}},
		"another position, then the true job": {[]map[string]any{nowhere}, true, []string{"transactionHash"}},
		"another content and position":        {[]map[string]any{forged(nowhere)}, false, []string{"value", "tag1", "feedbackURI", "transactionHash"}},
		"another block and time":              {[]map[string]any{elsewhere}, false, nil},
		"another content, no position":        {[]map[string]any{forged(bare)}, false, []string{"value", "tag1", "feedbackURI"}},
		"to come, then the true job":          {[]map[string]any{later}, true, []string{"blockNumber", "transactionHash"}},
		"a flood, then the true job":          {flood(40, later), true, nil},
		"another identity registry":           {[]map[string]any{{"identityRegistry": second}}, false, []string{"identityRegistry"}},
	} {
		w.run(t, name, func(t *testing.T, w *world) {
			j, _ := w.rate(devnet.Feedback{AgentID: agent, Tag1: "true"})
			delete(j, "timestamp")
			before := len(a.received())
			jobs := make([]map[string]any, len(c.jobs))
			for i, p := range c.jobs {
				jobs[i] = repositioned(j, p)
			}
			if p := c.jobs[0]["identityRegistry"]; p != nil { // the intake accepts only listed registries
				k := parsed(j)
				k.IdentityRegistry = common.HexToAddress(second)
				w.acceptJobs(k)
			} else if got := w.submitAs(thiefs, jobs...)[0]; got.Verdict != ledger.Accepted {
				t.Fatalf("%+v", got)
			}
			id := job.IDOf(w.keyOf(j))
			if c.honest {
				if got := w.submit(j)[0]; got.Verdict != ledger.Known || got.ID != id {
					t.Fatalf("the true job: %+v", got)
				}
			}
			d := w.until(id, outcome.Delivered)
			calls := a.received()
			if len(calls) != before+1 {
				t.Fatalf("the agent was called %d times", len(calls)-before)
			}
			args := calls[before].args(t)
			number := must(j["blockNumber"].(json.Number).Int64())
			block := must(w.net.Client().HeaderByNumber(heraldtest.Within(t, 20*time.Second), big.NewInt(number)))
			if args["tag1"] != "true" || args["value"] != "9977" || args["transactionHash"] != j["transactionHash"] ||
				args["fileUri"] == "ipfs://forged" ||
				args["blockNumber"] != float64(number) || args["timestamp"] != float64(block.Time) {
				t.Errorf("the agent received %v", args)
			}
			for _, field := range c.says {
				if !slices.Contains(d.Corrected, field) {
					t.Errorf("corrected: %v, want %s", d.Corrected, field)
				}
			}
			if !d.Verified || d.IdentityRegistry != strings.ToLower(w.net.Deployment().Identity.Hex()) {
				t.Errorf("%+v", d)
			}
			if again := w.submit(j)[0]; again.Verdict != ledger.Known || len(again.Differs) > 0 {
				t.Errorf("the true job, later: %+v", again)
			}
			if again := w.submitAs(thiefs, repositioned(j, map[string]any{"tag1": "x"}))[0]; again.Verdict != ledger.Known || fmt.Sprint(again.Differs) != "[tag1]" {
				t.Errorf("a false job, later: %+v", again)
			}
		})
	}
}

// TestActionBelongsToItsHint: of the jobs that name the event's position, the one of the most trusted sender determines
// the action, and among equals the first. The action of a job that names another position has no effect.
func TestActionBelongsToItsHint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim, first, second := newAgent(t), newAgent(t), newAgent(t)
	rated := w.register(at(victim.URL))
	k := w.newWorker()
	direct := ledger.SourceToken("direct", ledger.TrustDirect)
	nowhere := map[string]any{"transactionHash": fmt.Sprintf("0x%064x", 9)}
	for name, c := range map[string]struct {
		jobs func(j map[string]any) []intake.Answer
		to   *agent
		last ledger.Verdict
	}{
		"the first of two equals": {func(j map[string]any) []intake.Answer {
			return append(w.submit(with(j, own(first.URL, nil))), w.submit(with(j, own(second.URL, nil)))...)
		}, first, ledger.Conflict},
		"the more trusted one": {func(j map[string]any) []intake.Answer {
			return append(w.submitAs(thiefs, repositioned(j, map[string]any{"blockNumber": 1})), w.submitAs(direct, with(j, own(second.URL, nil)))...)
		}, second, ledger.Known},
		"a false position has no say": {func(j map[string]any) []intake.Answer {
			return append(w.submitAs(direct, with(repositioned(j, nowhere), own(first.URL, map[string]any{"X-Thief": "1"}))), w.submitAs(thiefs, j)...)
		}, victim, ledger.Known},
		"headers follow the event's agent": {func(j map[string]any) []intake.Answer {
			k := parsed(j)
			k.IdentityRegistry = common.HexToAddress("0x5ec0")
			w.acceptJobs(k)
			return w.submitAs(direct, with(j, own(first.URL, map[string]any{"X-Own": "1"})))
		}, first, ledger.Known},
	} {
		t.Run(name, func(t *testing.T) {
			j, _ := w.rate(devnet.Feedback{AgentID: rated})
			before := len(c.to.received())
			total := len(victim.received()) + len(first.received()) + len(second.received())
			answers := c.jobs(j)
			last := answers[len(answers)-1]
			if last.Verdict != c.last || last.Verdict == ledger.Conflict && last.Path != "action" {
				t.Errorf("%+v", last)
			}
			for range 2 {
				w.turn(k, last.ID)
			}
			w.shows(last.ID, outcome.Delivered, "", 1)
			if len(c.to.received()) != before+1 || len(victim.received())+len(first.received())+len(second.received()) != total+1 {
				t.Error("another agent was called")
			}
		})
	}
}

// flood returns n copies of position p, each with another transaction.
func flood(n int, p map[string]any) []map[string]any {
	out := make([]map[string]any, n)
	for i := range out {
		out[i] = repositioned(p, map[string]any{"transactionHash": fmt.Sprintf("0x%064x", 1000+i)})
	}
	return out
}

// TestHeadersAreCompared: the headers are part of an action although they are sealed. A job with the same headers is
// known, and one with others has another action.
func TestHeadersAreCompared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	j, _ := w.rate(devnet.Feedback{AgentID: w.register(nil)})
	action := func(headers map[string]any) map[string]any { return with(j, own("https://a.example/mcp", headers)) }
	w.accept(action(map[string]any{"X-A": "1", "X-B": "2"}))
	for name, c := range map[string]struct {
		job  map[string]any
		want ledger.Verdict
	}{
		"the same":    {action(map[string]any{"X-B": "2", "X-A": "1"}), ledger.Known},
		"another":     {action(map[string]any{"X-A": "1", "X-B": "3"}), ledger.Conflict},
		"fewer":       {action(map[string]any{"X-A": "1"}), ledger.Conflict},
		"none":        {action(nil), ledger.Conflict},
		"another URL": {with(j, own("https://b.example/mcp", map[string]any{"X-A": "1", "X-B": "2"})), ledger.Conflict},
	} {
		if got := w.submit(c.job)[0]; got.Verdict != c.want || (got.Path == "action") != (c.want == ledger.Conflict) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// deaf is a chain whose node does not answer for jobs without a transaction.
type deaf struct {
	event.Chain
	asked  int
	always bool // it answers for each job
	blind  bool // its searches find nothing
}

func (c *deaf) Check(ctx context.Context, j job.Job, v chain.Verify) (chain.Standing, error) {
	c.asked++
	if !c.always && j.TransactionHash == (common.Hash{}) {
		return chain.Standing{}, &node.UnavailableError{ChainID: j.ChainID, Op: "reading logs", Err: errors.New("error -32005: too many")}
	}
	if c.blind && j.TransactionHash == (common.Hash{}) {
		c.asked--
		return chain.Standing{Disagrees: "transactionHash"}, nil
	}
	return c.Chain.Check(ctx, j, v)
}

// turn makes the delivery due, and runs one attempt of each task that the reconciler dispatches.
func (w *world) turn(k *worker, id uuid.UUID) {
	w.t.Helper()
	w.exec(`UPDATE herald.work SET next_attempt_at = now() WHERE id = $1 AND status = 'waiting'`, id)
	ctx := heraldtest.Within(w.t, 30*time.Second)
	due, _, err := w.store.Due(ctx, 10)
	backlog, err2 := w.store.Backlog(ctx, 10)
	heraldtest.Must(w.t, errors.Join(err, err2))
	tasks := append(due, backlog...)
	if d := w.row(id); !d.Status.Final() && len(tasks) == 0 { // its own task is in Redis
		tasks = []ledger.Task{{ID: id, N: d.Dispatch}}
	}
	for _, task := range tasks {
		var archived *queue.ArchivedError
		if _, err := k.deliver(ctx, task.ID, task.N); err != nil && !errors.As(err, &archived) {
			w.t.Fatal(err)
		}
	}
}

// deliverInTurns runs n turns, and checks that the delivery is then delivered with one call.
func (w *world) deliverInTurns(k *worker, id uuid.UUID, n int, to *agent) {
	w.t.Helper()
	for range n {
		w.turn(k, id)
	}
	heraldtest.Equal(w.t, "the status", w.row(id).Status, outcome.Delivered)
	heraldtest.Equal(w.t, "calls", len(to.received()), 1)
}

// newHintWorld returns a world with a worker, an agent, and a job of feedback for it, which its giver can revoke.
func newHintWorld(t *testing.T, adapt ...func(*agent)) (w *world, k *worker, a *agent, j map[string]any, client devnet.Account) {
	t.Helper()
	w, a = newWorld(t), newAgent(t, adapt...)
	j, client = w.rate(devnet.Feedback{AgentID: w.register(at(a.URL)), Tag1: "first"})
	return w, w.newWorker(), a, j, client
}

// TestRefutedHints: the delivery of a false job ends event_not_found if the event is not in the searched range. Sending
// the job again changes nothing; another job starts a new check.
func TestRefutedHints(t *testing.T) {
	t.Parallel()
	w, k, a, j, _ := newHintWorld(t)
	node := &deaf{Chain: w.chain, always: true, blind: true}
	k.chains[w.net.ChainID()] = node
	false1 := repositioned(j, map[string]any{"transactionHash": fmt.Sprintf("0x%064x", 9), "blockNumber": 1, "blockHash": nil})
	id := w.submitAs(thiefs, false1)[0].ID
	w.turn(k, id)
	w.shows(id, outcome.Rejected, outcome.EventNotFound, 1)
	if got := w.submitAs(thiefs, false1)[0]; got.Verdict != ledger.Known || got.Status != outcome.Rejected {
		t.Errorf("the same again: %+v", got)
	}
	if got := w.submitAs(thiefs, j)[0]; got.Verdict != ledger.Accepted || got.ID != id {
		t.Errorf("the true job: %+v", got)
	}
	asked := node.asked
	w.deliverInTurns(k, id, 1, a)
	heraldtest.Equal(t, "questions to the node, none for the refuted hint", node.asked-asked, 1)
}

// validate makes a validation of an agent and returns its job.
func (w *world) validate(agent *big.Int, request common.Hash) (j map[string]any) {
	w.t.Helper()
	ctx := heraldtest.Within(w.t, 30*time.Second)
	must(w.net.RequestValidation(ctx, w.net.Account(0), w.net.Account(1).Address, agent, "q", request))
	receipt, err := w.net.RespondValidation(ctx, w.net.Account(1), request, 88, "", common.Hash{}, "t")
	heraldtest.Must(w.t, err)
	for _, l := range receipt.Logs {
		if e, err := erc8004.Decode(*l); err == nil && e.Kind == erc8004.ValidationResponse {
			j = asMap(w.t, must(eventlog.Job(e, w.net.ChainID(), w.net.Deployment(), 1770000000, job.Limits{})))
		}
	}
	return j
}

// TestFalseAgentOfAValidation: the key of a validation does not contain its agent. A false job that comes first and names
// a disabled agent, or one for which the worker has no slot, neither holds nor delays the validation.
func TestFalseAgentOfAValidation(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"disabled", "busy"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			victim := newAgent(t, func(a *agent) { a.tool = "agent.receiveValidation" })
			agent, named := w.register(at(victim.URL)), w.register(nil)
			k := w.newWorker(admitBy(t, admission.Config{Slots: 2}))
			k.executor.Admission.NoteOutcome(w.agentOf(agent), true)
			j := w.validate(agent, common.Hash{0x42})
			id := w.submitAs(thiefs, repositioned(j, map[string]any{"agentId": named.String(), "response": 1}))[0].ID
			if name == "disabled" {
				w.enable(named, false)
			} else {
				hangs := k.executor.Admission.Begin("hangs")
				heraldtest.Must(t, hangs.AdmitAgent(t.Context(), erc8004.Agent{}, false))
				t.Cleanup(func() { hangs.Leave() })
			}
			w.deliverInTurns(k, id, 2, victim)
			if d := w.row(id); d.AgentID != agent.String() || !slices.Contains(d.Corrected, "agentId") || !slices.Contains(d.Corrected, "response") {
				t.Errorf("%+v", d)
			}
		})
	}
}

// TestFalseJobInDoubt: a false job whose worker died during the check is not held, also if its agent's policy is hold: no
// agent is called before the event is bound.
func TestFalseJobInDoubt(t *testing.T) {
	t.Parallel()
	w, k, victim, j, _ := newHintWorld(t)
	id := w.submit(repositioned(j, map[string]any{"value": "1"}))[0].ID
	w.policy(id, policy.OnUnknownHold)
	w.claim(id, 1)
	w.expire(id)
	w.deliverInTurns(k, id, 1, victim)
}

// TestDisagreeingJobsNeedTheChain: jobs of one event differ, and the chain is no longer configured. The delivery is held,
// because only the chain can decide between them.
func TestDisagreeingJobsNeedTheChain(t *testing.T) {
	t.Parallel()
	w, k, victim, j, _ := newHintWorld(t)
	id := w.submitAs(thiefs, repositioned(j, map[string]any{"value": "1"}))[0].ID
	w.submit(j)
	node := k.chains[w.net.ChainID()]
	delete(k.chains, w.net.ChainID())
	w.turn(k, id)
	if d := w.row(id); d.Status != outcome.Held || d.Reason != outcome.ChainUnconfigured || len(victim.received()) != 0 {
		t.Fatalf("%s %s: %s", d.Status, d.Reason, d.Error)
	}
	k.chains[w.net.ChainID()] = node
	leads, err := w.store.Lead(t.Context(), func(context.Context) error { // the leader does not have the chain either
		for _, chains := range [][]uint64{{1}, {w.net.ChainID()}} { // a worker without the chain releases nothing
			heraldtest.Equal(t, "the status before a worker has the chain", w.row(id).Status, outcome.Held)
			w.reconcile(w.newReconciler(func(c *maintenance.ReconcilerConfig) { c.Chains = chains }))
		}
		return nil
	})
	if !leads || err != nil {
		t.Fatal(leads, err)
	}
	heraldtest.Equal(t, "the status after a worker has the chain", w.row(id).Status, outcome.Queued)
	w.reconcile(w.newReconciler())
	w.deliverInTurns(k, id, 1, victim)
}

// TestFollowedFalseJob: the first job of an event is false in its tag, position and identity registry, while a follower
// reads the event. The agent gets the event, and its retraction after a reorg.
func TestFollowedFalseJob(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} { // the follower reads the event before or after the check of the false job
		t.Run(fmt.Sprint("follower is late: ", late), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a := newAgent(t, func(a *agent) { a.tool = "agent.receiveFeedback" })
			j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(a.URL)), Tag1: "true"})
			k := w.newWorker(func(c *Config) { c.Metrics = must(NewMetrics(w.registry)) })
			false1 := parsed(j)
			false1.Tag1, false1.IdentityRegistry, false1.TransactionHash, false1.BlockNumber = "forged", common.HexToAddress("0x5ec0"), common.Hash{9}, 1
			id := w.acceptJobs(false1)[0].ID
			if late {
				w.turn(k, id)
			}
			start := uint64(0)
			follower := must(watch.New(watch.Config{Chain: w.chain.Reader, Deployment: w.net.Deployment(), Ledger: w.store, Dispatcher: w.dispatcher,
				Limits: w.limits(), From: &start, Poll: 100 * time.Millisecond, Standby: 100 * time.Millisecond, Logger: w.logger()}))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- follower.Run(ctx) }()
			t.Cleanup(func() { cancel(); <-done })
			w.serve(k)
			reconciler := w.newReconciler()
			heraldtest.Await(t, "the delivery", func() bool {
				w.reconcile(reconciler) // a check may have ended in the backlog of another agent
				return w.row(id).Status == outcome.Delivered
			})
			d := w.row(id)
			if args := a.received()[0].args(t); len(a.received()) != 1 || args["tag1"] != "true" || args["transactionHash"] != j["transactionHash"] {
				t.Errorf("the agent received %v", args)
			}
			counted := counted(t, w.registry, "herald_jobs_corrected_total")
			for _, field := range []string{"tag1", "transactionHash", "identityRegistry"} {
				if !slices.Contains(d.Corrected, field) || counted[field] != 1 {
					t.Errorf("corrected: %v, counted %v, want %s", d.Corrected, counted, field)
				}
			}
			event := parsed(j)
			heraldtest.Await(t, "the follower to read the event", func() bool { // the check may have found it earlier
				cursors, err := w.store.Cursors(t.Context(), w.net.ChainID())
				return err == nil && slices.ContainsFunc(cursors, func(c cursor.State) bool {
					return strings.EqualFold(c.Contracts, w.net.Deployment().Reputation.Hex()) && c.Next > event.BlockNumber
				})
			})
			heraldtest.Must(t, w.net.Reorg(heraldtest.Within(t, 30*time.Second), 1, false))
			retraction := event.Retraction(id)
			heraldtest.Await(t, "the retraction", func() bool {
				d, err := w.store.DeliveryByKey(t.Context(), retraction.Key())
				return err == nil && d.Status == outcome.Skipped && d.Reason == outcome.ToolNotOffered // the agent has no agent.receiveRevocation
			})
		})
	}
}

// reorgTo replaces the latest block, with the feedback of j, by one with other feedback under the same key. It returns
// the job of the other feedback.
func (w *world) reorgTo(client devnet.Account, j map[string]any) map[string]any {
	w.t.Helper()
	ctx := heraldtest.Within(w.t, 30*time.Second)
	heraldtest.Must(w.t, w.net.Reorg(ctx, 1, false))
	agent, _ := new(big.Int).SetString(fmt.Sprint(j["agentId"]), 10)
	_, r, err := w.net.GiveFeedback(ctx, client, devnet.Feedback{AgentID: agent, Tag1: "second"})
	heraldtest.Must(w.t, err)
	return repositioned(j, map[string]any{"tag1": "second", "transactionHash": r.TxHash.Hex(), "blockNumber": nil,
		"blockHash": nil})
}

// TestRetryChecksItsEvent: after a call, a retry finds that a reorg replaced the event. The delivery ends, is retracted,
// and the other event is delivered under an id of its own.
func TestRetryChecksItsEvent(t *testing.T) {
	t.Parallel()
	w, k, a, j, client := newHintWorld(t, failsOnce())
	id := w.submit(j)[0].ID
	w.turn(k, id)
	w.shows(id, outcome.Waiting, outcome.ServerError, 1)
	ctx := heraldtest.Within(t, 30*time.Second)
	w.reorgTo(client, j)
	w.turn(k, id)
	d := w.row(id)
	if d.Status != outcome.Cancelled || d.Reason != outcome.Reorg || d.Key != w.keyOf(j)+"~"+id.String() {
		t.Fatalf("%s %s: %s, key %s", d.Status, d.Reason, d.Error, d.Key)
	}
	next := must(w.store.DeliveryByKey(ctx, w.keyOf(j)))
	for range 3 {
		w.turn(k, next.ID)
	}
	calls := a.received()
	if d := w.row(next.ID); d.Status != outcome.Delivered || calls[len(calls)-1].args(t)["tag1"] != "second" {
		t.Errorf("the other event: %s %s: %s", d.Status, d.Reason, d.Error)
	}
	for _, c := range calls {
		if args := c.args(t); args["tag1"] == "second" && args["deliveryId"] == id.String() {
			t.Errorf("the first id was used for the other event: %v", args)
		}
	}
}

// TestReviewAfterTheEnd: the chain has no follower. A job that differs from the event of a delivered row is known and starts
// one look at the chain. If the event is still there, nothing changes. If a reorg replaced it, the delivery is retracted,
// and the other event is delivered with the action of its job.
func TestReviewAfterTheEnd(t *testing.T) {
	t.Parallel()
	w, k, a, j, client := newHintWorld(t)
	id := w.submitAs(thiefs, j)[0].ID
	w.deliverInTurns(k, id, 1, a)
	ctx := heraldtest.Within(t, 30*time.Second)
	pending := func() int { return len(must(w.store.TakeReviews(ctx, 10))) }

	forged := repositioned(j, map[string]any{"tag1": "forged"})
	for range 3 {
		if got := w.submitAs(thiefs, forged)[0]; got.Verdict != ledger.Known || !slices.Contains(got.Differs, "tag1") {
			t.Fatalf("%+v", got)
		}
	}
	heraldtest.Equal(t, "looks for one key", pending(), 1)
	w.exec(`UPDATE herald.hints SET review_at = now() WHERE review_at IS NOT NULL AND delivery_id = $1`, id)
	k.reviewEvents(w) // the job is recent, and the node may lag: this decides nothing
	w.exec(`UPDATE herald.hints SET review_at = review_at - interval '1 hour', created_at = created_at - interval '1 hour'
		WHERE delivery_id = $1`, id)
	heraldtest.Equal(t, "looks for one key after a look at a recent job", pending(), 1)
	w.exec(`UPDATE herald.hints SET review_at = now() WHERE review_at IS NOT NULL AND delivery_id = $1`, id)
	k.reviewEvents(w)
	w.submitAs(thiefs, forged)
	if d := w.row(id); pending() != 0 || d.Status != outcome.Delivered || d.Key != w.keyOf(j) {
		t.Errorf("%s, key %s", d.Status, d.Key)
	}

	other := newAgent(t)
	moved := with(w.reorgTo(client, j), own(other.URL, map[string]any{"X-Own": "1"}))
	if got := w.submitAs(ledger.SourceToken("direct", ledger.TrustDirect), moved)[0]; got.Verdict != ledger.Known || got.ID != id {
		t.Fatalf("%+v", got)
	}
	k.reviewEvents(w)
	next := must(w.store.DeliveryByKey(ctx, w.keyOf(j)))
	if d := w.row(id); next.ID == id || d.Status != outcome.Delivered || d.Key != w.keyOf(j)+"~"+id.String() {
		t.Fatalf("%s, key %s; the key is of %s", d.Status, d.Key, next.ID)
	}
	w.serve(k)
	w.until(next.ID, outcome.Delivered)
	heraldtest.Equal(t, "calls at the endpoint that the job of the other event names", len(other.received()), 1)
	retraction := must(w.store.DeliveryByKey(ctx, parsed(j).Retraction(id).Key()))
	heraldtest.Contains(t, "the retraction", string(retraction.Job), id.String())
	calls := len(a.received())
	w.replay(id, true)
	if d := w.until(id, outcome.Cancelled); d.Reason != outcome.Reorg || w.row(next.ID).Status != outcome.Delivered || len(a.received()) != calls {
		t.Errorf("the replay: %s: %s; the other event is %s, %d calls", d.Reason, d.Error, w.row(next.ID).Status, len(a.received())-calls)
	}
}

// reviewEvents makes one round of reviews.
func (k *worker) reviewEvents(w *world) {
	k.t.Helper()
	r := &maintenance.Reviewer{Ledger: w.store, Events: k.runner.Events(), Dispatcher: w.dispatcher, Logger: w.logger()}
	r.ReviewOnce(k.t.Context())
}

// parsed returns a job as a program without access to the chain parses it.
func parsed(j map[string]any) job.Job {
	return must(job.Parse(asJSON(j), job.Limits{MaxTimeout: 5 * time.Second}))
}

// keyOf returns the key of a job.
func (w *world) keyOf(j map[string]any) string { return parsed(j).Key() }
