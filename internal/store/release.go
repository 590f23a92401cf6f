package store

import (
	"context"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/jackc/pgx/v5"
)

// anyEpoch is an argument of release_held.sql, in place of an epoch. With it, the statement has no condition on the
// agent's epoch.
const anyEpoch = int64(-1)

// ReleaseHeld puts an agent's deliveries that are held for one of these reasons into its backlog, oldest first, in as
// many transactions as needed, and dispatches from the backlog. It returns the number of released deliveries and the
// tasks that the caller puts into Redis or removes there. After an error, both describe the committed part, and a
// second call continues.
func (s *Store) ReleaseHeld(ctx context.Context, a Agent,
	reasons ...outcome.Reason) (released int, tasks []Task, err error) {
	defer wrapError(&err, "release held deliveries of agent %d:%s %q", a.ChainID, a.ID, reasons)
	return s.releaseInBatches(ctx, a, reasons, nil)
}

// releaseInBatches makes a change to the agent (nil: none) and releases held deliveries as ReleaseHeld does. The change
// is in the transaction of the first batch. Without reasons, no delivery is released.
func (s *Store) releaseInBatches(ctx context.Context, a Agent, reasons []outcome.Reason,
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

// releaseBatch makes the change to the agent (nil: none) and releases at most maxMove held deliveries, in one
// transaction, and dispatches from the agent's backlog. It returns their number and all tasks for the caller.
func (s *Store) releaseBatch(ctx context.Context, a Agent, reasons []outcome.Reason,
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

// mendedReasons returns the reason for which the transaction that records o must then release the agent's held
// deliveries, or nil. It returns a reason only if o itself holds the delivery: agent_disabled (except with o.Elsewhere)
// or auth_required. Since the claim, the operator may have enabled the agent or stored a credential, and no later call
// would release this delivery.
//
// since is an argument of release_held.sql. For auth_required it is claimed, the agent's epoch in the claim: storing a
// credential raises the epoch, and without a higher one the statement releases nothing. For agent_disabled it is
// anyEpoch: the statement releases the deliveries if the agent is enabled now.
func (o Outcome) mendedReasons(claimed int64) (reasons []outcome.Reason, since int64) {
	switch {
	case o.Status != Held:
	case o.Reason == outcome.AgentDisabled && !o.Elsewhere:
		return []outcome.Reason{outcome.AgentDisabled}, anyEpoch
	case o.Reason == outcome.AuthRequired:
		return []outcome.Reason{outcome.AuthRequired}, claimed
	}
	return nil, 0
}
