package store

import (
	"context"

	"github.com/agentherald/herald/internal/reason"
	"github.com/jackc/pgx/v5"
)

// anyEpoch makes release_held.sql ignore the agent's epoch.
const anyEpoch = int64(-1)

// ReleaseHeld puts an agent's deliveries that are held for these reasons into its backlog, oldest first, in as many
// transactions as needed. It returns their number and the tasks that the caller puts into Redis or removes there, even
// after an error: a second call continues.
func (s *Store) ReleaseHeld(ctx context.Context, a Agent,
	reasons ...reason.Reason) (released int, tasks []Task, err error) {
	defer wrapError(&err, "release held deliveries of agent %d:%s %q", a.ChainID, a.ID, reasons)
	return s.releaseInBatches(ctx, a, reasons, nil)
}

// releaseInBatches is ReleaseHeld with a change to the agent (nil: none), which it makes in one transaction with the
// first batch. Without reasons it makes only the change.
func (s *Store) releaseInBatches(ctx context.Context, a Agent, reasons []reason.Reason,
	change func(context.Context, pgx.Tx) error) (released int, tasks []Task, err error) {
	for {
		n, more, err := s.releaseBatch(ctx, a, reasons, change)
		if err != nil {
			return released, tasks, err
		}
		released, tasks = released+n, append(tasks, more...)
		if n < maxMove {
			return released, tasks, nil
		}
		change = nil
	}
}

func (s *Store) releaseBatch(ctx context.Context, a Agent, reasons []reason.Reason,
	change func(context.Context, pgx.Tx) error) (released int, tasks []Task, err error) {
	var ended []Task
	tasks, err = s.changeAgents(ctx, []Agent{a}, len(reasons) > 0, func(ctx context.Context, tx pgx.Tx) error {
		if change != nil {
			if err := change(ctx, tx); err != nil {
				return err
			}
		}
		if len(reasons) == 0 {
			return nil
		}
		rows, _ := tx.Query(ctx, statement("release_held"), a.ChainID, a.Registry, a.ID, maxMove, reasons, anyEpoch)
		var err error
		ended, err = pgx.CollectRows(rows, scanEnded)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return len(ended), append(tasks, ended...), nil
}

// mendedReasons returns the reasons for which held deliveries of the agent must be released after o is recorded, in the
// same transaction; nil: none. If o holds its delivery, the cause may have been removed since the claim, and no later
// call would release the delivery. claimed is the agent's epoch in the claim. Only an agent with an epoch above since
// is released, because storing a credential raises the epoch.
func (o Outcome) mendedReasons(claimed int64) (reasons []reason.Reason, since int64) {
	switch {
	case o.Status != Held:
	case o.Reason == reason.AgentDisabled && !o.Elsewhere:
		return []reason.Reason{reason.AgentDisabled}, anyEpoch
	case o.Reason == reason.AuthRequired:
		return []reason.Reason{reason.AuthRequired}, claimed
	}
	return nil, 0
}
