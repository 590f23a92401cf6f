package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/jackc/pgx/v5"
)

// The states of an agent (agents.state): the result of the last contact with its server. AgentRow.Enabled and the
// servers file decide whether it is enabled.
const (
	StateDisabled  = "disabled"   // its deliveries are held
	StatePending   = "pending"    // not yet contacted
	StateConnected = "connected"  // it accepted the last call, or its tools were listed
	StateNeedsAuth = "needs_auth" // it rejected the credentials, or requires some
	StateFailed    = "failed"     // the last attempt failed by the agent's fault
)

// AgentObservation is an observation of an agent's server that was made without a delivery, for example by `worker
// agent probe`. Zero fields do not change the stored values. ObserveAgent makes strings storable and cuts them.
type AgentObservation struct {
	Endpoint   string // for pages: without query, user information and arguments
	Protocol   string // MCP revision
	ServerInfo json.RawMessage
	Tools      json.RawMessage // ToolList
	State      string          // StateConnected, StateNeedsAuth or StateFailed; "": unchanged
	Error      string          // an error by the agent's fault, as a sentence without secrets
}

// ObserveAgent stores an observation of an agent, and inserts a row for an unknown one. A disabled agent stays
// disabled. last_ok_at does not change, because only a delivery is a success.
func (s *Store) ObserveAgent(ctx context.Context, a Agent, l AgentObservation) (err error) {
	if !slices.Contains([]string{"", StateConnected, StateNeedsAuth, StateFailed}, l.State) {
		return fmt.Errorf("%q is not a state that an agent can be found in", l.State)
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "store observations of agent %d:%s", a.ChainID, a.ID)
	_, err = s.pool.Exec(ctx, statement("observe"), namedStatement("observe").args(pgx.NamedArgs{
		"chain_id": a.ChainID, "registry": a.Registry, "agent_id": a.ID, "state": nullIfEmpty(l.State),
		"endpoint": nullIfEmpty(storable.Text(l.Endpoint, maxURLBytes)), "protocol": nameOrNull(l.Protocol),
		"error":       nullIfEmpty(storable.Text(l.Error, maxErrorBytes)),
		"server_info": storable.JSON(l.ServerInfo, maxSideBytes), "tools": storable.JSON(l.Tools, maxSideBytes)})...)
	return err
}

// KnownTool is an entry of agents.tools.
type KnownTool struct {
	Name   string `json:"name"`
	Schema bool   `json:"schema"` // the tool has an input schema
}

// maxToolsBytes limits ToolList. It is below maxSideBytes, so that a long list is cut between two tools and stays valid
// JSON.
const maxToolsBytes = maxSideBytes - 64

// ToolList encodes tools for agents.tools: [{"name": …, "schema": …}, …], as many as fit into 16 KiB.
func ToolList(tools []KnownTool) json.RawMessage {
	out := []byte{'['}
	for i, t := range tools {
		entry, err := json.Marshal(KnownTool{Name: storable.Text(t.Name, maxNameBytes), Schema: t.Schema})
		if err != nil || len(out)+len(entry) > maxToolsBytes {
			break
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, entry...)
	}
	return append(out, ']')
}

// ReleaseEnabled releases the deliveries that were held because their agents were disabled, of every agent that is
// enabled now. It skips agents for which except returns true (nil: none). It returns the number of released deliveries
// and the tasks that the caller puts into Redis or removes there, even after an error: a second call continues.
func (s *Store) ReleaseEnabled(ctx context.Context, except func(Agent) bool) (released int, tasks []Task, err error) {
	defer wrapError(&err, "release held deliveries of enabled agents")
	seen := map[Agent]bool{}
	var last heldRow
	for {
		page, err := s.listHeldDisabled(ctx, last)
		if err != nil {
			return released, tasks, err
		}
		for _, row := range page {
			last = row
			if seen[row.agent] || !row.enabled || except != nil && except(row.agent) {
				continue
			}
			seen[row.agent] = true
			n, more, err := s.releaseInBatches(ctx, row.agent, []reason.Reason{reason.AgentDisabled}, markNotDisabled(row.agent))
			released, tasks = released+n, append(tasks, more...)
			if err != nil {
				return released, tasks, fmt.Errorf("agent %d:%s: %w", row.agent.ChainID, row.agent.ID, err)
			}
		}
		if len(page) < maxMove {
			return released, tasks, nil
		}
	}
}

// heldRow is a delivery that is held because its agent was disabled.
type heldRow struct {
	agent   Agent
	seq     int64
	enabled bool // the agent's row is enabled now
}

func (s *Store) listHeldDisabled(ctx context.Context, after heldRow) ([]heldRow, error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	rows, _ := s.pool.Query(ctx, statement("held_disabled"), int64(after.agent.ChainID), after.seq, maxMove)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r heldRow, err error) {
		err = row.Scan(&r.agent.ChainID, &r.seq, &r.agent.Registry, &r.agent.ID, &r.enabled)
		return r, err
	})
}

// markNotDisabled returns a change for releaseInBatches: if the agent is enabled and its column state still is
// disabled, the state becomes pending and failing_since is cleared.
func markNotDisabled(a Agent) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE herald.agents SET state = 'pending', failing_since = NULL, updated_at = now()
			WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND enabled AND state = 'disabled'`, a.ChainID, a.Registry, a.ID)
		return err
	}
}
