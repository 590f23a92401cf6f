package records

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/agentherald/herald/internal/erc8004"
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

// AgentStates returns every value of AgentRow.State.
func AgentStates() []string {
	return []string{StatePending, StateConnected, StateNeedsAuth, StateFailed, StateDisabled}
}

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
func (s *Store) ObserveAgent(ctx context.Context, a erc8004.Agent, l AgentObservation) (err error) {
	if !slices.Contains([]string{"", StateConnected, StateNeedsAuth, StateFailed}, l.State) {
		return fmt.Errorf("%q is not a state that an agent can be found in", l.State)
	}
	ctx, end := s.db.StartCall(ctx, &err, "store observations of agent %s", a)
	defer end()
	_, err = s.db.Conns.Exec(ctx, statements.Text("observe"), statements.Named("observe").Args(pgx.NamedArgs{
		"chain_id": a.ChainID, "registry": a.Registry, "agent_id": a.ID, "state": storable.OrNull(l.State),
		"endpoint": storable.OrNull(storable.Text(l.Endpoint, storable.MaxURL)), "protocol": storable.Name(l.Protocol),
		"error":       storable.OrNull(storable.Text(l.Error, storable.MaxError)),
		"server_info": storable.JSON(l.ServerInfo, storable.MaxSide),
		"tools":       storable.JSON(l.Tools, storable.MaxSide)})...)
	return err
}
