package store

import (
	"context"
	"encoding/json"

	"github.com/agentherald/herald/internal/store/storable"
	"github.com/jackc/pgx/v5"
)

// Registration is a summary of an agent's registration document and its endpoint (agents.registration). The author of
// the document determines all fields except Binding.
type Registration struct {
	Name     string `json:"name,omitempty"`
	Document string `json:"document"`          // URI without query; "data:" for a document that is on chain
	Source   string `json:"source"`            // how the document is identified, as resolver.Target.DocumentSource
	From     string `json:"from"`              // position of the endpoint in the document, such as "services[2]"
	Binding  string `json:"binding,omitempty"` // as resolver.Target.Binding
}

// maxDocumentBytes bounds the stored URI of a document. The agent's row, which every record copies, must stay small.
const maxDocumentBytes = 200

// encode returns the registration as JSON with bounded texts that Postgres can store, or nil for nil.
func (r *Registration) encode() []byte {
	if r == nil {
		return nil
	}
	out := Registration{Name: storable.Text(r.Name, maxNameBytes),
		Document: storable.Text(r.Document, maxDocumentBytes), Source: r.Source,
		From: storable.Text(r.From, maxNameBytes), Binding: r.Binding}
	encoded, _ := json.Marshal(out) // strings cannot fail
	return encoded
}

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
func (s *Store) AgentNames(ctx context.Context, list []Agent) (names map[Agent]string, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "read the names of agents")
	var chains []int64
	var registries, ids []string
	for _, a := range list {
		chains, registries, ids = append(chains, int64(a.ChainID)), append(registries, a.Registry), append(ids, a.ID)
	}
	rows, _ := s.pool.Query(ctx, `SELECT chain_id, identity_registry, agent_id::text, `+agentName+` FROM herald.agents
		 WHERE (chain_id, identity_registry, agent_id) IN (
			SELECT * FROM unnest($1::bigint[], $2::text[], $3::numeric[]))
		   AND `+agentName+` IS NOT NULL`, chains, registries, ids)
	names = map[Agent]string{}
	var a Agent
	var name string
	_, err = pgx.ForEachRow(rows, []any{&a.ChainID, &a.Registry, &a.ID, &name}, func() error {
		names[a] = name
		return nil
	})
	return names, err
}
