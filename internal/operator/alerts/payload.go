package alerts

import (
	"encoding/json"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/google/uuid"
)

// payload is the body of a post. docs/operator/alerts-and-traces.md, "Posts", documents it. Fields may be added.
type payload struct {
	Type      records.AlertKind `json:"type"`
	Timestamp time.Time         `json:"timestamp"` // of the discovery; header webhook-timestamp: of the attempt
	Data      data              `json:"data"`
}

// data names the agent and contains the fields of the alert's type. It contains no text of an agent or a client: the
// receiver can run `worker agent show` or `worker delivery show`.
type data struct {
	Agent            string `json:"agent"` // CHAIN:AGENT, as in commands
	ChainID          uint64 `json:"chainId"`
	IdentityRegistry string `json:"identityRegistry"`
	AgentID          string `json:"agentId"`

	State        string     `json:"state,omitempty"`        // agent.failing: failed or needs_auth
	FailingSince *time.Time `json:"failingSince,omitempty"` // the first failed call after the last successful one
	By           string     `json:"by,omitempty"`           // agent.disabled: herald or operator

	Count      int            `json:"count,omitempty"` // deliveries.…
	Reasons    map[string]int `json:"reasons,omitempty"`
	Deliveries []uuid.UUID    `json:"deliveries,omitempty"` // the first 20 of them
}

// composePayload returns the payload of an alert about n.
func composePayload(n records.News) (json.RawMessage, error) {
	d := data{Agent: erc8004.FormatAgent(n.Agent.ChainID, n.Agent.ID), ChainID: n.Agent.ChainID,
		IdentityRegistry: n.Agent.Registry, AgentID: n.Agent.ID, FailingSince: n.FailingSince, Count: n.Count,
		Reasons: n.Reasons, Deliveries: n.Deliveries}
	switch n.Kind {
	case records.AgentFailing:
		d.State = n.State
	case records.AgentDisabled:
		d.By = "operator"
		if n.ByHerald {
			d.By = "herald"
		}
	}
	return json.Marshal(payload{Type: n.Kind, Timestamp: n.At.UTC().Truncate(time.Second), Data: d})
}
