package records

import (
	"context"
	"encoding/json"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store"
	"github.com/jackc/pgx/v5"
)

// agentName is the SQL of AgentRow.Name; null: it has none.
const agentName = `coalesce(registration ->> 'name', server_info ->> 'name')`

// Name returns the name in the agent's registration, otherwise the name that the agent's server gives itself, or "".
func (r AgentRow) Name() string {
	if r.Registration != nil && r.Registration.Name != "" {
		return r.Registration.Name
	}
	var info struct{ Name string }
	_ = json.Unmarshal(r.ServerInfo, &info) // the server sent it, so it may have another form
	return info.Name
}

// AgentNames returns the names of those agents that have one.
func (s *Store) AgentNames(ctx context.Context, list []erc8004.Agent) (names map[erc8004.Agent]string, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "read the names of agents")
	defer end()
	chains, registries, ids := store.SplitAgents(list)
	rows, _ := s.db.Conns.Query(ctx, `SELECT chain_id, identity_registry, agent_id::text, `+agentName+`
		  FROM herald.agents
		 WHERE (chain_id, identity_registry, agent_id) IN (
			SELECT * FROM unnest($1::bigint[], $2::text[], $3::numeric[]))
		   AND `+agentName+` IS NOT NULL`, chains, registries, ids)
	names = map[erc8004.Agent]string{}
	var a erc8004.Agent
	var name string
	_, err = pgx.ForEachRow(rows, []any{&a.ChainID, &a.Registry, &a.ID, &name}, func() error {
		names[a] = name
		return nil
	})
	return names, err
}
