package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/jackc/pgx/v5"
)

// The values of AgentRow.State, the result of the last contact with the agent's server. The state does not decide
// whether the agent is enabled: AgentRow.Enabled and the servers file (the operator's list of MCP servers) decide.
const (
	StateDisabled  = "disabled"   // the agent is disabled, so its deliveries are held
	StatePending   = "pending"    // there was no contact yet, or none since the agent was enabled
	StateConnected = "connected"  // the agent accepted the last call, or listed its tools
	StateNeedsAuth = "needs_auth" // the agent requires credentials, or rejected those that were sent
	StateFailed    = "failed"     // the last contact failed because of the agent
)

// AgentObservation is the result of a contact with an agent's server that was not made for a delivery, for example by
// `worker agent probe`. Empty fields do not change the stored values. ObserveAgent makes strings storable (valid UTF-8
// without NUL) and cuts long ones.
type AgentObservation struct {
	Endpoint   string // URL or command to show to people, without query, user information and arguments
	Protocol   string // MCP revision
	ServerInfo json.RawMessage
	Tools      json.RawMessage // encoded by ToolList
	State      string          // StateConnected, StateNeedsAuth or StateFailed; "": unchanged
	Error      string          // an error that the agent caused, as a sentence without secrets
}

// ObserveAgent stores an observation in the agent's row. It inserts a row for an unknown agent. A disabled agent stays
// disabled. The time of the last success does not change, because only a delivery counts as a success.
func (s *Store) ObserveAgent(ctx context.Context, a Agent, l AgentObservation) (err error) {
	if !slices.Contains([]string{"", StateConnected, StateNeedsAuth, StateFailed}, l.State) {
		return fmt.Errorf("%q is not a state that an agent can be found in", l.State)
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "store observations of agent %s", a)
	_, err = s.pool.Exec(ctx, statement("observe"), namedStatement("observe").args(pgx.NamedArgs{
		"chain_id": a.ChainID, "registry": a.Registry, "agent_id": a.ID, "state": nullIfEmpty(l.State),
		"endpoint": nullIfEmpty(storable.Text(l.Endpoint, maxURLBytes)), "protocol": nameOrNull(l.Protocol),
		"error":       nullIfEmpty(storable.Text(l.Error, maxErrorBytes)),
		"server_info": storable.JSON(l.ServerInfo, maxSideBytes), "tools": storable.JSON(l.Tools, maxSideBytes)})...)
	return err
}

// KnownTool is an entry of the list of an agent's tools (agents.tools).
type KnownTool struct {
	Name   string `json:"name"`
	Schema bool   `json:"schema"` // the tool has an input schema
}

// maxToolsBytes limits the result of ToolList. It is below maxSideBytes, the limit of stored JSON, so that a long list
// is not cut within a tool.
const maxToolsBytes = maxSideBytes - 64

// ToolList encodes tools as JSON for the column agents.tools, [{"name": …, "schema": …}, …]. It omits the last tools if
// the list would exceed maxToolsBytes.
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

// ReleaseEnabled releases deliveries that were held because their agents were disabled: it puts them into the agents'
// backlogs. It skips agents whose row is not enabled now, and agents for which except returns true. except may be nil.
// It returns the number of released deliveries, and the tasks that the caller puts into Redis or removes there. After
// an error, both describe the committed part, and a second call continues.
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
			n, more, err := s.releaseInBatches(ctx, row.agent, []outcome.Reason{outcome.AgentDisabled},
				markNotDisabled(row.agent))
			released, tasks = released+n, append(tasks, more...)
			if err != nil {
				return released, tasks, fmt.Errorf("agent %s: %w", row.agent, err)
			}
		}
		if len(page) < maxMove {
			return released, tasks, nil
		}
	}
}

// heldRow is a delivery that is held because its agent was disabled (agent_disabled).
type heldRow struct {
	agent   Agent
	seq     int64
	enabled bool // whether the agent's row is enabled now
}

// listHeldDisabled lists the next deliveries that are held because their agents were disabled (agent_disabled), at most
// maxMove, sorted by chain and seq. The page follows the last row of the previous page (after); a zero heldRow selects
// the first page.
func (s *Store) listHeldDisabled(ctx context.Context, after heldRow) ([]heldRow, error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	rows, _ := s.pool.Query(ctx, statement("held_disabled"), int64(after.agent.ChainID), after.seq, maxMove)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r heldRow, err error) {
		err = row.Scan(&r.agent.ChainID, &r.seq, &r.agent.Registry, &r.agent.ID, &r.enabled)
		return r, err
	})
}

// markNotDisabled returns a change for releaseInBatches: if agent a is enabled but its state is StateDisabled, the
// change sets StatePending and clears failing_since.
func markNotDisabled(a Agent) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE herald.agents SET state = 'pending', failing_since = NULL, updated_at = now()
			WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND enabled AND state = 'disabled'`,
			a.ChainID, a.Registry, a.ID)
		return err
	}
}
