package client

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Agent is an agent to which Herald has delivered, or means to. Raw is the whole answer.
type Agent struct {
	ChainID      uint64           `json:"chainId"`
	Registry     string           `json:"identityRegistry"`
	AgentID      string           `json:"agentId"`
	Enabled      bool             `json:"enabled"`
	State        string           `json:"state"` // disabled, pending, connected, needs_auth or failed
	Endpoint     string           `json:"endpoint"`
	LastOKAt     *time.Time       `json:"lastOkAt"`
	FailingSince *time.Time       `json:"failingSince"` // first failed call since the last success
	LastError    string           `json:"lastError"`
	Open         map[string]int64 `json:"open"`     // number of open deliveries by status
	NextStep     string           `json:"nextStep"` // advice for an operator; of GetAgent only
	Raw          json.RawMessage  `json:"-"`
}

// Name returns CHAIN:AGENT.
func (a Agent) Name() string { return strconv.FormatUint(a.ChainID, 10) + ":" + a.AgentID }

// UnmarshalJSON decodes an agent and keeps its bytes in Raw.
func (a *Agent) UnmarshalJSON(raw []byte) error {
	type fields Agent
	if err := json.Unmarshal(raw, (*fields)(a)); err != nil {
		return err
	}
	a.Raw = bytes.Clone(raw)
	return nil
}

// AgentSelection selects agents. Empty fields select all.
type AgentSelection struct {
	State   string
	ChainID uint64
	Failing bool // the agents with most failed calls in the last day first
}

// Agents returns the selected agents, and reads further pages while the loop continues. It ends with the first error.
func (c *Client) Agents(ctx context.Context, s AgentSelection) iter.Seq2[Agent, error] {
	q := url.Values{}
	if s.State != "" {
		q.Set("state", s.State)
	}
	if s.ChainID != 0 {
		q.Set("chain", strconv.FormatUint(s.ChainID, 10))
	}
	if s.Failing {
		q.Set("sort", "failing")
	}
	return listPages(q, func(q url.Values) (page []Agent, next string, err error) {
		var answer struct {
			Agents []Agent
			Next   string
		}
		err = c.call(ctx, http.MethodGet, "/v1/agents?"+q.Encode(), nil, &answer)
		return answer.Agents, answer.Next, err
	})
}

// GetAgent returns the agent CHAIN:AGENT.
func (c *Client) GetAgent(ctx context.Context, name string) (a Agent, err error) {
	return a, c.call(ctx, http.MethodGet, "/v1/agents/"+url.PathEscape(name), nil, &a)
}

// DisableAgent holds the agent's deliveries from now on.
func (c *Client) DisableAgent(ctx context.Context, name string) error {
	_, err := c.changeAgent(ctx, name, "disable")
	return err
}

// EnableAgent delivers to the agent again. It returns how many deliveries it released, which were held because the
// agent was disabled.
func (c *Client) EnableAgent(ctx context.Context, name string) (released int, err error) {
	return c.changeAgent(ctx, name, "enable")
}

// RefreshAgent makes every worker resolve the agent's registration again.
func (c *Client) RefreshAgent(ctx context.Context, name string) error {
	_, err := c.changeAgent(ctx, name, "refresh")
	return err
}

func (c *Client) changeAgent(ctx context.Context, name, verb string) (released int, err error) {
	var change struct{ Released int }
	err = c.call(ctx, http.MethodPost, "/v1/agents/"+url.PathEscape(name)+"/"+verb, nil, &change)
	return change.Released, err
}
