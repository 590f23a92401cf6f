package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/devnet"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// repositioned returns a job with other position fields.
func repositioned(j map[string]any, position map[string]any) map[string]any {
	out := maps.Clone(j)
	maps.Copy(out, position)
	return out
}

// TestFalseFirstJobYields: a producer enqueues another party's event first, with a false position and its own endpoint.
// A job that the chain does not confirm yields to the true job, whether the chain refutes it or it names a future
// block, and however many such jobs there are.
func TestFalseFirstJobYields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim, thief := newAgent(t), newAgent(t)
	agent := w.register(at(victim.URL))
	w.serve(w.newWorker())
	nothing := map[string]any{}
	nowhere := map[string]any{"transactionHash": fmt.Sprintf("0x%064x", 9)}
	later := repositioned(nowhere, map[string]any{"blockNumber": 900, "blockHash": nil}) // the chain has fewer blocks
	forged := func(p map[string]any) map[string]any { return repositioned(p, map[string]any{"value": "1"}) }
	bare := func(block int) map[string]any {
		return map[string]any{"transactionHash": nil, "logIndex": nil, "blockHash": nil, "blockNumber": block}
	}
	for name, c := range map[string]struct {
		first  []map[string]any // positions, each with the thief's action if the event is the honest one's
		honest bool             // the thief does not change the action
		want   store.Verdict    // for the honest job
	}{
		"refuted":                     {[]map[string]any{nowhere}, false, store.Conflict},
		"refuted, same action":        {[]map[string]any{nowhere}, true, store.Known},
		"still to come":               {[]map[string]any{later}, false, store.Conflict},
		"still to come, same action":  {[]map[string]any{later}, true, store.Known},
		"a flood of what is refuted":  {flood(40, nowhere), false, store.Conflict},
		"a flood of what is to come":  {flood(20, later), false, store.Conflict},
		"a flood with the own action": {flood(20, nowhere), true, store.Known},
		"no transaction, to come":     {[]map[string]any{bare(900), bare(910), bare(920), bare(930)}, false, store.Conflict},

		"another content":                         {[]map[string]any{forged(nothing)}, false, store.Conflict},
		"another content, same action":            {[]map[string]any{forged(nothing)}, true, store.Conflict},
		"another content, to come":                {[]map[string]any{forged(later)}, false, store.Conflict},
		"another content, no transaction":         {[]map[string]any{forged(bare(900))}, false, store.Conflict},
		"another content there, behind another":   {[]map[string]any{nowhere, forged(nothing)}, false, store.Conflict},
		"a flood of another content there":        {[]map[string]any{later, forged(nothing), forged(later), forged(bare(900))}, false, store.Conflict},
		"another content of the first, then more": {append([]map[string]any{forged(bare(900))}, flood(10, forged(later))...), false, store.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			j, _ := w.rate(devnet.Feedback{AgentID: agent})
			before := len(victim.received())
			var jobs []map[string]any
			for _, p := range c.first {
				first := repositioned(j, p)
				if !c.honest {
					first = with(first, own(thief.URL, map[string]any{"X-Thief": "1"}))
				}
				jobs = append(jobs, first)
			}
			answers := w.submit(append(jobs, j)...)
			last := answers[len(answers)-1]
			path := map[bool]string{true: "value", false: "action"}[c.first[0]["value"] != nil]
			if answers[0].Verdict != store.Accepted || last.Verdict != c.want || c.want == store.Conflict && last.Path != path {
				t.Fatalf("first %+v, honest %+v", answers[0], last)
			}
			w.until(last.ID, store.Delivered)
			if got := victim.received(); len(got) != before+1 {
				t.Errorf("the agent was called %d times", len(got)-before)
			}
			if got := thief.received(); len(got) != 0 {
				t.Fatalf("the thief was called %d times", len(got))
			}
		})
	}

	// The first job with a true position wins, and the second producer gets a conflict.
	j, _ := w.rate(devnet.Feedback{AgentID: agent})
	answers := w.submit(with(j, own(thief.URL, nil)), j)
	if answers[1].Verdict != store.Conflict || answers[1].Path != "action" {
		t.Errorf("%+v", answers[1])
	}
	w.until(answers[0].ID, store.Delivered)
	if n := len(thief.received()); n != 1 {
		t.Errorf("the first comer was called %d times", n)
	}
	if again := w.submit(j)[0]; again.Verdict != store.Conflict || again.Path != "action" {
		t.Errorf("after the delivery: %+v", again)
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

// TestPositionIsTheChains: a job names the right transaction, but a false block and time. The agent gets the values of
// the chain.
func TestPositionIsTheChains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(t)
	agent := w.register(at(a.URL))
	w.serve(w.newWorker())
	j, _ := w.rate(devnet.Feedback{AgentID: agent})
	number := j["blockNumber"].(json.Number)
	id := w.accept(repositioned(j, map[string]any{"blockNumber": 1, "blockHash": fmt.Sprintf("0x%064x", 7), "timestamp": 4_000_000_000}))
	w.until(id, store.Delivered)
	args := a.received()[0].args(t)
	if fmt.Sprint(args["blockNumber"]) != number.String() || args["timestamp"] == 4_000_000_000.0 {
		t.Errorf("%v", args)
	}
	block, err := w.net.Client().HeaderByNumber(heraldtest.Within(t, 20*time.Second), new(big.Int).SetUint64(uint64(must(number.Int64()))))
	if err != nil {
		t.Fatal(err)
	}
	if got := must(json.Number(fmt.Sprintf("%.0f", args["timestamp"])).Int64()); got != int64(block.Time) {
		t.Errorf("timestamp %d, the block's is %d", got, block.Time)
	}
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
		want store.Verdict
	}{
		"the same":    {action(map[string]any{"X-B": "2", "X-A": "1"}), store.Known},
		"another":     {action(map[string]any{"X-A": "1", "X-B": "3"}), store.Conflict},
		"fewer":       {action(map[string]any{"X-A": "1"}), store.Conflict},
		"none":        {action(nil), store.Conflict},
		"another URL": {with(j, own("https://b.example/mcp", map[string]any{"X-A": "1", "X-B": "2"})), store.Conflict},
	} {
		if got := w.submit(c.job)[0]; got.Verdict != c.want || (got.Path == "action") != (c.want == store.Conflict) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// deaf is a chain whose node does not answer for jobs without a transaction. While it is away, it answers for none.
type deaf struct {
	Chain
	away   bool
	asked  int
	always bool // it answers for each job
}

func (c *deaf) Check(ctx context.Context, j job.Job, v chain.Verify) (chain.Standing, error) {
	c.asked++
	if c.away || !c.always && j.TransactionHash == (common.Hash{}) {
		return chain.Standing{}, &chain.UnavailableError{ChainID: j.ChainID, Op: "reading logs", Err: errors.New("error -32005: too many")}
	}
	return c.Chain.Check(ctx, j, v)
}

// turn makes the delivery due, and runs one attempt of each task that the reconciler dispatches.
func (w *world) turn(k *worker, id uuid.UUID) {
	w.t.Helper()
	w.exec(`UPDATE herald.deliveries SET next_attempt_at = now() WHERE id = $1 AND status = 'waiting'`, id)
	ctx := heraldtest.Within(w.t, 30*time.Second)
	due, _, err := w.store.Due(ctx, 10)
	backlog, err2 := w.store.Backlog(ctx, 10)
	if err := errors.Join(err, err2); err != nil {
		w.t.Fatal(err)
	}
	tasks := append(due, backlog...)
	if d := w.row(id); !d.Status.Final() && len(tasks) == 0 { // its own task is in Redis
		tasks = []store.Task{{ID: id, N: d.Dispatch}}
	}
	for _, task := range tasks {
		if _, err := k.deliver(ctx, task.ID, task.N); err != nil {
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
	if d := w.row(id); d.Status != store.Delivered || len(to.received()) != 1 {
		w.t.Errorf("%s %s: %s, %d calls", d.Status, d.Reason, d.Error, len(to.received()))
	}
}

// TestUncheckableFirstJobYields: the first job determines the query to the node. If the node never answers this query,
// the next candidate replaces the job.
func TestUncheckableFirstJobYields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim, thief := newAgent(t), newAgent(t)
	k := w.newWorker()
	k.chains[w.net.ChainID()] = &deaf{Chain: w.chain}
	j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(victim.URL))})
	bare := map[string]any{"transactionHash": nil, "logIndex": nil, "blockHash": nil, "blockNumber": 1, "value": "1"}
	answers := w.submit(with(repositioned(j, bare), own(thief.URL, nil)), j)
	id := answers[0].ID
	if answers[1].Verdict != store.Conflict {
		t.Fatalf("%+v", answers[1])
	}
	w.deliverInTurns(k, id, 2, victim)
	if n := len(thief.received()); n != 0 {
		t.Errorf("the thief was called %d times", n)
	}
}

// TestCandidatesSurviveNodeOutage: many candidates wait while the node is down. The reconciler checks one of them at a
// time, no candidate is lost, and the true one is delivered when the node is back.
func TestCandidatesSurviveNodeOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim := newAgent(t)
	node := &deaf{Chain: w.chain, away: true, always: true}
	k := w.newWorker()
	k.chains[w.net.ChainID()] = node
	j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(victim.URL))})
	nowhere := map[string]any{"transactionHash": fmt.Sprintf("0x%064x", 9), "value": "1"}
	jobs := []map[string]any{repositioned(j, nowhere)}
	for _, p := range flood(6, map[string]any{"value": "1"}) {
		jobs = append(jobs, repositioned(j, p))
	}
	id := w.submit(append(jobs, j)...)[0].ID
	db, err := pgx.Connect(t.Context(), w.dbURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	line := func() (n int) {
		if err := db.QueryRow(t.Context(), `SELECT count(*) FROM herald.candidates WHERE delivery_id = $1`, id).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	behind := line()
	for round := range 30 {
		before := node.asked
		w.turn(k, id)
		if d := w.row(id); d.Status.Final() || d.Attempts != 0 || line() != behind || node.asked > before+1 {
			t.Fatalf("round %d: %s %s after %d attempts, %d behind it, asked %d times", round, d.Status, d.Reason, d.Attempts, line(),
				node.asked-before)
		}
	}
	node.away = false
	w.deliverInTurns(k, id, 2*len(jobs), victim)
}

// validate makes a validation of an agent and returns its job.
func (w *world) validate(agent *big.Int, request common.Hash) (j map[string]any) {
	w.t.Helper()
	ctx := heraldtest.Within(w.t, 30*time.Second)
	if _, err := w.net.RequestValidation(ctx, w.net.Account(0), w.net.Account(1).Address, agent, "q", request); err != nil {
		w.t.Fatal(err)
	}
	receipt, err := w.net.RespondValidation(ctx, w.net.Account(1), request, 88, "", common.Hash{}, "t")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, l := range receipt.Logs {
		if e, err := erc8004.Decode(*l); err == nil && e.Kind == erc8004.ValidationResponse {
			dec := json.NewDecoder(bytes.NewReader(must(json.Marshal(must(chain.Job(e, w.net.ChainID(), w.net.Deployment(), 1770000000, job.Limits{}))))))
			dec.UseNumber()
			if err := dec.Decode(&j); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	return j
}

// TestFalseFirstJobOfADisabledAgent: the key of a validation does not contain its agent. A false job that comes first
// and names a disabled agent is not held, so that the true one is delivered.
func TestFalseFirstJobOfADisabledAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim := newAgent(t, func(a *agent) { a.tool = "agent.receiveValidation" })
	agent, disabled := w.register(at(victim.URL)), w.register(nil)
	j := w.validate(agent, common.Hash{0x42})
	id := w.submit(repositioned(j, map[string]any{"agentId": disabled.String()}))[0].ID
	registry := strings.ToLower(w.net.Deployment().Identity.Hex())
	if _, _, err := w.store.EnableAgent(heraldtest.Within(t, 30*time.Second), store.Agent{ChainID: w.net.ChainID(), Registry: registry, ID: disabled.String()}, false); err != nil {
		t.Fatal(err)
	}
	if got := w.submit(j)[0]; got.Verdict != store.Conflict || got.ID != id {
		t.Fatalf("%+v", got)
	}
	k := w.newWorker()
	w.deliverInTurns(k, id, 2, victim)
}

// TestFalseFirstJobOfABusyAgent: a false validation that comes first and names agents for which the worker has no slot
// does not delay the true one.
func TestFalseFirstJobOfABusyAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim := newAgent(t, func(a *agent) { a.tool = "agent.receiveValidation" })
	agent := w.register(at(victim.URL))
	k := w.newWorker(func(c *Config) { c.Newcomers = must(NewNewcomers(2, nil, nil)) })
	k.executor.Newcomers.noteOutcome(w.agentOf(agent), true)
	hangs, err := k.executor.Newcomers.acquireSlot(t.Context(), &store.Claim{ID: uuid.New(), No: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hangs.release(context.WithoutCancel(t.Context())) })

	j := w.validate(agent, common.Hash{0x43})
	other := func(agent, response int) map[string]any {
		return repositioned(j, map[string]any{"agentId": fmt.Sprint(agent), "response": response})
	}
	jobs := []map[string]any{other(9001, 88), other(9001, 89), other(9002, 88)}
	id := w.submit(append(jobs, j, other(9003, 88))...)[0].ID
	w.deliverInTurns(k, id, 4, victim)
}

// TestFalseFirstJobInDoubt: a false job whose worker died during the check is not held, also if its agent's policy is
// hold, so that the true one is delivered.
func TestFalseFirstJobInDoubt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	victim := newAgent(t)
	j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(victim.URL))})
	id := w.submit(repositioned(j, map[string]any{"value": "1"}), j)[0].ID
	w.policy(id, store.OnUnknownHold)
	if c, err := w.store.Claim(t.Context(), id, 1, time.Hour); err != nil || c == nil {
		t.Fatal(c, err)
	}
	w.expire(id)
	k := w.newWorker()
	w.deliverInTurns(k, id, 2, victim)
}
