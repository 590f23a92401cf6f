package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/job"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// positioned returns a feedback in the given transaction, with the tool that its action calls.
func positioned(index int, transaction byte, tool string) Intake {
	j := feedback(42, index)
	j.Action.ToolName = tool
	if transaction > 0 {
		j.TransactionHash = common.Hash{transaction}
	}
	return Intake{Job: j}
}

func inLine(t testing.TB, s *Store) int {
	t.Helper()
	return value[int](t, s, `SELECT count(*)::int FROM herald.candidates`)
}

var (
	refuted = Outcome{Status: Rejected, Reason: "event_not_found", Stage: "check", NotAtPosition: true}
	unasked = Outcome{Status: Waiting, Reason: "chain_unavailable", Stage: "check", Delay: time.Hour, Free: true, SkipDispatch: true, NotAtPosition: true}
	pending = Outcome{Status: Waiting, Reason: "not_confirmed", Stage: "check", Delay: time.Hour, Task: true, Free: true, NotAtPosition: true}
)

// TestSameEventOtherwise checks the answer to a job that names a known delivery's event with another action or at
// another position, and which of these jobs are stored.
func TestSameEventOtherwise(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	waits := func(c *Claim) { record(t, s, c, waiting(time.Hour)) }
	uncalled := waiting(time.Hour)
	uncalled.Called = false
	elsewhen, forged := positioned(0, 1, "a"), func(transaction byte, tool string) Intake {
		in := positioned(0, transaction, tool)
		in.Job.Value = big.NewInt(1)
		return in
	}
	elsewhen.Job.Timestamp = 7
	template := func(tool, text string) Intake {
		in := positioned(0, 1, tool)
		in.Job.Action.PayloadTemplate = json.RawMessage(text)
		return in
	}
	for i, tt := range []struct {
		name   string
		known  Intake
		move   func(*Claim) // nil: the delivery stays queued
		before []Intake
		in     Intake
		want   Verdict
		kept   int
	}{
		{"all the same", positioned(0, 1, "a"), nil, nil, positioned(0, 1, "a"), Known, 0},
		{"another position", positioned(0, 1, "a"), nil, nil, positioned(0, 2, "a"), Known, 1},
		{"no position", positioned(0, 1, "a"), nil, nil, positioned(0, 0, "a"), Known, 1},
		{"another action", positioned(0, 1, "a"), nil, nil, positioned(0, 1, "b"), Conflict, 0},
		{"another action and position", positioned(0, 1, "a"), nil, nil, positioned(0, 2, "b"), Conflict, 1},
		{"another time", positioned(0, 1, "a"), nil, nil, elsewhen, Known, 0},
		{"another content", forged(1, "a"), nil, nil, positioned(0, 1, "a"), Conflict, 1},
		{"another content, action and position", forged(0, "a"), nil, nil, positioned(0, 1, "b"), Conflict, 1},
		{"behind another content at the same position", positioned(0, 1, "a"), nil, []Intake{forged(2, "a")}, positioned(0, 2, "a"), Known, 2},
		{"another content, once it was called", forged(1, "a"), waits, nil, positioned(0, 1, "a"), Conflict, 0},
		{"another content, delivered", forged(1, "a"), func(c *Claim) { record(t, s, c, delivered) }, nil, positioned(0, 1, "a"), Conflict, 0},
		{"twice", positioned(0, 1, "a"), nil, []Intake{positioned(0, 2, "a")}, positioned(0, 2, "a"), Known, 1},
		{"behind another action at the same position", positioned(0, 1, "a"), nil, []Intake{positioned(0, 2, "b")}, positioned(0, 2, "a"), Conflict, 1},
		{"behind another action at a third position", positioned(0, 1, "a"), nil, []Intake{positioned(0, 2, "b")}, positioned(0, 3, "a"), Conflict, 2},
		{"while it runs", positioned(0, 1, "a"), func(*Claim) {}, nil, positioned(0, 2, "a"), Known, 1},
		{"while it waits", positioned(0, 1, "a"), func(c *Claim) { record(t, s, c, uncalled) }, nil, positioned(0, 2, "b"), Conflict, 1},
		{"once it was called", positioned(0, 1, "a"), waits, nil, positioned(0, 2, "a"), Known, 0},
		{"once it was called, another action", positioned(0, 1, "a"), waits, nil, positioned(0, 2, "b"), Conflict, 0},
		{"delivered", positioned(0, 1, "a"), func(c *Claim) { record(t, s, c, delivered) }, nil, positioned(0, 2, "a"), Known, 0},
		{"delivered with another action", positioned(0, 1, "a"), func(c *Claim) { record(t, s, c, delivered) }, nil, positioned(0, 1, "b"), Conflict, 0},
		{"refuted", positioned(0, 1, "a"), func(c *Claim) { record(t, s, c, refuted) }, nil, positioned(0, 2, "b"), Accepted, 0},
		{"a template that Postgres writes otherwise", template("a", `{"long": [1e2, 1.50, {"z": "é", "a": true}], "b": null}`), nil, nil,
			template("a", `{"b":null,"long":[100,1.5,{"a":true,"z":"\u00e9"}]}`), Known, 0},
		{"a number for a text", template("a", `{"b": 1}`), nil, nil, template("a", `{"b": "1"}`), Conflict, 0},
	} {
		index := i + 1
		as := func(in Intake) Intake { in.Job.FeedbackIndex = uint64(index); return in }
		exec(t, s, `DELETE FROM herald.candidates`)
		exec(t, s, `UPDATE herald.deliveries SET status = 'cancelled', reason = 'operator', finished_at = now() WHERE finished_at IS NULL`)
		out, tasks := accept(t, s, as(tt.known))
		if out[0].Verdict != Accepted {
			t.Fatalf("%s: %+v", tt.name, out)
		}
		if tt.move != nil {
			tt.move(claim(t, s, tasks[0]))
		}
		for _, in := range tt.before {
			accept(t, s, as(in))
		}
		out, _ = accept(t, s, as(tt.in))
		field := map[bool]string{tt.want == Conflict: "action"}[true]
		if tt.want == Conflict && tt.in.Job.Value.Cmp(tt.known.Job.Value) != 0 {
			field = "value"
		}
		if out[0].Verdict != tt.want || out[0].Field != field {
			t.Errorf("%s: %+v", tt.name, out[0])
		}
		if n := inLine(t, s); n != tt.kept {
			t.Errorf("%s: %d in line, want %d", tt.name, n, tt.kept)
		}
	}
}

// tool returns the tool that the claim's action calls.
func tool(c *Claim) string { return c.Job.Action.ToolName }

// takeOver records o, and claims the delivery again for the candidate that replaced its job.
func takeOver(t *testing.T, s *Store, c *Claim, o Outcome) *Claim {
	t.Helper()
	rec := record(t, s, c, o)
	if !rec.Succeeded || rec.Task != nil || len(rec.Next) != 1 || rec.Next[0].ID != c.ID {
		t.Fatalf("after %s: %+v", tool(c), rec)
	}
	return claim(t, s, rec.Next[0])
}

// whenDue claims a delivery whose wait is over. The wait has no task in Redis.
func whenDue(t *testing.T, s *Store, c *Claim) *Claim {
	t.Helper()
	exec(t, s, `UPDATE herald.deliveries SET next_attempt_at = now() WHERE id = $1`, c.ID)
	due, _, err := s.Due(t.Context(), 10)
	if err != nil || len(due) != 1 {
		t.Fatal(due, err)
	}
	return claim(t, s, due[0])
}

// TestSuccession checks which candidate replaces a job that the chain refutes or does not confirm yet.
func TestSuccession(t *testing.T) {
	t.Parallel()
	s := newStore(t)

	// Refuted candidates are dropped in order. The last one's outcome is the delivery's.
	c := claim(t, s, acceptOne(t, s, positioned(1, 1, "a").Job))
	accept(t, s, positioned(1, 2, "b"), positioned(1, 3, "c"))
	c = takeOver(t, s, c, refuted)
	if tool(c) != "b" || c.Budget != 1 || c.Attempt != 2 {
		t.Errorf("%s, attempt %d of its budget, %d in all", tool(c), c.Budget, c.Attempt)
	}
	stale := *c
	c = takeOver(t, s, c, refuted)
	if tool(c) != "c" {
		t.Error(tool(c))
	}
	if _, err := s.Record(t.Context(), &stale, refuted); err == nil {
		t.Error("a claim that was recorded makes room again")
	}
	if rec := record(t, s, c, refuted); rec.Succeeded {
		t.Errorf("%+v", rec)
	}
	if d := read(t, s, c.ID); d.Status != Rejected || len(d.History) != 3 || inLine(t, s) != 0 {
		t.Errorf("%+v, %d in line", d, inLine(t, s))
	}

	// A candidate that is not confirmed yet keeps its rank. No candidate of its own transaction overtakes it, even if
	// the node sees that one first.
	c = claim(t, s, acceptOne(t, s, positioned(2, 1, "false").Job))
	accept(t, s, positioned(2, 2, "honest"))
	late := positioned(2, 2, "thief")
	late.Job.BlockHash = common.Hash{9}
	accept(t, s, late)
	if c = takeOver(t, s, c, pending); tool(c) != "honest" {
		t.Error(tool(c))
	}
	longer := pending
	longer.Delay = 2 * time.Hour
	if rec := record(t, s, c, longer); !rec.Succeeded || rec.Task != nil || len(rec.Next) != 0 { // the deferred one is due first
		t.Errorf("%+v", rec)
	}
	if c = whenDue(t, s, c); tool(c) != "false" {
		t.Error(tool(c))
	}
	exec(t, s, `UPDATE herald.candidates SET due = now() WHERE job #>> '{action,toolName}' = 'honest'`)
	if c = takeOver(t, s, c, pending); tool(c) != "honest" {
		t.Error(tool(c))
	}
	soon := pending
	soon.Delay = 0
	rec := record(t, s, c, soon)
	if rec.Succeeded || rec.Task == nil { // the waiting candidates are due later, or name the same transaction
		t.Fatalf("%+v", rec)
	}
	if c = claim(t, s, *rec.Task); tool(c) != "honest" {
		t.Error(tool(c))
	}
	rec = record(t, s, c, refuted) // now it is the turn of the other candidate of its transaction
	if c = claim(t, s, rec.Next[0]); tool(c) != "thief" {
		t.Error(tool(c))
	}
	rec = record(t, s, c, refuted) // then of the deferred candidate, when it is due
	if d := read(t, s, c.ID); !rec.Succeeded || d.Status != Waiting || d.Reason != "not_confirmed" || len(rec.Next) != 0 || rec.Task != nil {
		t.Errorf("%+v, %+v", rec, d)
	}
	if c = whenDue(t, s, c); tool(c) != "false" {
		t.Error(tool(c))
	}
	record(t, s, c, delivered)

	// A candidate without a transaction is confirmed as soon as its event exists. It therefore yields only to
	// candidates that name a transaction, and comes after all of those.
	c = claim(t, s, acceptOne(t, s, positioned(3, 0, "a").Job))
	bare := positioned(3, 0, "b")
	bare.Job.BlockNumber = 2000
	accept(t, s, bare)
	rec = record(t, s, c, soon)
	if rec.Succeeded || rec.Task == nil {
		t.Fatalf("%+v", rec)
	}
	c = claim(t, s, *rec.Task)
	accept(t, s, positioned(3, 2, "named"))
	if c = takeOver(t, s, c, pending); tool(c) != "named" {
		t.Error(tool(c))
	}
	rec = record(t, s, c, soon) // it does not yield to a candidate without a transaction
	if rec.Succeeded || rec.Task == nil {
		t.Fatalf("%+v", rec)
	}
	c = claim(t, s, *rec.Task)
	accept(t, s, positioned(3, 3, "late"))
	if c = takeOver(t, s, c, refuted); tool(c) != "late" {
		t.Error(tool(c))
	}
	exec(t, s, `UPDATE herald.candidates SET due = now() WHERE delivery_id = $1`, c.ID)
	if c = takeOver(t, s, c, refuted); tool(c) != "a" {
		t.Error(tool(c))
	}
	record(t, s, c, delivered)

	// A worker that lost its claim promotes no candidate.
	c = claim(t, s, acceptOne(t, s, positioned(6, 1, "a").Job))
	lapse(t, s, c)
	newer := next(t, s)
	if rec := record(t, s, newer, pending); rec.Succeeded {
		t.Errorf("%+v", rec)
	}
	accept(t, s, positioned(6, 2, "b"))
	if _, err := s.Record(t.Context(), c, refuted); !errors.Is(err, ErrFenced) {
		t.Error(err)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM herald.candidates WHERE delivery_id = $1 AND rank = 1`, c.ID); n != 1 {
		t.Error("a lost claim let the next take over")
	}

	// A job with which the agent was called is not replaced.
	c = claim(t, s, acceptOne(t, s, positioned(4, 1, "a").Job))
	accept(t, s, positioned(4, 2, "b"))
	called := refuted
	called.Called = true
	if rec := record(t, s, c, called); rec.Succeeded {
		t.Errorf("%+v", rec)
	}

	// A candidate for which the node gives no answer yields as an unconfirmed one does. No candidate of its own
	// transaction overtakes it.
	c = claim(t, s, acceptOne(t, s, positioned(7, 1, "a").Job))
	later := positioned(7, 1, "late")
	later.Job.BlockHash = common.Hash{9}
	accept(t, s, later)
	if rec := record(t, s, c, unasked); rec.Succeeded {
		t.Fatalf("%+v", rec)
	}
	c = whenDue(t, s, c)
	accept(t, s, positioned(7, 2, "b"))
	if rec := record(t, s, c, unasked); !rec.Succeeded || len(rec.Next) != 0 { // the reconciler dispatches it
		t.Fatalf("%+v", rec)
	}
	if c = next(t, s); tool(c) != "b" {
		t.Error(tool(c))
	}
	longer = unasked
	longer.Delay = 2 * time.Hour
	record(t, s, c, longer)
	if d := read(t, s, c.ID); d.Status != Waiting || d.Reason != "chain_unavailable" || inLine(t, s) == 0 {
		t.Errorf("%s %s", d.Status, d.Reason)
	}
	if c = whenDue(t, s, c); tool(c) != "a" {
		t.Error(tool(c))
	}
	record(t, s, c, delivered)

	// A candidate with another identity registry belongs to another agent's backlog. Retention drops the candidates of
	// ended deliveries.
	c = claim(t, s, acceptOne(t, s, positioned(5, 1, "a").Job))
	other := positioned(5, 2, "b")
	other.Job.IdentityRegistry = common.HexToAddress("0xaa")
	accept(t, s, other, positioned(5, 3, "c"))
	rec = record(t, s, c, refuted)
	backlog, err := s.Backlog(t.Context(), 10)
	if err != nil || !rec.Succeeded || len(backlog) != 1 {
		t.Fatal(rec, backlog, err)
	}
	if c = claim(t, s, backlog[0]); tool(c) != "b" || c.Agent().Registry != "0x00000000000000000000000000000000000000aa" {
		t.Errorf("%s, %+v", tool(c), c.Agent())
	}
	record(t, s, c, delivered)
	exec(t, s, `UPDATE herald.deliveries SET finished_at = now() - interval '1 year' WHERE finished_at IS NOT NULL`)
	if _, err := s.Retain(t.Context(), time.Hour, 100); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM herald.candidates c JOIN herald.deliveries d ON d.id = c.delivery_id WHERE d.job IS NULL`); n != 0 {
		t.Errorf("%d are left behind deliveries whose job was dropped", n)
	}
}

// TestSuccessionOfContent: the row gets the event fields of the candidate that replaces its job, including fields that
// the key of a validation does not contain.
func TestSuccessionOfContent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	forged := positioned(1, 1, "thief")
	forged.Job.Value = big.NewInt(1)
	c := claim(t, s, acceptOne(t, s, forged.Job))
	atTruth := positioned(1, 2, "thief")
	atTruth.Job.Value = big.NewInt(1)
	accept(t, s, atTruth, positioned(1, 2, "honest"))
	if c = takeOver(t, s, c, refuted); tool(c) != "thief" || c.Job.Value.Int64() != 1 {
		t.Errorf("%s, %s", tool(c), c.Job.Value)
	}
	if c = takeOver(t, s, c, refuted); tool(c) != "honest" || c.Job.Value.Int64() != 9977 {
		t.Errorf("%s, %s", tool(c), c.Job.Value)
	}
	record(t, s, c, delivered)

	validation := func(agent int64, validator byte, block uint64) job.Job {
		j := feedback(1, 1)
		j.Kind, j.AgentID, j.ValidatorAddress, j.BlockNumber = job.KindValidationResponse, big.NewInt(agent), common.Address{validator}, block
		return j
	}
	c = claim(t, s, acceptOne(t, s, validation(7, 1, 900)))
	genuine := validation(42, 2, 1000)
	if out, _ := accept(t, s, Intake{Job: genuine}); out[0].Verdict != Conflict || out[0].Field != "agentId" || out[0].ID != c.ID {
		t.Fatalf("%+v", out)
	}
	rec := record(t, s, c, refuted)
	backlog, err := s.Backlog(t.Context(), 10)
	if err != nil || !rec.Succeeded || len(rec.Next) != 0 || len(backlog) != 1 {
		t.Fatal(rec, backlog, err)
	}
	if c = claim(t, s, backlog[0]); c.Agent() != jobAgent(genuine) {
		t.Errorf("%+v", c.Agent())
	}
	row := value[string](t, s, `SELECT concat(agent_id, ' ', order_key, ' ', order_seq) FROM herald.deliveries WHERE id = $1`, c.ID)
	if want := "42 " + genuine.OrderKey() + " 1000"; row != want {
		t.Errorf("%s, want %s", row, want)
	}
	record(t, s, c, delivered)
}

// TestSuccessionOfRetractions: the chain cannot refute the transaction of a retraction. A candidate that names another
// transaction therefore does not overtake the first one while the node lags or is down.
func TestSuccessionOfRetractions(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for i, o := range []Outcome{pending, unasked} {
		retraction := func(transaction byte, tool string) Intake {
			in := positioned(1+i, transaction, tool)
			in.Job = in.Job.Retraction(in.Job.ID())
			in.Job.BlockHash, in.Job.BlockNumber, in.Job.Action.ToolName = common.Hash{9}, 1000-uint64(transaction), tool
			return in
		}
		c := claim(t, s, acceptOne(t, s, retraction(1, "honest").Job))
		if out, _ := accept(t, s, retraction(2, "thief")); out[0].Verdict != Conflict {
			t.Errorf("%+v", out[0])
		}
		if rec := record(t, s, c, o); rec.Succeeded {
			t.Errorf("after %s the next one took over", o.Reason)
		}
		exec(t, s, `UPDATE herald.deliveries SET next_attempt_at = now(), handed_at = NULL WHERE id = $1`, c.ID)
		c = whenDue(t, s, c)
		if rec := record(t, s, c, refuted); !rec.Succeeded {
			t.Error("after a refutation the next one does not take over")
		}
	}
}

// TestLineIsNotHeld: candidates that name a future block and no transaction do not each block the delivery until their
// block exists.
func TestLineIsNotHeld(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	bare := func(block uint64) Intake {
		in := positioned(1, 0, "thief")
		in.Job.BlockNumber = block
		return in
	}
	first := claim(t, s, acceptOne(t, s, bare(2000).Job))
	for i := range uint64(5) {
		accept(t, s, bare(3000+1000*i))
	}
	accept(t, s, positioned(1, 1, "honest"))
	c := takeOver(t, s, first, pending)
	if tool(c) != "honest" {
		t.Fatalf("%s is next", tool(c))
	}
	soon := pending // its node lags, so it keeps its turn
	soon.Delay = 0
	rec := record(t, s, c, soon)
	if rec.Succeeded || rec.Task == nil {
		t.Fatalf("%+v", rec)
	}
	if c = claim(t, s, *rec.Task); tool(c) != "honest" {
		t.Errorf("%s is next", tool(c))
	}
	record(t, s, c, delivered)
}

// TestLongLine: the cost of a job and of a succession does not grow with the number of candidates.
func TestLongLine(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := claim(t, s, acceptOne(t, s, positioned(1, 1, "a").Job))
	exec(t, s, `INSERT INTO herald.candidates (delivery_id, rank, transaction_hash, event, action, identity_registry, agent_id, order_key, order_seq, job)
		SELECT d.id, n, CASE WHEN n > 100 THEN md5(n::text) ELSE '' END, md5(n::text)::bytea, 'same', d.identity_registry, d.agent_id,
		       d.order_key, d.order_seq, d.job
		  FROM herald.deliveries d, generate_series(1, 5000) n`)
	exec(t, s, `UPDATE herald.deliveries SET status = 'rejected', reason = 'event_not_found'`)
	id := "'" + c.ID.String() + "'"
	for name, st := range map[string][2]string{
		"candidate": {statement("candidate"), id + `, '', 'new', 'same', '0xaa', '7', 'o', '1', '{}', NULL`},
		"succeed":   {statement("succeed"), fmt.Sprintf(`%s, %d, 0, '', '', ''`, id, c.No)},
	} {
		for _, when := range []string{"unknown", "known"} { // to the planner's statistics
			plan, _ := explain(t, s, name+when, st[0], st[1])
			for line := range strings.Lines(plan) {
				if most := rowsOf(line); most > 20 {
					t.Errorf("%s, a line that is %s: reads %d rows:\n%s", name, when, most, plan)
					break
				}
			}
			exec(t, s, `ANALYZE herald.candidates`)
		}
	}
}

// rowsOf returns how many rows a line of a plan read: returned rows plus rows removed by its filter.
func rowsOf(line string) (n int) {
	for _, m := range regexp.MustCompile(`actual time=\S+ rows=(\d+)|Rows Removed by .*Filter: (\d+)`).FindAllStringSubmatch(line, -1) {
		rows, _ := strconv.Atoi(m[1] + m[2])
		n = max(n, rows)
	}
	return n
}

// TestSealedCandidates: the headers of candidates are listed and reencrypted like those of deliveries.
func TestSealedCandidates(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	own, behind := positioned(1, 1, "a"), positioned(1, 2, "a")
	own.SealedHeaders, behind.SealedHeaders = []byte("own"), []byte("behind")
	behind.Job.Action.ResolveEndpoint, behind.Job.Action.Endpoint = false, &job.Endpoint{Transport: "http", URL: "https://b.example/mcp"}
	accept(t, s, own, behind)
	var page []Sealed
	read := func() (found map[string]string) {
		t.Helper()
		var err error
		var done bool
		if page, _, done, err = s.SealedAfter(t.Context(), [16]byte{}); err != nil || !done {
			t.Fatal(err, done)
		}
		found = map[string]string{}
		for _, p := range page {
			found[string(p.Ciphertext)] = p.URL
		}
		return found
	}
	if got := read(); len(got) != 2 || got["behind"] != "https://b.example/mcp" {
		t.Fatal(got)
	}
	for _, p := range page {
		if changed, err := s.Reseal(t.Context(), p, append([]byte("new "), p.Ciphertext...)); !changed || err != nil {
			t.Error(changed, err)
		}
		if changed, err := s.Reseal(t.Context(), p, []byte("again")); changed || err != nil {
			t.Error(changed, err)
		}
	}
	if got := read(); len(got) != 2 || got["new behind"] != "https://b.example/mcp" {
		t.Error(got)
	}
}

// TestSealedCandidateOfAnotherAgent: headers are sealed for the agent of their own job, which may differ from the agent
// of the delivery's first job.
func TestSealedCandidateOfAnotherAgent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	validation := func(agent int64) Intake {
		j := feedback(1, 1)
		j.Kind, j.AgentID, j.ValidatorAddress, j.BlockNumber = job.KindValidationResponse, big.NewInt(agent), common.Address{1}, 900
		return Intake{Job: j}
	}
	behind := validation(42)
	behind.SealedHeaders = []byte("behind")
	behind.Job.Action.ResolveEndpoint, behind.Job.Action.Endpoint = false, &job.Endpoint{Transport: "http", URL: "https://b.example/mcp"}
	accept(t, s, validation(7), behind)
	page, _, _, err := s.SealedAfter(t.Context(), [16]byte{})
	if err != nil || len(page) != 1 || page[0].AgentID != "42" {
		t.Errorf("%+v, %v", page, err)
	}
}

// TestReopenedMeanwhile: a batch reads a delivery whose event was not found, and wants to queue it anew. Before that, a
// producer with another identity registry, and so with another agent's lock, queues it anew with its own job. The
// batch's job then becomes a candidate, instead of being dropped as known.
func TestReopenedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first := acceptOne(t, s, positioned(1, 1, "a").Job)
	c := claim(t, s, acceptOne(t, s, positioned(2, 1, "a").Job))
	record(t, s, c, refuted)

	// The batch reads both deliveries at once, and waits for the first one's row before it answers for the second.
	answered := make(chan error, 1)
	err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT FROM herald.deliveries WHERE id = $1 FOR UPDATE`, first.ID); err != nil {
			return err
		}
		go func() {
			_, _, err := s.Accept(t.Context(), []Intake{positioned(1, 2, "a"), positioned(2, 3, "a")})
			answered <- err
		}()
		heraldtest.Await(t, "the batch waits for the row", func() bool {
			return value[bool](t, s, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`)
		})
		other := positioned(2, 2, "a")
		other.Job.IdentityRegistry = common.HexToAddress("0xaa")
		if out, _, err := s.Accept(t.Context(), []Intake{other}); err != nil || out[0].Verdict != Accepted {
			t.Errorf("%+v, %v", out, err)
		}
		return nil
	})
	if err = errors.Join(err, <-answered); err != nil {
		t.Fatal(err)
	}

	var job []byte
	if err := s.pool.QueryRow(t.Context(), `SELECT job FROM herald.candidates WHERE delivery_id = $1`, c.ID).Scan(&job); err != nil {
		t.Fatalf("the second job of the event stands nowhere: %v", err)
	}
	if hash := positioned(2, 3, "a").Job.TransactionHash.Hex(); !bytes.Contains(job, []byte(hash)) {
		t.Errorf("%s stands in line", job)
	}
}

// TestFirstComersAndClaims: producers enqueue one event at false, pending and true positions, with true and false
// content, each with an action of its own. Concurrently, workers claim, lose their leases and record late. The agent
// must be called once, with a true job, and that job must be the first true one of its position. No producer may get
// "known" for a true position with an action other than the one that was called.
func TestFirstComersAndClaims(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const events, producers, workers, truth, toCome = 60, 4, 4, 7, 3
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	type said struct {
		event  int
		action string
	}
	var mu sync.Mutex
	known, called, seen := map[said]bool{}, map[int][]string{}, map[int]int{}
	var produce, work sync.WaitGroup
	for p := range producers {
		produce.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(p)))
			for range 300 {
				event := 1 + random.IntN(events)
				transaction := random.IntN(truth)
				if random.IntN(20) == 0 {
					transaction = truth
				}
				in := positioned(event, byte(transaction), string(rune('a'+random.IntN(2))))
				if transaction == truth && random.IntN(2) == 0 {
					in.Job.BlockHash = common.Hash{byte(random.IntN(3))} // another spelling of the same position
				}
				forged := random.IntN(4) == 0
				if forged {
					in.Job.Value = big.NewInt(1)
				}
				if transaction != truth && random.IntN(2) == 0 { // the backlog of another agent, which has another lock
					in.Job.IdentityRegistry = common.HexToAddress("0xaa")
				}
				out, _, err := s.Accept(ctx, []Intake{in})
				if err != nil {
					t.Error(err)
					return
				}
				if v := out[0].Verdict; transaction == truth && !forged && (v == Known || v == Accepted) {
					mu.Lock()
					known[said{event, tool(&Claim{Job: in.Job})}] = true
					mu.Unlock()
				}
			}
		})
	}
	done := make(chan struct{})
	deliver := func(random *rand.Rand, task Task) error {
		c, err := s.Claim(ctx, task.ID, task.N, lease)
		if early := new(EarlyError); errors.As(err, &early) {
			return nil
		}
		if c == nil || err != nil {
			return err
		}
		transaction, event := c.Job.TransactionHash[0], int(c.Job.FeedbackIndex)
		mu.Lock()
		seen[event]++
		lags := seen[event] < 20 // the node has not reached the event's block
		mu.Unlock()
		o := refuted
		switch {
		case transaction == truth && !lags && c.Job.Value.Int64() != 1:
			o = delivered
		case transaction == truth && !lags: // the event exists, with other content
		case transaction == truth || transaction <= toCome && random.IntN(4) > 0:
			o = pending
			o.Delay = time.Duration(random.IntN(30)) * time.Millisecond
		}
		if random.IntN(6) == 0 && o.Status != Delivered { // the worker is suspended beyond its lease, and records anyway
			if _, err := s.pool.Exec(ctx, `UPDATE herald.deliveries SET lease_until = now() - interval '1 s' WHERE id = $1 AND claim_no = $2`, c.ID, c.No); err != nil {
				return err
			}
			if _, _, err := s.ExpireLeases(ctx, 100, 1000); err != nil {
				return err
			}
		}
		if o.Status == Delivered {
			mu.Lock()
			called[event] = append(called[event], tool(c))
			mu.Unlock()
		}
		if _, err = s.Record(ctx, c, o); err != nil && !errors.Is(err, ErrFenced) {
			return err
		}
		return nil
	}
	for w := range workers {
		work.Go(func() {
			random := rand.New(rand.NewPCG(8, uint64(w)))
			for ended, open := false, 1; !ended || open > 0; {
				select {
				case <-done:
					ended = true
				case <-ctx.Done():
					t.Error("not everything ended in time")
					return
				default:
				}
				var tasks []Task
				var err error
				if tasks, open, err = everyTask(ctx, s); err != nil {
					t.Error(err)
					return
				}
				random.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
				for _, task := range tasks {
					if err := deliver(random, task); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	produce.Wait()
	told := map[int]bool{}
	for k := range known {
		told[k.event] = true
	}
	for event := 1; event <= events; event++ { // finally a producer enqueues the true job of each event
		if told[event] {
			continue
		}
		in := positioned(event, truth, "honest")
		if out, _, err := s.Accept(ctx, []Intake{in}); err != nil {
			t.Fatal(err)
		} else if out[0].Verdict != Conflict {
			mu.Lock()
			known[said{event, "honest"}] = true
			mu.Unlock()
		}
	}
	close(done)
	work.Wait()
	for event := 1; event <= events; event++ {
		if len(called[event]) != 1 {
			t.Errorf("event %d was called with %v", event, called[event])
			continue
		}
		for k := range known {
			if k.event == event && k.action != called[event][0] {
				t.Errorf("event %d was called with action %s, and %s was known or accepted", event, called[event][0], k.action)
			}
		}
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM herald.deliveries WHERE status <> 'delivered' AND key NOT LIKE '%~%'`); n != 0 { // ~: displaced
		t.Errorf("%d are not delivered", n)
	}
}

// everyTask returns the tasks that Redis would contain: one for each dispatched delivery. open is the number of
// deliveries that have not ended.
func everyTask(ctx context.Context, s *Store) (tasks []Task, open int, err error) {
	if _, _, err := s.Due(ctx, 100); err != nil {
		return nil, 0, err
	}
	if _, err := s.Backlog(ctx, 100); err != nil {
		return nil, 0, err
	}
	rows, err := s.pool.Query(ctx, `SELECT id, dispatch, handed_at IS NOT NULL FROM herald.deliveries WHERE finished_at IS NULL`)
	if err != nil {
		return nil, 0, err
	}
	var task Task
	var handed bool
	_, err = pgx.ForEachRow(rows, []any{&task.ID, &task.N, &handed}, func() error {
		open++
		if handed {
			tasks = append(tasks, task)
		}
		return nil
	})
	return tasks, open, err
}
