package store

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// LockAgents locks the rows of agents until the transaction ends. It first inserts missing rows. It locks in one fixed
// order, so that two transactions do not deadlock.
func (s *Store) LockAgents(ctx context.Context, tx pgx.Tx, agents []erc8004.Agent) error {
	chains, registries, ids := SplitAgents(agents)
	b := &pgx.Batch{}
	b.Queue(statements.Text("make_agents"), chains, registries, ids)
	b.Queue(statements.Text("lock_agents"), chains, registries, ids)
	return tx.SendBatch(ctx, b).Close()
}

// SplitAgents returns the fields of agents as three parallel slices, for the array parameters of a statement.
func SplitAgents(agents []erc8004.Agent) (chains []int64, registries, ids []string) {
	for _, a := range agents {
		chains, registries, ids = append(chains, int64(a.ChainID)), append(registries, a.Registry), append(ids, a.ID)
	}
	return chains, registries, ids
}

// tasksByAgent has new tasks by the agents of their deliveries.
type tasksByAgent map[erc8004.Agent][]ledger.Task

// dispatchAgents dispatches the next deliveries from the backlogs of agents, up to MaxDispatchedPerAgent per agent. It
// returns their tasks in the order of interleaveAgents. tx has locked the agents.
func (s *Store) dispatchAgents(ctx context.Context, tx pgx.Tx, agents []erc8004.Agent) ([]ledger.Task, error) {
	byAgent := make(tasksByAgent, len(agents))
	if err := s.dispatchInto(ctx, tx, agents, byAgent); err != nil {
		return nil, err
	}
	return interleaveAgents(byAgent), nil
}

// maxDispatchRounds limits how often one dispatchInto runs dispatch.sql. One run reads at most MaxDispatchedPerAgent
// deliveries of each agent.
const maxDispatchRounds = 32

// dispatchInto is dispatchAgents, but adds the tasks to byAgent instead of returning them.
func (s *Store) dispatchInto(ctx context.Context, tx pgx.Tx, agents []erc8004.Agent, byAgent tasksByAgent) error {
	if len(agents) == 0 {
		return nil
	}
	chains, registries, ids := SplitAgents(agents)
	// dispatch.sql takes a delivery that must wait for another one out of the backlog without dispatching it. The loop
	// then runs again for the deliveries after it. If a long backlog of one ordering key needs more rounds, which is
	// rare, the reconciler continues a few seconds later.
	again := true
	for round := 0; again && round < maxDispatchRounds; round++ {
		rows, _ := queryNamed(ctx, tx, statements.Named("dispatch"), dispatchArgs(chains, registries, ids, nil, nil))
		behind, err := readDispatched(rows, func(t ledger.Task, a erc8004.Agent) error {
			byAgent[a] = append(byAgent[a], t)
			return nil
		})
		if err != nil {
			return err
		}
		again = behind > 0
	}
	return nil
}

// dispatchArgs returns the arguments of dispatch.sql. chains, registries and agents identify the agents. ids and
// claimNos are nil, or have one claim per agent: its delivery id and its claim number. The statement then dispatches
// for an agent only if the same transaction has recorded the outcome of the agent's claim.
func dispatchArgs(chains []int64, registries, agents []string, ids []uuid.UUID, claimNos []int64) pgx.NamedArgs {
	return pgx.NamedArgs{"chains": chains, "registries": registries, "agents": agents, "ids": encodeIDs(ids),
		"claim_nos": claimNos, "max_dispatched": ledger.MaxDispatchedPerAgent, "max_responses": maxResponsesPerAgent}
}

// readDispatched reads the rows of dispatch.sql. It calls add for each dispatched task and its agent. It returns the
// number of deliveries that left the backlog to wait for others (behind).
func readDispatched(rows pgx.Rows, add func(ledger.Task, erc8004.Agent) error) (behind int, err error) {
	var t ledger.Task
	var a erc8004.Agent
	var left bool
	_, err = pgx.ForEachRow(rows, []any{&t.ID, &t.N, &t.Kind, &t.Attempts, &t.Bulk, &a.ChainID, &a.Registry, &a.ID,
		&left}, func() error {
		if left {
			behind++
			return nil
		}
		return add(t, a)
	})
	return behind, err
}

// interleaveAgents returns the tasks of all agents in this order: the first task of each agent, then the second of
// each, and so on. So workers run tasks of different agents at the same time. Tasks of one agent would wait for each
// other: for the lock of the agent's row when they are recorded, and for the permits of their origin.
func interleaveAgents(byAgent tasksByAgent) (tasks []ledger.Task) {
	agents := distinctAgents(slices.Collect(maps.Keys(byAgent)))
	for nth := range ledger.MaxDispatchedPerAgent {
		for _, a := range agents {
			if nth < len(byAgent[a]) {
				tasks = append(tasks, byAgent[a][nth])
			}
		}
	}
	return tasks
}

// distinctAgents sorts agents in place by chain, registry and id (as text), and returns them without duplicates.
func distinctAgents(agents []erc8004.Agent) []erc8004.Agent {
	slices.SortFunc(agents, func(a, b erc8004.Agent) int {
		return cmp.Or(cmp.Compare(a.ChainID, b.ChainID), strings.Compare(a.Registry, b.Registry),
			strings.Compare(a.ID, b.ID))
	})
	return slices.Compact(agents)
}
