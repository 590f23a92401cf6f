package pages

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/internal/store"
)

// agentsPage is one page of the list of agents.
type agentsPage struct {
	State, Chain, Sort string
	Agents             []store.AgentRow
	NextURL            string
	States             []string
}

func (p *Pages) listAgents(r *request) (answer, error) {
	q := r.URL.Query()
	page := agentsPage{State: q.Get("state"), Chain: q.Get("chain"), Sort: q.Get("sort"),
		States: []string{"pending", store.StateConnected, store.StateNeedsAuth, store.StateFailed, "disabled"}}
	if agent := q.Get("agent"); agent != "" {
		return answer{location: "/agents/" + url.PathEscape(agent)}, nil
	}
	f := operator.AgentFilter{State: page.State, Sort: page.Sort, Cursor: q.Get("cursor"), Limit: pageRows}
	if page.Chain != "" {
		id, err := strconv.ParseUint(page.Chain, 10, 63)
		if err != nil {
			return answer{}, operator.NewMisuse("the chain is not a number")
		}
		f.Chain = &id
	}
	list, err := p.Operator.ListAgents(r.Context(), f)
	if err != nil {
		return answer{}, err
	}
	page.Agents = list.Agents
	if list.Next != "" {
		page.NextURL = "/agents?" + encodePairs([]string{"state", page.State, "chain", page.Chain, "sort", page.Sort, "cursor", list.Next})
	}
	return answer{page: "agents", title: "Agents", content: page}, nil
}

// agentPage is the page of one agent.
type agentPage struct {
	operator.Agent
	Name   string
	Tools  []store.KnownTool
	Totals map[string]int64
	Latest []store.Delivery // its newest deliveries

	Summaries []store.CallSummary // of the last hour and the last day
	Policies  policyPart
}

// latestRows bounds the deliveries on an agent's page.
const latestRows = 10

func (r *request) agentRef() operator.AgentRef {
	registry := r.URL.Query().Get("registry")
	if r.Method == http.MethodPost {
		registry = r.PostFormValue("registry")
	}
	return operator.AgentRef{Agent: r.PathValue("agent"), Registry: registry}
}

func (p *Pages) showAgent(r *request) (answer, error) {
	ref := r.agentRef()
	a, err := p.Operator.ShowAgent(r.Context(), ref)
	if err != nil {
		return answer{}, err
	}
	page := agentPage{Agent: a, Name: ref.Agent, Summaries: []store.CallSummary{a.LastHour, a.LastDay}}
	if page.Policies, err = p.showPolicies(r, a.AgentRow); err != nil {
		return answer{}, err
	}
	_ = json.Unmarshal(a.AgentRow.Tools, &page.Tools) // the agent's server sent it, so it may not parse
	_ = json.Unmarshal(a.AgentRow.Totals, &page.Totals)
	latest, err := p.Operator.ListDeliveries(r.Context(), operator.Selection{Agent: ref.Agent}, 0, latestRows)
	page.Latest = latest.Deliveries
	return answer{page: "agent", title: "Agent " + ref.Agent, content: page}, err
}

func (p *Pages) enableAgent(r *request) (answer, error) {
	return p.changeAgent(r, func(ref operator.AgentRef) error {
		_, err := p.Operator.EnableAgent(r.Context(), ref, r.visitor.Name, true)
		return err
	})
}

func (p *Pages) disableAgent(r *request) (answer, error) {
	return p.changeAgent(r, func(ref operator.AgentRef) error {
		_, err := p.Operator.EnableAgent(r.Context(), ref, r.visitor.Name, false)
		return err
	})
}

func (p *Pages) refreshAgent(r *request) (answer, error) {
	return p.changeAgent(r, func(ref operator.AgentRef) error {
		_, err := p.Operator.RefreshAgent(r.Context(), ref, r.visitor.Name)
		return err
	})
}

func (p *Pages) changeAgent(r *request, change func(operator.AgentRef) error) (answer, error) {
	ref := r.agentRef()
	if err := change(ref); err != nil {
		return answer{}, err
	}
	return answer{location: "/agents/" + ref.Agent + "?" + encodePairs([]string{"registry", ref.Registry})}, nil
}

// probeTimeout bounds a probe: resolving, connecting, listing tools, and calling them with samples.
const probeTimeout = 50 * time.Second

// probePage shows the result of a probe, and whether the agent can receive deliveries.
type probePage struct {
	inspect.CheckReport
	Name, Registry, Back string
}

func (p *Pages) probeAgent(r *request) (answer, error) {
	ctx, cancel := context.WithTimeout(r.Context(), probeTimeout)
	defer cancel()
	ref := r.agentRef()
	found, err := inspect.CheckAgent(ctx, p.Operator, inspect.ProbeRequest{AgentRef: ref, Send: r.PostFormValue("send") == "true"})
	if err != nil {
		return answer{}, err
	}
	return answer{page: "probe", title: "Probe of agent " + ref.Agent, content: probePage{CheckReport: found,
		Name: ref.Agent, Registry: ref.Registry,
		Back: "/agents/" + ref.Agent + "?" + encodePairs([]string{"registry", ref.Registry})}}, nil
}
