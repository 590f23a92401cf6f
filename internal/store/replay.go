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
	defer postgres.WrapError(&err, "replay %d deliveries", len(ids))
	return s.moveByOperator(ctx, ids, statements.Named("replay"), pgx.NamedArgs{"force": force}, true,
		whyNotReplayed)
}

// Cancel ends at most maxMove (500) open deliveries as cancelled (operator). It cancels running ones only with force:
// later writes of their workers then change nothing, but a call that was sent cannot be undone. Cancel returns the
// number of cancelled deliveries, the reason for each of the others as a sentence (left), and the tasks that the caller
// removes from Redis.
func (s *Store) Cancel(ctx context.Context, ids []uuid.UUID,
	force bool) (moved int, left map[uuid.UUID]string, ended []ledger.Task, err error) {
	defer postgres.WrapError(&err, "cancel %d deliveries", len(ids))
	return s.moveByOperator(ctx, ids, statements.Named("end"),
		endArgs(nil, force, outcome.Cancelled, outcome.Operator), false, whyNotCancelled)
}

// endArgs returns the arguments of end.sql, which ends open deliveries; running ones only if running is true.
func endArgs(ids []uuid.UUID, running bool, status outcome.Status, reason outcome.Reason) pgx.NamedArgs {
	return pgx.NamedArgs{"ids": ids, "running": running, "status": string(status), "reason": string(reason)}
}

// previousState is the state of a delivery before an operator's Replay or Cancel.
type previousState struct {
	status outcome.Status
	reason outcome.Reason
	hasJob bool
}

// moveByOperator locks the agents of the deliveries with these ids, and runs st, the statement replay or end, on
// the deliveries. args has the other arguments of st. If dispatch is true, moveByOperator also queues skipped
// revocations of these deliveries again (revive_revocations.sql), and dispatches from the agents' backlogs. why returns
// the reason for a delivery that the statement did not change.
func (s *Store) moveByOperator(ctx context.Context, ids []uuid.UUID, st postgres.Statement, args pgx.NamedArgs,
	dispatch bool, why func(previousState) string) (moved int, left map[uuid.UUID]string, tasks []ledger.Task,
	err error) {
	if len(ids) > maxMove {
		return 0, nil, nil, fmt.Errorf("at most %d at once", maxMove)
	}
	if len(ids) == 0 {
		return 0, nil, nil, nil
	}
	found, err := s.findRows(ctx, statements.Text("agents_of"), ids)
	if err != nil {
		return 0, nil, nil, err
	}
	left = make(map[uuid.UUID]string)
	for _, id := range ids {
		left[id] = ledger.NoSuchDelivery
	}
	var ended []ledger.Task
	tasks, err = s.changeAgents(ctx, found, dispatch, func(ctx context.Context, tx pgx.Tx) error {
		args["ids"] = found.ids
		rows, _ := queryNamed(ctx, tx, st, args)
		var id uuid.UUID
		var changed bool
		var was previousState
		var n int
		_, err := pgx.ForEachRow(rows, []any{&id, &changed, &was.status, &was.reason, &was.hasJob, &n}, func() error {
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

// movedMeanwhile is the reason for a delivery that another transaction changed during Replay or Cancel.
const movedMeanwhile = "it changed at the same moment: look again"

// whyNotReplayed returns why replay.sql did not change a delivery. d is the delivery's state.
func whyNotReplayed(d previousState) string {
	switch {
	case d.status == outcome.Queued:
		return "it is queued: it will be delivered without a replay"
	case d.status == outcome.Running:
		return "it is being delivered now: only ended, waiting or held deliveries can be replayed"
	case !d.hasJob && d.status == outcome.Rejected && d.reason == outcome.InvalidJob:
		return "it never was a valid job: enqueue a corrected one"
	case !d.hasJob:
		return "its job was dropped by retention: there is nothing left to deliver"
	case d.reason == outcome.Filtered:
		return "a filter of the agent's policy skipped it: replaying it delivers it all the same and needs force"
	case d.status == outcome.Delivered:
		return "it is delivered: replaying it calls the agent again and needs force"
	}
	return movedMeanwhile
}

// whyNotCancelled returns why end.sql did not change a delivery. d is the delivery's state.
func whyNotCancelled(d previousState) string {
	switch {
	case d.status.Final():
		return "it has ended: it is " + string(d.status)
	case d.status == outcome.Running:
		return "it is being delivered now: cancelling it needs force, and does not undo the call"
	}
	return movedMeanwhile
}
