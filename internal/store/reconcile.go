package store

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ExpireLeases ends the claims of at most limit running deliveries whose lease has expired. attempts is the number of
// attempts in a budget. A delivery that has used its budget becomes dead (outcome_unknown). The others return to their
// agents' backlogs. ExpireLeases returns the number of all these deliveries (n), and the number of those that became
// dead. A call reads a part of the agents, and the next call continues after it, also after an error: a transaction may
// lock an agent for long.
func (s *Store) ExpireLeases(ctx context.Context, limit, attempts int) (n, dead int, err error) {
	ctx, end := s.StartCall(ctx, &err, "take back deliveries whose lease ran out")
	defer end()
	after, _ := s.leases.Load().(erc8004.Agent)
	part := ledger.AgentRange{After: after}
	rows, _ := s.Conns.Query(ctx, statements.Text("lease_part"), append(part.Arguments()[:3], s.leasePart-1)...)
	part.Last, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[erc8004.Agent])
	if err = postgres.NoRows(err, nil); err != nil {
		return 0, 0, err
	}
	found, err := s.findRows(ctx, statements.Text("lost_leases"), append([]any{limit}, part.Arguments()...)...)
	if err == nil && len(found.ids) > 0 {
		_, err = s.moveRows(ctx, found, false, []any{&n, &dead}, statements.Text("expire_leases"), found.ids, attempts)
	}
	if len(found.ids) < limit { // otherwise the part may have more
		s.leases.Store(part.Last)
	}
	return n, dead, err
}

// Expire ends at most limit open deliveries that were accepted at least age ago, also held ones. They become dead
// (expired). It returns their number. It skips running deliveries, and those that another transaction has locked or
// whose agent is locked.
func (s *Store) Expire(ctx context.Context, age time.Duration, limit int) (n int, err error) {
	ctx, end := s.StartCall(ctx, &err, "end expired deliveries")
	defer end()
	first, err := retention.FirstSeqSince(ctx, s.Pool, time.Now().Add(retention.AcceptSkew-age))
	if err != nil {
		return 0, err
	}
	err = retention.BeginWithLockTimeout(ctx, s.Pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, statements.Text("expire"), age, limit, first)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil || len(ids) == 0 {
			return err
		}
		n = len(ids)
		rows, _ = queryNamed(ctx, tx, statements.Named("end"), endArgs(ids, false, outcome.Dead, outcome.Expired))
		rows.Close()
		return rows.Err()
	})
	return n, err
}

// Due puts at most limit deliveries that wait without a task, and whose wait is over, into their agents' backlogs. Then
// it dispatches from these backlogs. more reports whether further deliveries may be due. It skips deliveries whose
// agent another transaction has locked, so that several processes can call Due at the same time.
func (s *Store) Due(ctx context.Context, limit int) (tasks []ledger.Task, more bool, err error) {
	ctx, end := s.StartCall(ctx, &err, "dispatch waits that are over")
	defer end()
	err = pgx.BeginFunc(ctx, s.Conns, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, statements.Text("due"), limit)
		agents, err := pgx.CollectRows(rows, pgx.RowToStructByPos[erc8004.Agent])
		if err != nil {
			return err
		}
		more = len(agents) == limit
		tasks, err = s.dispatchAgents(ctx, tx, distinctAgents(agents))
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return tasks, more, nil
}

// IgnoreOrder ends the waits of at most limit deliveries that wait for another one of their ordering key although the
// order is switched off for their agent (Policy.Order, or UseOrder). IgnoreOrder puts the deliveries into their agents'
// backlogs, and dispatches from these backlogs. Responses (ResponseAppended) are not selected, because they wait for
// their feedback in any case.
func (s *Store) IgnoreOrder(ctx context.Context, limit int) (tasks []ledger.Task, err error) {
	defer postgres.WrapError(&err, "dispatch deliveries whose order is switched off")
	found, err := s.findRows(ctx, statements.Text("switched_off"), s.defaultOrder(), limit)
	if err == nil && len(found.ids) > 0 {
		var n int
		tasks, err = s.moveRows(ctx, found, true, []any{&n}, statements.Text("ignore_order"), found.ids)
	}
	return tasks, err
}

// foundRows has the ids of deliveries to change, and the distinct agents of these deliveries.
type foundRows struct {
	ids    []uuid.UUID
	agents []erc8004.Agent
}

// findRows reads the ids and agents of the deliveries that a statement selects. It locks nothing, so the deliveries may
// change before moveRows.
func (s *Store) findRows(ctx context.Context, sql string, args ...any) (foundRows, error) {
	ctx, cancel := s.WithDeadline(ctx)
	defer cancel()
	return readFound(ctx, s.Conns, sql, args...)
}

// readFound is findRows for a connection or a transaction q.
func readFound(ctx context.Context, q postgres.Querier, sql string, args ...any) (f foundRows, err error) {
	rows, _ := q.Query(ctx, sql, args...)
	var id uuid.UUID
	var a erc8004.Agent
	_, err = pgx.ForEachRow(rows, []any{&id, &a.ChainID, &a.Registry, &a.ID}, func() error {
		f.ids, f.agents = append(f.ids, id), append(f.agents, a)
		return nil
	})
	f.agents = distinctAgents(f.agents)
	return f, err
}

// moveRows locks the found agents, runs a statement on the found deliveries, and scans the row that the statement
// returns into counts. The statement must skip deliveries that have changed since findRows. If dispatch is true,
// moveRows then dispatches from the agents' backlogs and returns the tasks.
func (s *Store) moveRows(ctx context.Context, f foundRows, dispatch bool, counts []any, sql string,
	args ...any) ([]ledger.Task, error) {
	return s.changeAgents(ctx, f, dispatch, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, sql, args...).Scan(counts...)
	})
}

// lockRows locks the found deliveries' rows of history, after tx has locked f.agents. So no delivery gets another agent
// before tx ends. The caller changes work only afterwards: a job that names another identity registry changes the two
// rows of a delivery in this order, under another agent's lock. If deliveries got other agents before, lockRows adds
// these to f.agents and returns errConcurrentUpdate, because tx has not locked them.
func (f *foundRows) lockRows(ctx context.Context, tx pgx.Tx) error {
	if len(f.ids) == 0 {
		return nil
	}
	now, err := readFound(ctx, tx, statements.Text("agents_of")+" ORDER BY id FOR NO KEY UPDATE", f.ids)
	if err != nil {
		return err
	}
	locked := len(f.agents)
	if f.agents = distinctAgents(append(f.agents, now.agents...)); len(f.agents) > locked {
		return errConcurrentUpdate
	}
	return nil
}

// changeAgents locks the agents and the rows of f and calls change, in one transaction. If dispatch is true, the
// transaction also dispatches from the agents' backlogs, and changeAgents returns the tasks. It may call change several
// times (retryTransaction). After an error, nothing was committed.
func (s *Store) changeAgents(ctx context.Context, f foundRows, dispatch bool,
	change func(context.Context, pgx.Tx) error) (tasks []ledger.Task, err error) {
	ctx, cancel := s.WithDeadline(ctx)
	defer cancel()
	err = s.retryTransaction(ctx, func() error {
		return pgx.BeginFunc(ctx, s.Conns, func(tx pgx.Tx) error {
			if err := s.LockAgents(ctx, tx, f.agents); err != nil {
				return err
			}
			if err := f.lockRows(ctx, tx); err != nil {
				return err
			}
			if err := change(ctx, tx); err != nil || !dispatch {
				return err
			}
			tasks, err = s.dispatchAgents(ctx, tx, f.agents)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return tasks, nil
}

// Backlog dispatches the next deliveries of at most limit agents that have a backlog and fewer than
// MaxDispatchedPerAgent dispatched deliveries. Like ExpireLeases, it reads a part of the agents.
func (s *Store) Backlog(ctx context.Context, limit int) (tasks []ledger.Task, err error) {
	ctx, end := s.StartCall(ctx, &err, "dispatch a backlog")
	defer end()
	for after, _ := s.line.Load().(erc8004.Agent); ; after = (erc8004.Agent{}) {
		rows, _ := s.Conns.Query(ctx, statements.Text("backlog"), append([]any{ledger.MaxDispatchedPerAgent, limit},
			append(ledger.AgentRange{After: after}.Arguments()[:3], s.linePart)...)...)
		found, last, more := foundRows{}, erc8004.Agent{}, false
		_, err = pgx.ForEachRow(rows, []any{&last.ChainID, &last.Registry, &last.ID, &more}, func() error {
			found.agents = append(found.agents, last)
			return nil
		})
		switch {
		case err != nil || len(found.agents) == 0 && after == erc8004.Agent{}:
			return nil, err
		case !more && len(found.agents) < limit:
			last = erc8004.Agent{} // all agents were read: the next call begins again
		}
		if s.line.Store(last); len(found.agents) > 0 {
			return s.changeAgents(ctx, found, true, func(context.Context, pgx.Tx) error { return nil })
		}
	}
}

// Overdue lists at most limit tasks that were due at least the given time ago (late) and are not claimed, sorted by
// delivery id. The page follows the last delivery id of the previous page (after); zero selects the first page. The
// caller must ask Redis whether it still has these tasks.
func (s *Store) Overdue(ctx context.Context, late time.Duration, after uuid.UUID,
	limit int) (tasks []ledger.Task, err error) {
	ctx, end := s.StartCall(ctx, &err, "find overdue deliveries")
	defer end()
	rows, _ := s.Conns.Query(ctx, statements.Text("overdue"), late, after, limit)
	return pgx.CollectRows(rows, scanTask)
}

// Redispatch gives a delivery a new task in place of the task t, which Redis lost. It returns the new task and true. It
// returns false, and changes nothing, if t is no longer the delivery's task or the delivery no longer needs one.
func (s *Store) Redispatch(ctx context.Context, t ledger.Task) (again ledger.Task, moved bool, err error) {
	ctx, end := s.StartCall(ctx, &err, "dispatch delivery %s again", t.ID)
	defer end()
	rows, _ := s.Conns.Query(ctx, statements.Text("redispatch"), t.ID, t.N)
	again, err = pgx.CollectExactlyOneRow(rows, scanTask)
	return again, err == nil, postgres.NoRows(err, nil)
}

// LostBefore gives new tasks to at most limit deliveries whose tasks Redis lost: those that were dispatched before the
// time of the loss (before). A delivery that waits keeps the end of its wait, in Task.At. Later calls do not select
// these deliveries again. So the caller repeats the call until it returns fewer than limit.
func (s *Store) LostBefore(ctx context.Context, before time.Time, limit int) (tasks []ledger.Task, err error) {
	ctx, end := s.StartCall(ctx, &err, "dispatch again what Redis lost")
	defer end()
	rows, _ := s.Conns.Query(ctx, statements.Text("lost_before"), before, limit)
	tasks, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t ledger.Task, err error) {
		var at *time.Time
		if err = row.Scan(&t.ID, &t.N, &t.Kind, &t.Attempts, &t.Bulk, &at); at != nil {
			t.At = *at
		}
		return t, err
	})
	slices.SortFunc(tasks, func(a, b ledger.Task) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return tasks, err
}

// Release releases at most limit deliveries that were held because a setting was missing, if this process has the
// setting now: it puts them into their agents' backlogs. The setting is an RPC URL for one of the chains, or an Arweave
// gateway (gateway). Release returns the tasks with which the deliveries were held; the caller removes them from Redis.
func (s *Store) Release(ctx context.Context, chains []uint64, gateway bool,
	limit int) (ended []ledger.Task, err error) {
	if len(chains) == 0 && !gateway {
		return nil, nil
	}
	ctx, end := s.StartCall(ctx, &err, "release deliveries whose chain has an RPC URL, or whose gateway is set, now")
	defer end()
	ids := make([]int64, len(chains))
	for i, c := range chains {
		ids[i] = int64(c)
	}
	rows, _ := s.Conns.Query(ctx, statements.Text("release"), ids, gateway, limit)
	return pgx.CollectRows(rows, scanEnded)
}
