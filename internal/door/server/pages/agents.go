package pages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// agentsPage is one page of the list of agents.
type agentsPage struct {
	State, Chain, Sort string
	Agents             []records.AgentRow
	NextURL            string
	States             []string
}

func (p *Pages) listAgents(r *request) (answer, error) {
	q := r.URL.Query()
	page := agentsPage{State: q.Get("state"), Chain: strings.TrimSpace(q.Get("chain")), Sort: q.Get("sort"),
		States: records.AgentStates()}
	if agent := strings.TrimSpace(q.Get("agent")); agent != "" {
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
	page.Agents = list.Agents
	if list.Next != "" {
		page.NextURL = "/agents?" + encodePairs([]string{
			"state", page.State, "chain", page.Chain, "sort", page.Sort, "cursor", list.Next})
	}
	return answer{page: "agents", title: "Agents", content: page}, err
}

// agentPage is the page of one agent.
type agentPage struct {
	operator.Agent
	Name    string // CHAIN:AGENT
	Title   string // the agent's own name, or ""
	Tools   []ledger.KnownTool
	Needs   []toolFit
	Misfits int // calls of the last month that did not fit a tool's schema
	Totals  map[string]int64
	Chart   *chart
	Binding string        // in words; "" if the agent was not resolved
	Waiting deliveryTable // the newest that wait or are held
	Latest  deliveryTable // its newest deliveries

	Summaries []summary
	Policies  policyPart
}

// summary sums up the calls of a span of time.
type summary struct {
	Span string
	records.CallSummary
}

// toolFit is a kind of event, and the tool of the agent that receives it.
type toolFit struct {
	Kind    job.Kind
	Wanted  string
	Offered string // the name that the agent uses; empty: it offers none
	Schema  bool
}

// fitTools finds the tool for each kind of event, as a delivery does.
func (p *Pages) fitTools(tools []ledger.KnownTool) (fits []toolFit) {
	offered := make([]mcpcall.Tool, len(tools))
	for i, t := range tools {
		offered[i] = mcpcall.Tool{Name: t.Name}
	}
	for _, kind := range job.DeliveredKinds() {
		f := toolFit{Kind: kind, Wanted: job.DefaultTool(kind)}
		aliases := slices.Concat(mcpcall.Aliases(f.Wanted), p.Operator.Settings.ToolAliases[f.Wanted])
		if found, ok := mcpcall.Find(offered, f.Wanted, aliases); ok {
			f.Offered = found.Name
			f.Schema = slices.Contains(tools, ledger.KnownTool{Name: found.Name, Schema: true})
		}
		fits = append(fits, f)
	}
	return fits
}

// latestRows bounds each list of deliveries on an agent's page.
const latestRows = 10

func (r *request) agentRef() operator.AgentRef {
	registry := r.URL.Query().Get("registry")
	if r.Method == http.MethodPost {
		registry = r.PostFormValue("registry")
	}
	return operator.AgentRef{Agent: r.PathValue("agent"), Registry: registry}
}

// agentURL returns the address of the page of the request's agent.
func (r *request) agentURL() string {
	ref := r.agentRef()
	return "/agents/" + ref.Agent + "?" + encodePairs([]string{"registry", ref.Registry})
}

func (p *Pages) showAgent(r *request) (answer, error) {
	ref := r.agentRef()
	a, err := p.Operator.ShowAgent(r.Context(), ref)
	if err != nil {
		return answer{}, err
	}
	now := time.Now()
	page := agentPage{Agent: a, Name: ref.Agent, Chart: chartCalls(a.Hours, r.URL.Query().Get("span"), now)}
	if page.Policies, err = p.showPolicies(r, a.AgentRow); err != nil {
		return answer{}, err
	}
	page.Chart.Query = template.URL(encodePairs([]string{"registry", a.IdentityRegistry}))
	for _, s := range []struct {
		span string
		long time.Duration
	}{{"last hour", time.Hour}, {"last day", 24 * time.Hour}, {"last week", 7 * 24 * time.Hour},
		{"last month", 30 * 24 * time.Hour}} {
		page.Summaries = append(page.Summaries, summary{s.span, records.SummarizeHours(a.Hours, now.Add(-s.long))})
	}
	_ = json.Unmarshal(a.AgentRow.Tools, &page.Tools) // the agent's server sent it, so it may not parse
	_ = json.Unmarshal(a.AgentRow.Totals, &page.Totals)
	page.Needs = p.fitTools(page.Tools)
	page.Misfits = page.Summaries[len(page.Summaries)-1].Failures[outcome.SchemaMismatch]
	if found := a.Registration; found != nil {
		page.Title, page.Binding = found.Name, resolver.Target{Binding: found.Binding}.DescribeBinding()
	}
	own := operator.Selection{Agent: ref.Agent, Registry: a.IdentityRegistry}
	if page.Latest, err = p.listOf(r, own); err != nil {
		return answer{}, err
	}
	if a.Open[outcome.Waiting]+a.Open[outcome.Held] > 0 {
		own.Status = "waiting,held"
		if page.Waiting, err = p.listOf(r, own); err != nil {
			return answer{}, err
		}
	}
	title := "Agent " + ref.Agent
	if name := []rune(page.Title); len(name) > 0 {
		title = string(name[:min(len(name), maxName)]) + " – agent " + ref.Agent
	}
	return answer{page: "agent", title: title, content: page}, nil
}

// listOf returns the newest deliveries of a selection.
func (p *Pages) listOf(r *request, s operator.Selection) (t deliveryTable, err error) {
	rows, err := p.Operator.ListDeliveries(r.Context(), s, 0, latestRows)
	if err != nil {
		return t, err
	}
	return p.makeTable(r.Context(), rows.Deliveries)
}

func (p *Pages) enableAgent(enabled bool) func(*request) (answer, error) {
	return func(r *request) (answer, error) {
		_, err := p.Operator.EnableAgent(r.Context(), r.agentRef(), r.visitor.Name, enabled)
		return answer{location: r.agentURL()}, err
	}
}

func (p *Pages) refreshAgent(r *request) (answer, error) {
	_, err := p.Operator.RefreshAgent(r.Context(), r.agentRef(), r.visitor.Name)
	return answer{location: r.agentURL()}, err
}

// probePage shows the result of a probe, and whether the agent can receive deliveries.
type probePage struct {
	inspect.CheckReport
	Name, Registry, Back string
}

func (p *Pages) probeAgent(r *request) (answer, error) {
	ctx, cancel := context.WithTimeout(r.Context(), inspect.RequestTimeout)
	defer cancel()
	ref := r.agentRef()
	found, err := inspect.CheckAgent(ctx, p.Operator,
		inspect.ProbeRequest{AgentRef: ref, Send: r.PostFormValue("send") == "true"})
	if err != nil {
		return answer{}, err
	}
	return answer{page: "probe", title: "Probe of agent " + ref.Agent, content: probePage{CheckReport: found,
		Name: ref.Agent, Registry: ref.Registry, Back: r.agentURL()}}, nil
}

// policyPart is the part of an agent's page about its policies (templates/policy.html).
type policyPart struct {
	OnUnknown string // the setting in force
	Rows      []policyRow
	Document  string // the text in the form: the operator's policy of the agent
	Version   string // hash of that policy, to detect a change after the page was loaded
	Problem   string // why the text was refused, or the policies may be incomplete
}

// policyRow is one filter of a policy, or the settings of a policy.
type policyRow struct {
	Level   policy.Level
	Rule    int // number of the filter; 0: the settings
	Skipped int
	Content string // JSON
}

func (p *Pages) showPolicies(r *request, row records.AgentRow) (part policyPart, err error) {
	all, err := p.Operator.ShowPolicy(r.Context(), r.agentRef())
	if err != nil {
		return part, err
	}
	part.OnUnknown, part.Problem = all.Policy.OnUnknown, all.Problem
	for _, l := range all.Levels {
		settings := l.Policy
		if settings.Filters = nil; settings.String() != "{}" {
			part.Rows = append(part.Rows, policyRow{Level: l.Level, Content: settings.String()})
		}
		for i, rule := range l.Policy.Filters {
			part.Rows = append(part.Rows, policyRow{l.Level, i + 1, l.Skipped[i], rule.String()})
		}
	}
	var text bytes.Buffer
	if s := row.Policy.String(); s != "{}" {
		_ = json.Indent(&text, []byte(s), "", "  ") // cannot fail: a Policy is valid JSON
	}
	part.Document = text.String()
	part.Version = fmt.Sprintf("%x", sha256.Sum256(text.Bytes()))[:16]
	return part, nil
}

// replacePolicy replaces the operator's policy of the agent by the text of the form. An empty text removes it. If the
// text is refused, or if the policy was changed to another one after the form was loaded, the answer is the agent's
// page with the text and the error.
func (p *Pages) replacePolicy(r *request) (answer, error) {
	text := r.PostFormValue("policy")
	document := bytes.TrimSpace([]byte(text))
	if len(document) == 0 {
		document = nil
	}
	again, err := p.showAgent(r)
	if err != nil {
		return answer{}, err
	}
	page := again.content.(agentPage)
	var wanted policy.Policy
	if document != nil {
		wanted, _, err = policy.Parse(document, policy.Operator, nil)
	}
	switch {
	case r.PostFormValue("version") == page.Policies.Version:
		_, err = p.Operator.ReplacePolicy(r.Context(), r.agentRef(), r.visitor.Name, policy.Operator, "", document)
		refused, ok := errors.AsType[*operator.MisuseError](err)
		if !ok {
			return answer{location: r.agentURL()}, err
		}
		page.Policies.Problem, again.status = refused.Text, http.StatusBadRequest
	case err == nil && wanted.String() == page.AgentRow.Policy.String(): // the second of two clicks on the button
		return answer{location: r.agentURL()}, nil
	default:
		page.Policies.Problem = "The operator's policy was changed after this form was loaded, so nothing was " +
			"changed now. The table shows the present one. Set the policy again to replace it."
		again.status = http.StatusConflict
	}
	page.Policies.Document = text
	again.content = page
	return again, nil
}
