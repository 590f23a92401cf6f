package store

import (
	"context"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/jackc/pgx/v5"
)

// anyEpoch is the argument of release_held.sql that is passed instead of an epoch if the release does not depend on the
// agent's epoch. For agent_disabled, the statement releases the deliveries if the agent is enabled now.
const anyEpoch = int64(-1)

// ReleaseHeld puts an agent's deliveries that are held for one of these reasons into its backlog, and dispatches from
// the backlog. The oldest come first, and those of a backfill after all others. It uses as many transactions as needed.
// It returns the number of released deliveries, and the tasks that the caller puts into Redis or removes there. After
// an error, both describe the committed part, and a second call continues.
func (s *Store) ReleaseHeld(ctx context.Context, a erc8004.Agent,
	reasons ...outcome.Reason) (released int, tasks []ledger.Task, err error) {
	defer postgres.WrapError(&err, "release held deliveries of agent %s %q", a, reasons)
	return s.ReleaseAfter(ctx, a, reasons, nil)
}

// ReleaseAfter calls change, which may be nil, and then releases held deliveries like ReleaseHeld. change is called
// in the transaction of the first batch. If reasons is empty, no delivery is released.
func (s *Store) ReleaseAfter(ctx context.Context, a erc8004.Agent, reasons []outcome.Reason,
	change func(context.Context, pgx.Tx) error) (released int, tasks []ledger.Task, err error) {
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

// releaseBatch is one transaction of ReleaseAfter. It calls change, which may be nil. Then it releases at most
// maxMove held deliveries, and dispatches from the agent's backlog. It returns the number of released deliveries and
// all tasks for the caller.
func (s *Store) releaseBatch(ctx context.Context, a erc8004.Agent, reasons []outcome.Reason,
	change func(context.Context, pgx.Tx) error) (released int, tasks []ledger.Task, err error) {
	var ended []ledger.Task
	agent := foundRows{agents: []erc8004.Agent{a}}
	tasks, err = s.changeAgents(ctx, agent, len(reasons) > 0, func(ctx context.Context, tx pgx.Tx) error {
		if change != nil {
			if err := change(ctx, tx); err != nil {
				return err
			}
		}
		if len(reasons) == 0 {
			return nil
		}
		rows, _ := tx.Query(ctx, statements.Text("release_held"), a.ChainID, a.Registry, a.ID, maxMove, reasons,
			anyEpoch, nil, nil)
		var err error
		ended, err = pgx.CollectRows(rows, scanEnded)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return len(ended), append(tasks, ended...), nil
}
