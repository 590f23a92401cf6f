package store

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// TestProducers: eight producers accept the same 400 jobs concurrently, each in batches of its own order.
func TestProducers(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var jobs []ledger.Intake
	for agent := range 20 {
		jobs = append(jobs, feedbacks(agent, 1, 20)...)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	verdicts, dispatches := map[ledger.Verdict]int{}, map[string]int{}
	for producer := range 8 {
		wg.Go(func() {
			order := rand.New(rand.NewPCG(1, uint64(producer))).Perm(len(jobs))
			for batch := range slices.Chunk(order, 40) {
				in := make([]ledger.Intake, 0, len(batch))
				for _, i := range batch {
					in = append(in, jobs[i])
				}
				out, tasks, err := s.Accept(t.Context(), in)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for i, a := range out {
					verdicts[a.Verdict]++
					if a.Key != in[i].Job.Key() || a.ID != in[i].Job.ID() {
						t.Errorf("%+v answers %s", a, in[i].Job.Key())
					}
				}
				for _, id := range ids(tasks) {
					dispatches[id]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if verdicts[ledger.Accepted] != 400 || verdicts[ledger.Known] != 2800 || len(verdicts) != 2 {
		t.Errorf("verdicts %v", verdicts)
	}
	heraldtest.Equal(t, "rows", value[int](t, s, `SELECT count(*)::int FROM herald.deliveries`), 400)
	heraldtest.Equal(t, "dispatched", len(dispatches), 20*ledger.MaxDispatchedPerAgent)
	for id, n := range dispatches {
		if n != 1 {
			t.Errorf("task %s was dispatched %d times", id, n)
		}
	}
}

// TestDispatch runs intake, workers and reconciler concurrently. No agent ever has more than eight dispatched
// deliveries, nothing deadlocks, and all deliveries end.
func TestDispatch(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const agents, each = 3, 40
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	queue := make(chan ledger.Task, 10*agents*each)
	put := func(tasks []ledger.Task) {
		for _, task := range tasks {
			queue <- task
		}
	}
	watching, stopWatching := context.WithCancel(ctx)
	var watch, work sync.WaitGroup
	samples := 0
	watch.Go(func() {
		for watching.Err() == nil {
			if n := countDispatched(t, s); n > ledger.MaxDispatchedPerAgent {
				t.Errorf("%d dispatched", n)
			}
			samples++
		}
	})
	watch.Go(func() { // the reconciler, and intakes of known jobs, which lock the same rows in their own order
		for watching.Err() == nil {
			for _, step := range []func() ([]ledger.Task, error){
				func() ([]ledger.Task, error) { tasks, _, err := s.Due(ctx, 100); return tasks, err },
				func() ([]ledger.Task, error) { return s.Backlog(ctx, 100) },
				func() ([]ledger.Task, error) { _, _, err := s.ExpireLeases(ctx, 100, 11); return nil, err },
				func() ([]ledger.Task, error) {
					var in []ledger.Intake
					for range 20 {
						in = append(in, ledger.Intake{Job: feedback(rand.IntN(agents), 1+rand.IntN(each))})
					}
					_, tasks, err := s.Accept(ctx, in)
					return tasks, err
				},
			} {
				tasks, err := step()
				if err != nil {
					t.Error(err)
				}
				put(tasks)
			}
		}
	})
	var left sync.WaitGroup
	left.Add(agents * each)
	done := make(chan struct{})
	go func() { left.Wait(); close(done) }()
	seen := sync.Map{}
	for range 8 {
		work.Go(func() {
			for {
				select {
				case <-ctx.Done():
					t.Error("not everything was delivered in time")
					return
				case <-done:
					return
				case task := <-queue:
					c, err := s.Claim(ctx, task.ID, task.N, lease)
					if err != nil {
						t.Error(err)
					}
					if c == nil {
						continue
					}
					o := delivered
					if c.Attempt == 1 && rand.IntN(2) == 0 { // half of them wait once
						o = waiting(-time.Second)
						o.Task = rand.IntN(2) == 0
					}
					r, err := s.Record(ctx, c, o)
					if err != nil {
						t.Error(err)
						continue
					}
					put(r.Next)
					if r.Task != nil {
						put([]ledger.Task{*r.Task})
					}
					if _, twice := seen.LoadOrStore(c.ID, true); o.Status == outcome.Delivered {
						left.Done()
					} else if twice {
						t.Errorf("%s waited twice", c.ID)
					}
				}
			}
		})
	}
	for agent := range agents {
		work.Go(func() {
			for from := 1; from <= each; from += 20 {
				_, tasks, err := s.Accept(ctx, feedbacks(agent, from, 20))
				if err != nil {
					t.Error(err)
				}
				put(tasks)
			}
		})
	}
	work.Wait()
	stopWatching()
	watch.Wait()
	for range value[int](t, s, `SELECT count(*)::int FROM herald.deliveries WHERE status <> 'delivered'`) {
		left.Done() // a failed run must not leak the goroutine that waits
	}
	t.Logf("looked %d times", samples)
	if n := value[int](t, s, `SELECT sum((totals ->> 'delivered')::int)::int FROM herald.agents`); n != agents*each {
		t.Errorf("counted %d", n)
	}
}

// TestMissedConflict: an insert that conflicts by id with a row that it did not find by key is retried. If the conflict
// persists, Accept returns an error instead of retrying for ever.
func TestMissedConflict(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	accept(t, s, feedbacks(1, 1, 1)...) // inserts the agent's row
	known, blocked := feedback(1, 2), feedback(1, 3)
	const stranger = `INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq)
		SELECT $1, $2, kind, chain_id, identity_registry, agent_id, order_key, order_seq FROM herald.deliveries LIMIT 1`
	tx, err := s.Conns.Begin(t.Context())
	heraldtest.Must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), stranger, known.ID(), "elsewhere"); err != nil {
		t.Fatal(err)
	}
	var out []ledger.Acceptance
	done := make(chan error, 1)
	go func() {
		var err error
		out, _, err = s.Accept(t.Context(), []ledger.Intake{{Job: known}})
		done <- err
	}()
	awaitLockWaits(t, s, 1) // the insert waits for the row
	if _, err := tx.Exec(t.Context(), `UPDATE herald.deliveries SET key = $2, job = '{}' WHERE id = $1`, known.ID(), known.Key()); err != nil {
		t.Fatal(err)
	}
	heraldtest.Must(t, tx.Commit(t.Context()))
	if err := <-done; err != nil || len(out) != 1 || out[0].ID != known.ID() || out[0].Verdict == ledger.Accepted {
		t.Errorf("%+v, %v", out, err)
	}

	exec(t, s, stranger, blocked.ID(), "for good")
	if _, _, err := s.Accept(t.Context(), []ledger.Intake{{Job: blocked}}); !missedConflict(err) {
		t.Errorf("a row that stays in the way: %v", err)
	}
}

// TestAcceptDispatches: the insert dispatches as many deliveries as there are free slots, in order. Repeated keys,
// refused jobs and known jobs use no slot. While older deliveries wait in the backlog, only the backlog's own dispatch
// dispatches.
func TestAcceptDispatches(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	of := func(out []ledger.Acceptance) (verdicts string) {
		for _, a := range out {
			verdicts += string(a.Verdict[0])
		}
		return verdicts
	}
	accept(t, s, feedbacks(1, 1, 2)...)
	in := feedbacks(1, 1, 8)                         // two known, six new
	in = append(in[:5:5], append(feedbacks(1, 3, 1), // repeats the third
		append([]ledger.Intake{{Refused: "no job", Key: "invalid:1"}}, append(in[5:], feedbacks(2, 1, 9)...)...)...)...)
	out, tasks := accept(t, s, in...)
	if got, want := of(out), "kkaaakaaaa"+"aaaaaaaaa"; got != want {
		t.Errorf("verdicts %s, want %s", got, want)
	}
	handed := map[string]int{}
	for i, task := range tasks {
		d := read(t, s, task.ID)
		handed[d.AgentID]++
		if task.N != 1 || task.Kind != d.Kind || task.Attempts != 0 || task.Bulk || !task.At.IsZero() || d.Dispatch != 1 {
			t.Errorf("%+v of %+v", task, d)
		}
		if i > 0 && i < 12 && d.AgentID == read(t, s, tasks[i-1].ID).AgentID {
			t.Errorf("tasks %d and %d are of one agent", i-1, i)
		}
	}
	if handed["1"] != 6 || handed["2"] != 8 {
		t.Errorf("dispatched: %v", handed)
	}
	// One delivery of agent 2 waits in the backlog, so new ones queue behind it.
	if out, tasks := accept(t, s, feedbacks(2, 10, 2)...); of(out) != "aa" || len(tasks) != 0 {
		t.Errorf("%v, %v", out, tasks)
	}
	exec(t, s, `UPDATE herald.deliveries SET status = 'delivered', handed_at = NULL, finished_at = now() WHERE agent_id = 2 AND order_seq <= 2`)
	_, tasks = accept(t, s, feedbacks(2, 12, 1)...)
	var seqs []int64
	for _, task := range tasks {
		seqs = append(seqs, value[int64](t, s, `SELECT order_seq::bigint FROM herald.deliveries WHERE id = $1`, task.ID))
	}
	if fmt.Sprint(seqs) != "[9 10]" {
		t.Errorf("with room for two: feedback %v, want the oldest in line", seqs)
	}
}

func TestKnownAndConflict(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first := acceptOne(t, s, feedback(42, 1))
	same := feedback(42, 1)
	same.BlockNumber, same.TransactionHash, same.Timestamp, same.Meta = 2000, common.HexToHash("0x01"), 5, []byte(`{"a": 1}`)
	other := feedback(42, 1)
	other.Tag1 = "latency"
	value := feedback(42, 1)
	value.Value = big.NewInt(1)
	twin := feedback(42, 2)
	out, tasks := accept(t, s, ledger.Intake{Job: same}, ledger.Intake{Job: other}, ledger.Intake{Job: value}, ledger.Intake{Job: twin}, ledger.Intake{Job: twin})
	for i, want := range []ledger.Acceptance{
		{Verdict: ledger.Known, ID: first.ID, Key: same.Key(), Status: outcome.Queued},
		{Verdict: ledger.Conflict, ID: first.ID, Key: same.Key(), Status: outcome.Queued, Field: "tag1", Stored: "uptime"},
		{Verdict: ledger.Conflict, ID: first.ID, Key: same.Key(), Status: outcome.Queued, Field: "value", Stored: "9977"},
		{Verdict: ledger.Accepted, ID: twin.ID(), Key: twin.Key(), Status: outcome.Queued},
		{Verdict: ledger.Known, ID: twin.ID(), Key: twin.Key(), Status: outcome.Queued},
	} {
		if !reflect.DeepEqual(out[i], want) {
			t.Errorf("%d: got %+v, want %+v", i, out[i], want)
		}
	}
	if len(tasks) != 1 {
		t.Errorf("dispatched %v", tasks)
	}
	if first.ID != job.IDOf("eip155:8453:0x8004baa17c55a88189ae136b182e5fda19de9b63/42/0x00000000000000000000000000000000000000c1/1#NewFeedback") {
		t.Error("id is not the UUIDv5 of the key")
	}
	if _, _, err := s.Accept(t.Context(), make([]ledger.Intake, ledger.MaxAccept+1)); err == nil {
		t.Error("a batch beyond MaxAccept was taken")
	}
	if _, _, err := s.Accept(t.Context(), []ledger.Intake{{Refused: "no job"}, {Job: job.Job{Kind: job.KindAgentUpdated}, Refused: "x"}}); err == nil {
		t.Error("a row without a key was taken")
	}
	if out, tasks, err := s.Accept(t.Context(), nil); out != nil || tasks != nil || err != nil {
		t.Error(out, tasks, err)
	}
}

// TestSecondJobOfAnUnverifiedKey: without verification, the final state of a key's row decides the result for the same event, and for
// another content under the same key.
func TestSecondJobOfAnUnverifiedKey(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const anew, known, conflict = "anew", "known", "conflict"
	for i, tt := range []struct {
		status, reason string
		called         bool
		job            string // SQL: the stored job
		same, other    string
	}{
		{"queued", "", false, "job", known, conflict},
		{"delivered", "", true, "job", known, conflict},
		{"skipped", "no_uri", false, "job", known, conflict},
		{"dead", "expired", false, "job", known, conflict},
		{"cancelled", "operator", false, "job", known, conflict},
		{"rejected", "tool_error", true, "job", known, conflict},
		{"cancelled", "reorg", false, "job", anew, anew},
		{"cancelled", "reorg", true, "job", known, conflict},
		{"rejected", "event_not_found", false, "job", anew, anew},
		{"rejected", "event_not_found", true, "job", known, conflict},
		{"rejected", "invalid_job", false, "job", known, conflict},
		{"rejected", "invalid_job", false, "NULL", anew, anew},
		{"rejected", "invalid_job", false, `'"nonsense"'`, anew, anew},
		{"queued", "", false, `'"nonsense"'`, known, known},
		{"delivered", "", true, "NULL", known, known},
		{"cancelled", "reorg", false, "NULL", anew, anew},
	} {
		for _, event := range []string{"same", "other"} {
			t.Run(strings.Join([]string{tt.status, tt.reason, fmt.Sprint(tt.called), tt.job, event}, " "), func(t *testing.T) {
				agent, want := 100+2*i, tt.same
				j := feedback(agent, 1)
				if event == "other" {
					agent, want = agent+1, tt.other
					j = feedback(agent, 1)
					j.FeedbackURI = "https://elsewhere.example"
				}
				old := acceptOne(t, s, feedback(agent, 1))
				exec(t, s, `UPDATE herald.deliveries SET status = $2, reason = nullif($3, ''), called = $4, job = `+tt.job+`, handed_at = NULL, secret_headers = 'sealed',
					attempts = 3, error = 'old', created_at = now() - interval '40 days', accepted_at = now() - interval '40 days',
					finished_at = CASE WHEN $2 <> 'queued' THEN now() END WHERE id = $1`, old.ID, tt.status, tt.reason, tt.called)
				j.BlockNumber = 7777
				in := ledger.Intake{Job: j, SealedHeaders: []byte("sealed"), SameHeaders: func(b []byte) bool { return string(b) == "sealed" }}
				out, tasks := accept(t, s, in)
				a, got := out[0], ""
				switch {
				case a.Verdict == ledger.Accepted && a.ID == old.ID:
					got = anew
				default:
					got = string(a.Verdict)
				}
				if got != want || a.Key != j.Key() || (got == conflict) != (a.Field == "feedbackURI") {
					t.Fatalf("got %s (%+v), want %s", got, a, want)
				}
				if again, _ := accept(t, s, in); got != conflict && (again[0].Verdict != ledger.Known || again[0].ID != a.ID) {
					t.Errorf("once more: %+v", again)
				}
				d := read(t, s, a.ID)
				switch got {
				case anew:
					if len(tasks) != 1 || tasks[0].ID != a.ID || d.Status != outcome.Queued || d.Error != "" || d.FinishedAt != nil {
						t.Errorf("row %+v, tasks %+v", d, tasks)
					}
					c := claim(t, s, tasks[0])
					if c.Attempt != 4 || c.Budget != 1 {
						t.Errorf("attempt %d, %d of its budget", c.Attempt, c.Budget)
					}
					if c.Job.BlockNumber != 7777 || string(c.SealedHeaders) != "sealed" {
						t.Errorf("claim %+v", c)
					}
					if r := record(t, s, c, delivered); r.Age > time.Minute {
						t.Errorf("age %s", r.Age)
					}
				case known, conflict:
					if string(d.Status) != tt.status {
						t.Errorf("row %+v", d)
					}
				}
			})
		}
	}
}

// TestReturnsOnce: producers that concurrently enqueue an event that was not found get the same row.
func TestReturnsOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for round := range 5 {
		old := acceptOne(t, s, feedback(round, 1))
		exec(t, s, `UPDATE herald.deliveries SET status = 'rejected', reason = 'event_not_found', handed_at = NULL, finished_at = now() WHERE id = $1`, old.ID)
		var wg sync.WaitGroup
		var mu sync.Mutex
		accepted, keys := 0, map[string]bool{}
		for i := range 8 {
			wg.Go(func() {
				j := feedback(round, 1)
				j.Tag1 = "other"
				if i%2 == 0 { // another identity registry, which the agent's lock does not exclude
					j.IdentityRegistry = common.HexToAddress("0x02")
				}
				out, _, err := s.Accept(t.Context(), []ledger.Intake{{Job: j}, {Job: j}})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, a := range out {
					if a.Verdict == ledger.Accepted {
						accepted++
					}
					keys[a.ID.String()] = true
				}
			})
		}
		wg.Wait()
		if accepted != 1 || len(keys) != 1 || !keys[old.ID.String()] {
			t.Errorf("accepted %d times, as %v", accepted, keys)
		}
	}
}

func TestRefusedIntake(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	nothing := ledger.Intake{Refused: "not JSON\x00", Key: "invalid:abc", Job: job.Job{Kind: "some\x00kind"}}
	named := ledger.Intake{Refused: "chainId: no", Job: feedback(42, 1), SealedHeaders: []byte("x")}
	out, tasks := accept(t, s, nothing, named, nothing)
	if len(tasks) != 0 || out[0].Status != outcome.Rejected || out[0].Verdict != ledger.Accepted || out[1].Verdict != ledger.Accepted || out[2].Verdict != ledger.Known {
		t.Fatalf("%+v, %v", out, tasks)
	}
	d := read(t, s, job.IDOf("invalid:abc"))
	if d.Status != outcome.Rejected || d.Reason != "invalid_job" || d.Error != "not JSON\uFFFD" || d.Job != nil || d.FinishedAt == nil || d.Kind != "some\uFFFDkind" {
		t.Errorf("%+v", d)
	}
	refused(t, s, d.ID, 1, "it is rejected")
	// The event itself gets the delivery. The refused job changes nothing when it is enqueued again.
	out, _ = accept(t, s, ledger.Intake{Job: feedback(42, 1)}, named)
	if out[0].Verdict != ledger.Accepted || out[0].ID != named.Job.ID() || out[1].Verdict != ledger.Known || out[1].ID != out[0].ID {
		t.Errorf("%+v", out)
	}
}

func TestAgentUpdated(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	up := feedback(42, 0)
	up.Kind = job.KindAgentUpdated
	out, tasks := accept(t, s, ledger.Intake{Job: up}, ledger.Intake{Job: feedback(42, 1)}, ledger.Intake{Job: up})
	if out[0].Verdict != ledger.Refreshed || out[2].Verdict != ledger.Refreshed || out[1].Verdict != ledger.Accepted || len(tasks) != 1 {
		t.Fatalf("%+v", out)
	}
	if c := claim(t, s, tasks[0]); c.Epoch != 2 {
		t.Errorf("epoch %d", c.Epoch)
	}
	heraldtest.Equal(t, "rows", value[int](t, s, `SELECT count(*)::int FROM herald.deliveries`), 1)
}

// TestDeadline: a call without a deadline of its own times out although another transaction never releases the lock.
func TestDeadline(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	acceptOne(t, s, feedback(42, 1))
	err := pgx.BeginFunc(t.Context(), s.Conns, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT FROM herald.agents FOR UPDATE`); err != nil {
			return err
		}
		slow, pool := *s, *s.Pool
		pool.LimitCalls(50 * time.Millisecond)
		slow.Pool = &pool
		_, _, err := slow.Accept(context.Background(), feedbacks(42, 2, 1))
		return err
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
