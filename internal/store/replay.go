package store

import (
	"context"
	"fmt"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// maxMove limits the deliveries that one Replay, one Cancel or one transaction of a release changes, because the
// transaction locks all their agents.
const maxMove = 500

// Replay queues at most maxMove (500) deliveries again, at an operator's request. A final or held delivery gets a new
// budget; the numbers of its attempts continue. A waiting one stops waiting and keeps its budget. A delivered or
// filtered one is replayed only with force. Replay returns the number of replayed deliveries, the reason for each of
// the others as a sentence (left), and the tasks that the caller puts into Redis or removes there.
func (s *Store) Replay(ctx context.Context, ids []uuid.UUID,
	force bool) (moved int, left map[uuid.UUID]string, tasks []ledger.Task, err error) {
	return s.ReplayEnded(ctx, ids, ledger.Ended{Delivered: force, Filtered: force, Cancelled: true})
}

// ReplayEnded is Replay for deliveries that were selected by their state. The state of a delivery may have changed
// since.
func (s *Store) ReplayEnded(ctx context.Context, ids []uuid.UUID,
	too ledger.Ended) (moved int, left map[uuid.UUID]string, tasks []ledger.Task, err error) {
	defer postgres.WrapError(&err, "replay deliveries (%d)", len(ids))
	return s.moveByOperator(ctx, ids, statements.Named("replay"), pgx.NamedArgs{"delivered": too.Delivered,
		"filtered": too.Filtered, "cancelled": too.Cancelled}, true, ledger.PreviousState.WhyNotReplayed)
}

// Cancel ends at most maxMove (500) open deliveries as cancelled (operator). It cancels running ones only with force:
// later writes of their workers then change nothing, but a call that was sent cannot be undone. Cancel returns the
// number of cancelled deliveries, the reason for each of the others as a sentence (left), and the tasks that the caller
// removes from Redis.
func (s *Store) Cancel(ctx context.Context, ids []uuid.UUID,
	force bool) (moved int, left map[uuid.UUID]string, ended []ledger.Task, err error) {
	defer postgres.WrapError(&err, "cancel deliveries (%d)", len(ids))
	return s.moveByOperator(ctx, ids, statements.Named("end"),
		endArgs(nil, force, outcome.Cancelled, outcome.Operator), false, ledger.PreviousState.WhyNotCancelled)
}

// endArgs returns the arguments of end.sql, which ends open deliveries; running ones only if running is true.
func endArgs(ids []uuid.UUID, running bool, status outcome.Status, reason outcome.Reason) pgx.NamedArgs {
	return pgx.NamedArgs{"ids": ids, "running": running, "status": string(status), "reason": string(reason)}
}

// moveByOperator locks the agents of the deliveries with these ids, and runs st, the statement replay or end, on
// the deliveries. args has the other arguments of st. If dispatch is true, moveByOperator also queues skipped
// revocations of these deliveries again (revive_revocations.sql), and dispatches from the agents' backlogs. why returns
// the reason for a delivery that the statement did not change.
func (s *Store) moveByOperator(ctx context.Context, ids []uuid.UUID, st postgres.Statement, args pgx.NamedArgs,
	dispatch bool, why func(ledger.PreviousState) string) (moved int, left map[uuid.UUID]string, tasks []ledger.Task,
	err error) {
	if len(ids) > maxMove {
		return 0, nil, nil, fmt.Errorf("at most %d at once", maxMove)
	}
	found, err := s.findRows(ctx, statements.Text("agents_of"), ids)
	if err != nil {
		return 0, nil, nil, err
	}
	var ended []ledger.Task
	tasks, err = s.changeAgents(ctx, found, dispatch, func(ctx context.Context, tx pgx.Tx) error {
		moved, left, ended = 0, make(map[uuid.UUID]string), nil
		for _, id := range ids {
			left[id] = ledger.NoSuchDelivery
		}
		args["ids"] = found.ids
		rows, _ := queryNamed(ctx, tx, st, args)
		var id uuid.UUID
		var changed bool
		var was ledger.PreviousState
		var n int
		_, err := pgx.ForEachRow(rows, []any{&id, &changed, &was.Status, &was.Reason, &was.HasJob, &n}, func() error {
			left[id] = why(was)
			if changed {
				delete(left, id)
				moved++
				if n > 0 {
					ended = append(ended, ledger.Task{ID: id, N: n, Ended: true})
				}
			}
			return nil
		})
		if err == nil && dispatch {
			_, err = tx.Exec(ctx, statements.Text("revive_revocations"), found.ids)
		}
		return err
	})
	if err != nil {
		return 0, nil, nil, err // nothing was committed
	}
	return moved, left, append(tasks, ended...), nil
}
