package store

import (
	"context"

	"github.com/agentherald/herald/internal/reason"
	"github.com/jackc/pgx/v5"
)

// anyEpoch has release_held.sql not look at the agent's epoch.
const anyEpoch = int64(-1)

// ReleaseHeld releases what is held of an agent for some reasons, the oldest first, in as many transactions as it
// takes. It returns how many, and the tasks that the caller puts into Redis, or removes there, also when it fails in the
// middle: calling it again goes on.
func (s *Store) ReleaseHeld(ctx context.Context, a Agent,
	reasons ...reason.Reason) (released int, tasks []Task, err error) {
	defer wrapError(&err, "release what is held of agent %d:%s %q", a.ChainID, a.ID, reasons)
	return s.releaseInBatches(ctx, a, reasons, nil)
}

// releaseInBatches makes a change to the agent (nil: none) in one transaction with the first batch of what that
// releases, and goes on with the other batches.
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

// mendedReasons tells which deliveries to release in the transaction that holds o, because what it is held for may have
// been mended between the claim and now, and nobody would release it after that; since is the epoch after which that
// counts.
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
