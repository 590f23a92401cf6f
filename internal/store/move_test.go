package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// misplaced returns the event of a kind about feedback 1, and a job for it that names another identity registry.
func misplaced(kind job.Kind, log uint) (event, sent job.Job) {
	event = inBlock(feedback(1, 1), 900, 'a')
	event.Kind, event.LogIndex = kind, &log
	if kind == job.KindResponseAppended {
		event.Responder = common.HexToAddress("0x77")
	}
	if kind == job.KindFeedbackRevoked {
		event.Reason = job.RevokedByClient
	}
	sent = event
	sent.IdentityRegistry = common.HexToAddress("0x1d")
	return event, sent
}

// deliverMisplaced runs the tasks as a worker does: the check of each delivery moves it to the agent of its event. It
// ends when no mechanism has another task, and moves the clock to the end of waits of up to a minute.
// It returns the kind of the first delivery that was called.
func deliverMisplaced(t *testing.T, s *Store, tasks []ledger.Task) (first job.Kind) {
	t.Helper()
	for range 20 {
		for ; len(tasks) > 0; tasks = tasks[1:] {
			c, err := s.Claim(t.Context(), tasks[0].ID, tasks[0].N, lease)
			heraldtest.Must(t, err)
			event := c.Job
			event.IdentityRegistry = registry
			before := c.Agent()
			if !c.Bound {
				heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: event}))
			}
			o := delivered
			if c.Agent() != before {
				o = pending
				o.Rerouted = true
			} else if !c.MayCall {
				o = ledger.Outcome{Status: outcome.Waiting, Reason: "behind_earlier", Stage: "check", Free: true, NoTurn: true}
			}
			if o.Called && first == "" {
				first = event.Kind
			}
			tasks = append(tasks, record(t, s, c, o).Next...)
		}
		exec(t, s, `UPDATE herald.work SET next_attempt_at = next_attempt_at - interval '1 minute' WHERE status = 'waiting'`)
		due, _, err := s.Due(t.Context(), 100)
		heraldtest.Must(t, err)
		line, err := s.Backlog(t.Context(), 100)
		heraldtest.Must(t, err)
		tasks = append(due, line...)
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM herald.work`); n > 0 {
		t.Errorf("%d deliveries do not end: %s", n, value[string](t, s, `SELECT string_agg(concat(kind, ' ', status, ' ', reason, ' ', next_attempt_at), '; ') FROM herald.work`))
	}
	return first
}

// countLockWaits returns how many of the store's connections wait for a lock.
func countLockWaits(t *testing.T, s *Store) int {
	return value[int](t, s, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
}

// beginWith begins a transaction that runs a statement. The transaction holds its locks until the caller ends it.
func beginWith(t *testing.T, s *Store, sql string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := s.Conns.Begin(t.Context())
	heraldtest.Must(t, err)
	_, err = tx.Exec(t.Context(), sql, args...)
	heraldtest.Must(t, err)
	return tx
}

// awaitLockWaits waits until at least n of the store's connections wait for a lock.
func awaitLockWaits(t *testing.T, s *Store, n int) {
	t.Helper()
	heraldtest.Await(t, fmt.Sprintf("%d waits for a lock", n), func() bool { return countLockWaits(t, s) >= n })
}

// TestMovedDeliveriesReleaseOthers: all jobs name a wrong identity registry, as a sender does that leaves it out on a
// chain with two. The checks move them to the right agent, and none of those that waited for another one is left behind.
func TestMovedDeliveriesReleaseOthers(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	for name, kinds := range map[string][]job.Kind{
		"responses to an unknown feedback": {job.KindResponseAppended, job.KindResponseAppended, job.KindResponseAppended, job.KindResponseAppended},
		"a feedback and its responses":     {job.KindNewFeedback, job.KindResponseAppended, job.KindResponseAppended, job.KindResponseAppended},
		"a feedback and its revocation":    {job.KindNewFeedback, job.KindFeedbackRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			s.StrictOrder = true
			var in []ledger.Intake
			for i, kind := range kinds {
				_, sent := misplaced(kind, uint(i))
				in = append(in, ledger.Intake{Job: sent})
			}
			_, tasks := accept(t, s, in...)
			heraldtest.Equal(t, "called first", deliverMisplaced(t, s, tasks), kinds[0])
		})
	}
}

// TestFeedbackOfAnotherAgent: a revocation and a response name another agent's identity registry than their feedback,
// which has been checked. They are called after it.
func TestFeedbackOfAnotherAgent(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	s.StrictOrder = true
	event, _ := misplaced(job.KindNewFeedback, 0)
	_, tasks := accept(t, s, ledger.Intake{Job: event})
	_, revoked := misplaced(job.KindFeedbackRevoked, 1)
	_, response := misplaced(job.KindResponseAppended, 2)
	_, more := accept(t, s, ledger.Intake{Job: revoked}, ledger.Intake{Job: response})
	heraldtest.Equal(t, "dispatched before the feedback", len(more), 0)
	heraldtest.Equal(t, "called first", deliverMisplaced(t, s, tasks), job.KindNewFeedback)
}

// TestEventOfAnotherAgentIsNotLost: while a check's result is recorded, that an event was not found, a second job of the
// event is being accepted, or the chain follower reads it. It names another identity registry, so the two transactions
// lock different agents.
func TestEventOfAnotherAgentIsNotLost(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	ForceGroups(t, s, 8)
	event, sent := misplaced(job.KindNewFeedback, 0)
	sent.TransactionHash = common.Hash{1}
	for name, arrive := range map[string]func() error{
		"a job": func() error {
			_, _, err := s.Accept(t.Context(), []ledger.Intake{{Job: event, Source: ordinary}})
			return err
		},
		"the chain follower": func() error {
			newChainReader(t, s).read(100, 900, true, event)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			InsertOthers(t, s)
			c := claim(t, s, acceptOne(t, s, sent))
			tx := beginWith(t, s, `LOCK TABLE herald.hints IN SHARE MODE`) // arrive has read the delivery when it stops here
			arrived, recorded := make(chan error, 1), make(chan error, 1)
			go func() { arrived <- arrive() }()
			awaitLockWaits(t, s, 1)
			go func() {
				_, err := s.Record(t.Context(), c, refuted)
				recorded <- err
			}()
			heraldtest.Await(t, "the record waits or ends", func() bool { return len(recorded) > 0 || countLockWaits(t, s) >= 2 })
			heraldtest.Must(t, tx.Rollback(t.Context()))
			heraldtest.Must(t, <-arrived)
			heraldtest.Must(t, <-recorded)
			if d := read(t, s, c.ID); d.Status != outcome.Queued {
				t.Errorf("it is %s %s, and nothing reads the event again", d.Status, d.Reason)
			}
		})
	}
}

// TestFollowerDuringAHint: the chain follower is about to store a delivery's job as its first hint, because it has read
// another event. At the same time, a job that names another identity registry becomes a hint, and stores the delivery's
// job as the first one too.
func TestFollowerDuringAHint(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	event, sent := misplaced(job.KindNewFeedback, 0)
	stored := event
	stored.Tag1, stored.TransactionHash = "other", common.Hash{1}
	id := acceptOne(t, s, stored).ID
	tx, err := s.Conns.Begin(t.Context())
	heraldtest.Must(t, err)
	rows, err := newArrivals([]ledger.Intake{{Job: sent, Source: ordinary}})
	heraldtest.Must(t, err)
	heraldtest.Must(t, s.LockAgents(t.Context(), tx, arrivalAgents(rows)))
	_, err = tx.Exec(t.Context(), `LOCK TABLE herald.hints IN SHARE MODE`) // the follower stops when it stores the hint
	heraldtest.Must(t, err)
	read := make(chan ledger.Acceptance, 1)
	go func() {
		defer close(read)
		read <- newChainReader(t, s).read(100, 900, true, event).Answers[0]
	}()
	awaitLockWaits(t, s, 1)
	_, _, err = s.acceptLocked(t.Context(), tx, rows)
	heraldtest.Must(t, err)
	heraldtest.Must(t, tx.Commit(t.Context()))
	if a := <-read; a.ID != id || a.Verdict != ledger.Known {
		t.Errorf("%+v", a)
	}
	hints, err := readHints(t.Context(), s.Conns, id)
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "hints", len(hints), 2)
}

// TestGoneWithAnotherAgent: the chain has another event with the key of a called delivery, and the event is of another agent
// than the delivery's job said. Record locks both agents in the order in which all transactions lock them.
func TestGoneWithAnotherAgent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	sent, next := misplaced(job.KindNewFeedback, 0)
	next.Tag1, next.TransactionHash = "other", common.Hash{1}
	c := claim(t, s, acceptOne(t, s, sent))
	tx := beginWith(t, s, `SET LOCAL deadlock_timeout = '10s'`) // Record would notice a deadlock first
	heraldtest.Must(t, s.LockAgents(t.Context(), tx, []erc8004.Agent{ledger.AgentOf(next)}))
	recorded := make(chan error, 1)
	go func() {
		_, err := s.Record(t.Context(), c, ledger.Outcome{Status: outcome.Cancelled, Reason: outcome.Reorg, Stage: "check", Gone: &ledger.Gone{Next: &next}})
		recorded <- err
	}()
	awaitLockWaits(t, s, 1)
	heraldtest.Must(t, s.LockAgents(t.Context(), tx, []erc8004.Agent{ledger.AgentOf(sent)}))
	heraldtest.Must(t, tx.Commit(t.Context()))
	heraldtest.Must(t, <-recorded)
}

// TestMoveBeforeTheLock: an operator cancels a delivery, but before the agent is locked, the chain follower gives the
// delivery to the agent of its event. The end counts for that agent, although another transaction changes its row.
func TestMoveBeforeTheLock(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	event, sent := misplaced(job.KindNewFeedback, 0)
	sent.TransactionHash = common.Hash{1}
	id := acceptOne(t, s, sent).ID
	const change = `UPDATE herald.agents SET updated_at = now() WHERE identity_registry = $1`
	cancelled := make(chan error, 1)
	begin := func(agent erc8004.Agent) pgx.Tx {
		return beginWith(t, s, change, agent.Registry)
	}
	awaitLock := func() {
		t.Helper()
		heraldtest.Await(t, "Cancel waits or ends", func() bool { return len(cancelled) > 0 || countLockWaits(t, s) > 0 })
	}

	former := begin(ledger.AgentOf(sent))
	go func() {
		_, _, _, err := s.Cancel(t.Context(), []uuid.UUID{id}, false)
		cancelled <- err
	}()
	awaitLock()
	newChainReader(t, s).read(100, 900, true, event)
	present := begin(ledger.AgentOf(event))
	heraldtest.Must(t, former.Commit(t.Context()))
	awaitLock()
	heraldtest.Must(t, present.Commit(t.Context()))
	heraldtest.Must(t, <-cancelled)
	if got := value[string](t, s, `SELECT totals::text FROM herald.agents WHERE identity_registry = $1`, ledger.AgentOf(event).Registry); got != `{"cancelled": 1}` {
		t.Errorf("the agent's counts are %s", got)
	}
}

// TestMoveAfterTheLock: an operator's Cancel has locked the agent of a delivery. The chain follower, which locks only the
// agent of the event, does not give the delivery to that agent before the Cancel has ended.
func TestMoveAfterTheLock(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	event, sent := misplaced(job.KindNewFeedback, 0)
	sent.TransactionHash = common.Hash{1}
	found, err := s.findRows(t.Context(), statements.Text("agents_of"), []uuid.UUID{acceptOne(t, s, sent).ID})
	heraldtest.Must(t, err)
	read := make(chan bool, 1)
	_, err = s.changeAgents(t.Context(), found, false, func(context.Context, pgx.Tx) error {
		go func() {
			newChainReader(t, s).read(100, 900, true, event)
			read <- true
		}()
		heraldtest.Await(t, "the follower waits or ends", func() bool { return len(read) > 0 || countLockWaits(t, s) > 0 })
		now, err := s.findRows(t.Context(), statements.Text("agents_of"), found.ids)
		heraldtest.Equal(t, "agents", now.agents, found.agents)
		return err
	})
	heraldtest.Must(t, err)
	heraldtest.Receive(t, "the end of the reading", read)
}

// TestCancelWhileAHintArrives: while a job that names another identity registry becomes a hint of a waiting delivery, an
// operator cancels the delivery. The two transactions lock different agents, so they must lock the two rows of the
// delivery in the same order.
func TestCancelWhileAHintArrives(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	event, sent := misplaced(job.KindNewFeedback, 0)
	sent.TransactionHash = common.Hash{1}
	id := acceptOne(t, s, sent).ID
	exec(t, s, `UPDATE herald.work SET status = 'waiting', reason = 'not_confirmed', next_attempt_at = now() + interval '1 minute'`)
	tx := beginWith(t, s, `LOCK TABLE herald.hints IN SHARE MODE`) // Accept has locked the delivery when it stops here
	accepted, cancelled := make(chan error, 1), make(chan error, 1)
	go func() {
		_, _, err := s.Accept(t.Context(), []ledger.Intake{{Job: event, Source: ordinary}})
		accepted <- err
	}()
	awaitLockWaits(t, s, 1)
	go func() {
		_, _, _, err := s.Cancel(t.Context(), []uuid.UUID{id}, false)
		cancelled <- err
	}()
	awaitLockWaits(t, s, 2)
	heraldtest.Must(t, tx.Rollback(t.Context()))
	heraldtest.Must(t, heraldtest.Receive(t, "the result of Accept", accepted))
	heraldtest.Must(t, heraldtest.Receive(t, "the result of Cancel", cancelled))
}

// TestBindToANewAgent: a transaction that accepts the first job of an agent has inserted the agent's row, and still has to
// lock another agent. A worker that gives a delivery of the other agent to the new one must not have locked the other one
// while it waits for the row: the two would deadlock.
func TestBindToANewAgent(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	event, sent := misplaced(job.KindNewFeedback, 0)
	c := claim(t, s, acceptOne(t, s, sent))
	chains, registries, ids := SplitAgents([]erc8004.Agent{ledger.AgentOf(event)})
	accepting := beginWith(t, s, statements.Text("make_agents"), chains, registries, ids)

	bound := make(chan error, 1)
	go func() { bound <- s.Bind(t.Context(), c, ledger.Binding{Job: event, Source: c.Source}) }()
	heraldtest.Await(t, "the worker waits or ends", func() bool { return len(bound) > 0 || countLockWaits(t, s) > 0 })
	heraldtest.Must(t, s.LockAgents(t.Context(), accepting, []erc8004.Agent{ledger.AgentOf(sent)}))
	heraldtest.Must(t, accepting.Commit(t.Context()))
	heraldtest.Must(t, <-bound)
	heraldtest.Equal(t, "agent", c.Agent(), ledger.AgentOf(event))
}

// TestBindInADeadlock: Bind and a transaction that has locked another agent lock the two rows of a delivery in different
// orders. Postgres ends Bind's transaction, and Bind tries again.
func TestBindInADeadlock(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	event, sent := misplaced(job.KindNewFeedback, 0)
	c := claim(t, s, acceptOne(t, s, sent))
	tx := beginWith(t, s, `SET LOCAL deadlock_timeout = '10s'`) // Bind notices the deadlock first
	lock := func(table string) {
		_, err := tx.Exec(t.Context(), `SELECT FROM herald.`+table+` WHERE id = $1 FOR UPDATE`, c.ID)
		heraldtest.Must(t, err)
	}
	lock("work")
	bound := make(chan error, 1)
	go func() { bound <- s.Bind(t.Context(), c, ledger.Binding{Job: event, Source: c.Source}) }()
	awaitLockWaits(t, s, 1)
	lock("history")
	heraldtest.Must(t, tx.Rollback(t.Context()))
	heraldtest.Must(t, <-bound)
	heraldtest.Equal(t, "agent", c.Agent(), ledger.AgentOf(event))
}

// TestClaimWhileAHintArrives: while a job that names another identity registry becomes a hint of a waiting delivery, a
// worker claims the delivery, because its wait has ended. The two transactions lock different agents. The claim does not
// wait for the other one, which may wait for it.
func TestClaimWhileAHintArrives(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	event, sent := misplaced(job.KindNewFeedback, 0)
	sent.TransactionHash = common.Hash{1}
	waits := pending
	waits.Delay = 0
	rec := record(t, s, claim(t, s, acceptOne(t, s, sent)), waits)
	tx := beginWith(t, s, `LOCK TABLE herald.hints IN SHARE MODE`) // Accept has locked the delivery when it stops here
	accepted := make(chan error, 1)
	go func() {
		_, _, err := s.Accept(t.Context(), []ledger.Intake{{Job: event, Source: ordinary}})
		accepted <- err
	}()
	awaitLockWaits(t, s, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	c, err := s.Claim(ctx, rec.Task.ID, rec.Task.N, lease)
	heraldtest.Must(t, tx.Rollback(t.Context()))
	heraldtest.Must(t, <-accepted)
	if err != nil || c == nil {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestRecordWhileEventIsRead: the chain follower gives a delivery to the agent of its event, while a worker records that
// its check did not find the event. The two transactions lock different agents, so they must lock the two rows of the
// delivery in the same order.
func TestRecordWhileEventIsRead(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	event, sent := misplaced(job.KindNewFeedback, 0)
	sent.TransactionHash = common.Hash{1}
	c := claim(t, s, acceptOne(t, s, sent))
	exec(t, s, `CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$`)
	exec(t, s, `CREATE TRIGGER pause BEFORE UPDATE ON herald.history FOR EACH ROW WHEN (NEW.hints > OLD.hints) EXECUTE FUNCTION pause()`)
	tx := beginWith(t, s, `SELECT pg_advisory_xact_lock(1)`)
	done, recorded := make(chan bool), make(chan error, 1)
	go func() {
		newChainReader(t, s).read(100, 900, true, event)
		close(done)
	}()
	awaitLockWaits(t, s, 1)
	go func() {
		_, err := s.Record(t.Context(), c, refuted)
		recorded <- err
	}()
	awaitLockWaits(t, s, 2)
	heraldtest.Must(t, tx.Rollback(t.Context()))
	heraldtest.Must(t, <-recorded)
	<-done
}

// TestRecordAfterAMove: the chain follower gives a delivery to the agent of its event while a worker checks it. The worker
// then records its result, under the lock of the agent that the job named. It must not wait for the row of the event's agent:
// the transaction that has locked that row may wait for the delivery.
func TestRecordAfterAMove(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	busy := ledger.Outcome{Status: outcome.Waiting, Reason: outcome.AgentBusy, Stage: "claim", Delay: time.Second, Task: true, Free: true}
	failed := ledger.Outcome{Status: outcome.Waiting, Reason: outcome.InternalError, Stage: "check", Delay: time.Second, Task: true}
	for name, o := range map[string]ledger.Outcome{"not confirmed": pending, "not found": refuted, "no slot": busy, "failed": failed} {
		t.Run(name, func(t *testing.T) {
			emptyStore(t, s)
			event, sent := misplaced(job.KindNewFeedback, 0)
			sent.TransactionHash = common.Hash{1}
			c := claim(t, s, acceptOne(t, s, sent))
			newChainReader(t, s).read(100, 900, true, event)
			tx := beginWith(t, s, `SET LOCAL deadlock_timeout = '10s'`) // Record would notice a deadlock first
			heraldtest.Must(t, s.LockAgents(t.Context(), tx, []erc8004.Agent{ledger.AgentOf(event)}))
			recorded := make(chan error, 1)
			go func() {
				_, err := s.Record(t.Context(), c, o)
				recorded <- err
			}()
			heraldtest.Await(t, "the record waits or ends", func() bool { return len(recorded) > 0 || countLockWaits(t, s) > 0 })
			_, err := tx.Exec(t.Context(), `SELECT FROM herald.history WHERE id = $1 FOR UPDATE`, c.ID)
			heraldtest.Must(t, err)
			heraldtest.Must(t, tx.Commit(t.Context()))
			heraldtest.Must(t, <-recorded)
		})
	}
}

// TestBindWhileEventIsRead: the chain follower has read a delivery whose job names another identity registry, when a
// worker binds the delivery and so gives it to the agent of its event. The two transactions lock different agents. The
// follower must read the delivery again: with the old job, it would give the delivery back to the wrong agent.
func TestBindWhileEventIsRead(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	event, sent := misplaced(job.KindNewFeedback, 0)
	sent.BlockNumber, sent.BlockHash = 899, common.Hash{'z'}
	acceptOne(t, s, feedback(1, 2)) // both agents have rows
	c := claim(t, s, acceptOne(t, s, sent))
	a, err := newArrival(ledger.Intake{Job: event, Source: ledger.Source{Name: ledger.SourceChain}})
	heraldtest.Must(t, err)
	a.read, a.followed = true, true
	err = pgx.BeginFunc(t.Context(), s.Conns, func(tx pgx.Tx) error {
		heraldtest.Must(t, s.LockAgents(t.Context(), tx, []erc8004.Agent{a.agent}))
		holders, err := s.readHolders(t.Context(), tx, hasKey, []string{a.key})
		heraldtest.Must(t, err)
		heraldtest.Must(t, s.Bind(t.Context(), c, ledger.Binding{Job: event, Source: ordinary}))
		_, err = s.answerKnownKey(t.Context(), tx, a, holders[a.key], tasksByAgent{})
		return err
	})
	if !errors.Is(err, errConcurrentUpdate) {
		t.Errorf("%v; the job of the delivery is %s", err, read(t, s, c.ID).Job)
	}
}

// TestEventIsReadTwice: the chain follower reads two blocks that both have the event of a delivery that is not bound.
func TestEventIsReadTwice(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	event, sent := misplaced(job.KindNewFeedback, 0)
	sent.TransactionHash = common.Hash{1}
	id := acceptOne(t, s, sent).ID
	later := event
	later.BlockNumber, later.BlockHash = 901, common.Hash{'b'}
	newChainReader(t, s).read(100, 901, true, event, later)
	heraldtest.Contains(t, "the job", string(read(t, s, id).Job), later.BlockHash.Hex(), registry.Hex())
}

// TestReadAfterALostWorker: a job names another identity registry than its event has, and its worker dies before it
// binds the delivery. The chain follower gives the delivery to the agent of the event, which also gets the retraction
// when a reorg removes the event. The job's action remains a hint.
func TestReadAfterALostWorker(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	r := newChainReader(t, s)
	event, sent := misplaced(job.KindNewFeedback, 0)
	sent.Action.ToolName = "a"
	c := claim(t, s, acceptOne(t, s, sent))
	r.read(100, 900, true, event)
	lapse(t, s, c)
	hints, err := readHints(t.Context(), s.Conns, c.ID)
	if err != nil || len(hints) != 1 || hints[0].Job.Action.ToolName != "a" {
		t.Errorf("%+v, %v", hints, err)
	}
	gone := r.read(900, 901, true).Vanished
	if len(gone) != 1 || gone[0].Retraction == uuid.Nil {
		t.Fatalf("%+v", gone)
	}
	for _, id := range []uuid.UUID{c.ID, gone[0].Retraction} {
		if d := read(t, s, id); d.IdentityRegistry != ledger.AgentOf(event).Registry {
			t.Errorf("the %s is for registry %s: %s", d.Kind, d.IdentityRegistry, d.Job)
		}
	}
}

// TestRevokedFeedbackReturns: a reorg moved a feedback and its revocation, which had ended, to other blocks. The chain
// follower reads both at once: with the feedback, it queues the revocation again before it reads it.
func TestRevokedFeedbackReturns(t *testing.T) {
	t.Parallel()
	s := newVerifiedStore(t)
	r := newChainReader(t, s)
	feedback, revocation := inBlock(feedback(1, 1), 101, 'a'), inBlock(feedback(1, 1), 102, 'a')
	revocation.Kind, revocation.Reason, revocation.TransactionHash = job.KindFeedbackRevoked, job.RevokedByClient, common.Hash{9}
	r.read(100, 102, true, feedback, revocation)
	bring(t, s, feedback.ID(), "rejected, not found")
	exec(t, s, `UPDATE herald.deliveries SET status = 'skipped', reason = 'never_delivered', finished_at = now() WHERE id = $1`, revocation.ID())
	feedback.BlockHash, revocation.BlockHash = common.Hash{'b'}, common.Hash{'c'}
	r.read(101, 103, true, feedback, revocation)
	if d := read(t, s, revocation.ID()); d.Status.Final() || !strings.Contains(string(d.Job), revocation.BlockHash.Hex()) {
		t.Errorf("%s %s", d.Status, d.Job)
	}
}

// TestAcceptBehindAConflict: two jobs of one client are accepted together, while another transaction accepts the first
// one under another identity registry. The second job must not wait for the first, whose end would not release it.
func TestAcceptBehindAConflict(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.StrictOrder = true
	event, sent := misplaced(job.KindNewFeedback, 0)
	later := event
	later.FeedbackIndex = 2
	exec(t, s, `CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$`)
	exec(t, s, `CREATE TRIGGER pause BEFORE INSERT ON herald.work FOR EACH ROW EXECUTE FUNCTION pause()`)
	tx := beginWith(t, s, `SELECT pg_advisory_xact_lock(1)`)
	accepted := make(chan error, 2)
	for i, in := range [][]ledger.Intake{{{Job: sent}}, {{Job: event}, {Job: later}}} {
		go func() {
			_, _, err := s.Accept(t.Context(), in)
			accepted <- err
		}()
		awaitLockWaits(t, s, i+1)
	}
	heraldtest.Must(t, tx.Rollback(t.Context()))
	heraldtest.Must(t, <-accepted)
	heraldtest.Must(t, <-accepted)
	if d := read(t, s, later.ID()); d.Status != outcome.Queued {
		t.Errorf("it is %s %s until %s", d.Status, d.Reason, value[time.Time](t, s, `SELECT next_attempt_at FROM herald.work WHERE id = $1`, later.ID()))
	}
}
