package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/resolver/servers"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/ethereum/go-ethereum/common"
)

// AgentRef identifies one agent. An empty Registry is the default of the chain.
type AgentRef struct {
	Agent    string `arg:"" help:"The agent, as in 8453:42." placeholder:"CHAIN:AGENT"`
	Registry string `help:"Its IdentityRegistry, when it is not the chain's usual one." placeholder:"0x…"`
}

// parseAgent parses CHAIN:AGENT.
func parseAgent(s string) (erc8004.Agent, error) {
	g, ok := erc8004.ParseAgent(s)
	if !ok {
		return g, &MisuseError{Field: "agent", Text: fmt.Sprintf("%.100q is not CHAIN:AGENT, as in 8453:42", s)}
	}
	return g, nil
}

// ParseRef returns the store's identifier of an agent.
func (o *Operator) ParseRef(r AgentRef) (erc8004.Agent, error) {
	g, err := parseAgent(r.Agent)
	if err != nil {
		return g, err
	}
	known, _ := o.Settings.Registries(g.ChainID)
	registry, problem := known.Identity, ""
	if r.Registry != "" {
		registry, problem = erc8004.ParseAddress(r.Registry)
	}
	switch {
	case problem != "":
		return erc8004.Agent{}, NewMisuseOf("registry", "%q is not an address with the right checksum", r.Registry)
	case registry == common.Address{} && r.Registry == "":
		return erc8004.Agent{}, NewMisuse("the IdentityRegistry of chain %[1]d is not known: name it with --registry, "+
			"or set IDENTITY_REGISTRY_%[1]d", g.ChainID)
	}
	g.Registry = strings.ToLower(registry.Hex())
	return g, nil
}

// DescribeAgent names an agent for use in a sentence.
func DescribeAgent(g erc8004.Agent) string {
	return fmt.Sprintf("agent %s of registry %s", g, g.Registry)
}

// ListedServer returns the agent's entry in the servers file, or nil without one.
func (o *Operator) ListedServer(g erc8004.Agent) (*servers.Server, error) {
	known, _ := o.Settings.Registries(g.ChainID)
	if o.Settings.ServersFile == "" || common.HexToAddress(g.Registry) != known.Identity {
		return nil, nil // the file lists only agents of the chain's default registry
	}
	// Only this agent's entry has to be valid. Other entries may use environment variables of the worker that this
	// shell lacks; the doctor reports their problems.
	s, ok, err := servers.Find(o.Settings.ServersFile, os.LookupEnv, g.ChainID, g.ID)
	switch {
	case err != nil:
		return nil, fmt.Errorf("HERALD_SERVERS_FILE: %w", err)
	case !ok:
		return nil, nil
	}
	return &s, nil
}

// ResolverAgent converts an agent to the resolver's type.
func ResolverAgent(g erc8004.Agent) (resolver.Agent, error) {
	id, ok := new(big.Int).SetString(g.ID, 10)
	if !ok || id.BitLen() > 256 {
		return resolver.Agent{}, NewMisuse("%s is no agent id: it is wider than 256 bits", g.ID)
	}
	return resolver.Agent{ChainID: g.ChainID, Registry: common.HexToAddress(g.Registry), ID: id}, nil
}

// AgentFilter selects agents. An empty Sort sorts by chain, registry and id. Cursor is of a page with the same Sort.
type AgentFilter struct {
	State  string  `help:"Only in this state: pending, connected, needs_auth, failed or disabled." placeholder:"STATE"`
	Chain  *uint64 `help:"Only of this chain." placeholder:"ID"`
	Sort   string  `help:"failing: those first that failed most calls in the last 24 hours, then those that failed the larger share. slow: those with calls in the last 24 hours, the longest mean duration first." placeholder:"ORDER"`
	Cursor string  `help:"Continue after this cursor: the last line of the previous page shows it (next in JSON)."`
	Limit  int     `help:"Rows." default:"50"`
}

// AgentPage is one page of agents.
type AgentPage struct {
	Agents []records.AgentRow `json:"agents"`
	Next   string             `json:"next,omitempty"` // --cursor of the next page; empty on the last page
}

// ListAgents lists agents for which a delivery was accepted.
func (o *Operator) ListAgents(ctx context.Context, f AgentFilter) (page AgentPage, err error) {
	err = cmp.Or(checkLimit(f.Limit), checkWord("state", f.State, records.AgentStates()),
		checkWord("sort", f.Sort, []string{records.SortFailing, records.SortSlow}))
	if err != nil {
		return page, err
	}
	query := records.AgentFilter{ChainID: f.Chain, State: f.State, Sort: f.Sort, Limit: f.Limit + 1}
	nameLast := agentCursor
	rest, place := f.Cursor, ""
	if f.Sort != "" {
		nameLast = func(r records.AgentRow) string { return sortedCursor(f.Sort, r) }
		place, rest, _ = strings.Cut(f.Cursor, ":")
	}
	if f.Cursor != "" {
		after, ok := erc8004.ParseFullName(rest)
		switch f.Sort {
		case records.SortFailing:
			query.AfterFailed, query.AfterCalls, err = parseFailures(place)
		case records.SortSlow:
			query.AfterMs, err = strconv.ParseFloat(place, 64)
		}
		if !ok || err != nil {
			return page, NewMisuseOf("cursor",
				"%.200q is not a cursor: take it from the end of the previous page", f.Cursor)
		}
		query.After = &after
	}
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		rows, err := st.Agents(ctx, query)
		page.Agents, page.Next = cutPage(rows, f.Limit, nameLast)
		return err
	})
	return page, err
}

// agentCursor returns the cursor of an agent: its chain, registry and id.
func agentCursor(r records.AgentRow) string {
	return erc8004.Agent{ChainID: r.ChainID, Registry: r.IdentityRegistry, ID: r.AgentID}.FullName()
}

// sortedCursor returns the cursor of an agent in a sorted list. It also contains the values by which the list is
// sorted: FAILED/CALLS, or the mean duration.
func sortedCursor(sort string, r records.AgentRow) string {
	place := fmt.Sprintf("%d/%d", r.FailedOfDay, r.CallsOfDay)
	if sort == records.SortSlow {
		place = strconv.FormatFloat(r.MeanMs, 'g', -1, 64)
	}
	return place + ":" + agentCursor(r)
}

// parseFailures parses FAILED/CALLS.
func parseFailures(s string) (failed, calls int, err error) {
	f, c, _ := strings.Cut(s, "/")
	failed, failedErr := strconv.Atoi(f)
	calls, callsErr := strconv.Atoi(c)
	return failed, calls, cmp.Or(failedErr, callsErr)
}

// Agent is the state of an agent and its stored tokens, without secrets.
type Agent struct {
	records.AgentRow
	// of its endpoint, in this worker: closed, open, half_open
	Breaker   string              `json:"breaker,omitempty"`
	Effort    *effort.Usage       `json:"effort,omitempty"`    // missing if budgets are off or Redis cannot be read
	LastHour  records.CallSummary `json:"lastHour"`            // calls recorded in this hour and the one before
	LastDay   records.CallSummary `json:"lastDay"`             // calls recorded in this hour and the 24 hours before
	Hours     []records.AgentHour `json:"-"`                   // with a call, of the last statsWindow, oldest first
	Transfers []records.Transfer  `json:"transfers,omitempty"` // changes of its owner, newest first
	Tokens    []Token             `json:"tokens"`
	NextStep  string              `json:"nextStep,omitempty"` // advice for an operator; empty if nothing is wrong
}

// statsWindow is the time of which an agent's page shows calls.
const statsWindow = 30 * 24 * time.Hour

// ShowAgent returns the state of an agent.
func (o *Operator) ShowAgent(ctx context.Context, ref AgentRef) (out Agent, err error) {
	g, err := o.ParseRef(ref)
	if err != nil {
		return out, err
	}
	out.Tokens = []Token{}
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		out.AgentRow, err = st.AgentRow(ctx, g)
		if errors.Is(err, ledger.ErrNotFound) {
			return explainUnknown(ctx, st, g, ref.Registry != "")
		}
		if err != nil {
			return err
		}
		now := time.Now()
		if o.Live != nil {
			out.Breaker = o.Live.Breaker(out.Endpoint)
		}
		out.Effort = o.agentEffort(ctx, st, g)
		if out.NextStep, err = o.agentNextStep(ctx, st, out.AgentRow); err != nil {
			return err
		}
		if out.Hours, err = st.AgentStats(ctx, g, now.Add(-statsWindow)); err != nil {
			return err
		}
		out.LastHour = records.SummarizeHours(out.Hours, now.Add(-time.Hour))
		out.LastDay = records.SummarizeHours(out.Hours, now.Add(-24*time.Hour))
		if out.Transfers, err = st.Transfers(ctx, g); err != nil {
			return err
		}
		tokens, _, err := st.AgentTokens(ctx, g)
		for _, t := range tokens {
			shown := DescribeToken(t, time.Now())
			shown.Transferred = len(out.Transfers) > 0 && t.UpdatedAt.Before(out.Transfers[0].At)
			out.Tokens = append(out.Tokens, shown)
		}
		return err
	})
	return out, err
}

// agentNextStep returns the next step of the agent's newest delivery that is held, else of the newest that waits, else
// of its newest delivery. It is empty if that one was delivered or is on its way.
func (o *Operator) agentNextStep(ctx context.Context, st *Session, r records.AgentRow) (string, error) {
	f := records.Filter{ChainID: &r.ChainID, AgentID: r.AgentID, Registry: r.IdentityRegistry, Limit: 1}
	switch {
	case r.Open[outcome.Held] > 0:
		f.Statuses = []outcome.Status{outcome.Held}
	case r.Open[outcome.Waiting] > 0:
		f.Statuses = []outcome.Status{outcome.Waiting}
	}
	rows, err := st.Deliveries(ctx, f)
	if err != nil || len(rows) == 0 {
		return "", err
	}
	var d Delivery
	if d.Delivery, err = st.Delivery(ctx, rows[0].ID); err != nil {
		return "", err
	}
	if err = o.addNextStep(ctx, st, &d); err != nil || d.NextStep == "" {
		return "", err
	}
	return fmt.Sprintf("delivery %s is %s %s: %s", d.ID, d.Status, d.Reason, d.NextStep), nil
}

// agentEffort returns the agent's effort budget. If it cannot be read, agentEffort notifies the person and returns nil.
func (o *Operator) agentEffort(ctx context.Context, st *Session, g erc8004.Agent) *effort.Usage {
	switch {
	case o.Live != nil:
		return o.Live.Effort(ctx, g)
	case st.Effort == nil || o.Settings.EffortBudget == 0:
		return nil
	}
	u, err := st.Effort(ctx, g)
	if err != nil {
		o.Person.Notify(fmt.Sprintf("the agent's effort budget cannot be read: %v", err))
		return nil
	}
	return u
}

// explainUnknown returns the error for an agent without a row. It names another registry that has an agent of this
// number.
func explainUnknown(ctx context.Context, st *Session, g erc8004.Agent, registryNamed bool) error {
	others, err := st.Agents(ctx, records.AgentFilter{ChainID: &g.ChainID, AgentID: g.ID, Limit: 10})
	if err != nil {
		return err
	}
	if len(others) > 0 && !registryNamed {
		return &NotFoundError{fmt.Sprintf("%s not found; there is one of the same number: say --registry %s",
			DescribeAgent(g), others[0].IdentityRegistry)}
	}
	return errUnseen(g)
}

// errUnseen: Herald accepted no delivery for the agent.
func errUnseen(g erc8004.Agent) error {
	return &NotFoundError{fmt.Sprintf("%s not found: no delivery was ever accepted for it; "+
		"`worker agent list` shows the agents that there are", DescribeAgent(g))}
}

// AgentChange is the result of enabling or disabling an agent, or of setting its policy.
type AgentChange struct {
	Agent    string         `json:"agent"`
	Registry string         `json:"identityRegistry"`
	Enabled  *bool          `json:"enabled,omitempty"`
	Policy   *policy.Policy `json:"policy,omitempty"`  // the settings in force, without filters
	Levels   []AgentLevel   `json:"levels,omitempty"`  // of a policy: the levels that contain something
	Problem  string         `json:"problem,omitempty"` // why Levels may be incomplete: a policy file is unreadable
	Released int            `json:"released"`
	Unseen   bool           `json:"unseen,omitempty"` // the agent had no row before
	Audit    int64          `json:"audit,omitempty"`

	Name string `json:"-"` // for use in a sentence
}

// agentEdit is a change of one agent, with the open store.
type agentEdit struct {
	*Session
	agent erc8004.Agent
	row   records.AgentRow // as it was before
	AgentChange
}

// editAgent opens the store, reads the agent's row and calls change. With mustExist it fails without a row.
func (o *Operator) editAgent(ctx context.Context, open func(context.Context) (*Session, error), ref AgentRef,
	mustExist bool, change func(*agentEdit) error) (out AgentChange, err error) {
	g, err := o.ParseRef(ref)
	if err != nil {
		return out, err
	}
	st, err := open(ctx)
	if err != nil {
		return out, err
	}
	defer st.Close()
	e := &agentEdit{Session: st, agent: g,
		AgentChange: AgentChange{Agent: g.String(), Registry: g.Registry, Name: DescribeAgent(g)}}
	if e.row, err = st.AgentRow(ctx, g); errors.Is(err, ledger.ErrNotFound) {
		if e.Unseen, err = true, nil; mustExist {
			err = errUnseen(g)
		}
	}
	if err == nil {
		err = change(e)
	}
	return e.AgentChange, err
}

// applyEdit makes the change and its audit row. what describes the change; applyEdit adds the agent.
func (e *agentEdit) applyEdit(ctx context.Context, actor, action string, what map[string]any,
	change func() (int64, error)) (err error) {
	what["agent"], what["registry"] = e.Agent, e.Registry
	e.Audit, err = RunAudited(ctx, e, records.Audit{Actor: actor, Action: action, Matched: 1}, what, change)
	return err
}

// EnableAgent enables an agent and releases the deliveries that are held because it was disabled. With enabled false it
// disables the agent, so that its deliveries are held.
func (o *Operator) EnableAgent(ctx context.Context, ref AgentRef, actor string, enabled bool) (AgentChange, error) {
	return o.editAgent(ctx, o.OpenDispatching, ref, enabled, func(e *agentEdit) error {
		if enabled {
			if err := o.checkEnabling(e.agent, e.row); err != nil {
				return err
			}
		}
		e.Enabled = &enabled
		action := map[bool]string{true: "agent enable", false: "agent disable"}[enabled]
		what := map[string]any{"wasEnabled": e.row.Enabled || e.Unseen, "open": e.row.Open}
		if e.Unseen {
			what["unseen"] = true
		}
		return e.applyEdit(ctx, actor, action, what, func() (int64, error) {
			released, tasks, err := e.Session.EnableAgent(ctx, e.agent, enabled)
			e.Dispatch(ctx, tasks)
			e.Released = released
			return int64(released), err
		})
	})
}

// RefreshAgent makes every worker read the agent's registration and tools again, at its next delivery.
func (o *Operator) RefreshAgent(ctx context.Context, ref AgentRef, actor string) (AgentChange, error) {
	return o.editAgent(ctx, o.OpenStore, ref, true, func(e *agentEdit) error {
		return e.applyEdit(ctx, actor, "agent refresh", map[string]any{},
			func() (int64, error) { return countOne(e.Session.RefreshAgent(ctx, e.agent)) })
	})
}

// checkEnabling returns an *OverruledError if the servers file or a policy disables the agent with this row. If a file
// cannot be read here, it notifies the person.
func (o *Operator) checkEnabling(g erc8004.Agent, row records.AgentRow) error {
	levels, listed, err := o.readLevels(g, row)
	if err != nil {
		o.Notify("warning: it is not known whether the servers file or a policy disables the agent: %v", err)
	}
	const wins = "(enabled: false), which wins: nothing was changed or released. Enable it there, which releases its " +
		"deliveries; if they stay held, run this again"
	switch {
	case listed.Disables():
		return &OverruledError{fmt.Sprintf("%s is disabled by the servers file %s", DescribeAgent(g), wins)}
	case levels.Settings().Disables():
		return &OverruledError{fmt.Sprintf("a policy disables %s %s. `worker agent policy %s` shows the policies",
			DescribeAgent(g), wins, g.Argument())}
	}
	return nil
}
