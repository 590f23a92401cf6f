package store

import (
	"context"
	"errors"
	"fmt"
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

// TestAcceptRefuses: Accept refuses more jobs than MaxAccept, and a refused job without a key. storetest has its verdicts.
func TestAcceptRefuses(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, in := range map[string][]ledger.Intake{
		"a batch beyond MaxAccept": make([]ledger.Intake, ledger.MaxAccept+1),
		"a row without a key":      {{Refused: "no job"}, {Job: job.Job{Kind: job.KindAgentUpdated}, Refused: "x"}},
	} {
		_, _, err := s.Accept(t.Context(), in)
		heraldtest.Fails(t, name, err)
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
