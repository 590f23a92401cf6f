package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
)

type agentCmd struct {
	List    agentListCmd    `cmd:"" help:"List agents that Herald has delivered to, or meant to."`
	Show    agentShowCmd    `cmd:"" help:"Show what is known of an agent."`
	Resolve agentResolveCmd `cmd:"" help:"Resolve an agent now, or any URI, and show every step."`
	Probe   agentProbeCmd   `cmd:"" help:"Connect to an agent, list its tools and show what a delivery would send. Calls nothing without --send."`
	Enable  agentEnableCmd  `cmd:"" help:"Deliver to an agent again, and release what is held because it was disabled."`
	Disable agentDisableCmd `cmd:"" help:"Hold an agent's deliveries from now on (agent_disabled)."`
	Policy  agentPolicyCmd  `cmd:"" help:"Set how an agent is treated, or show it when nothing is set."`
}

type agentListCmd struct {
	State  string  `help:"Only in this state: pending, connected, needs_auth, failed or disabled." placeholder:"STATE"`
	Chain  *uint64 `help:"Only of this chain." placeholder:"ID"`
	Cursor string  `help:"Continue after this cursor, as the end of the previous page tells (next in JSON)."`
	Limit  int     `help:"Rows." default:"50"`
	JSON   bool    `name:"json" help:"As JSON."`
}

func (c *agentListCmd) Run(a *app) error {
	states := []string{"pending", store.StateConnected, store.StateNeedsAuth, store.StateFailed, "disabled"}
	if err := cmp.Or(checkLimit(c.Limit), checkWord("state", c.State, states)); err != nil {
		return err
	}
	f := store.AgentFilter{ChainID: c.Chain, State: c.State, Limit: c.Limit + 1}
	if c.Cursor != "" {
		after, err := parseCursor(c.Cursor)
		if err != nil {
			return err
		}
		f.After = &after
	}
	st, err := a.readStore()
	if err != nil {
		return err
	}
	defer st.close()
	list, err := st.Agents(a.ctx, f)
	if err != nil {
		return err
	}
	list, next := cutPage(list, c.Limit, cursorOf)
	if c.JSON {
		return writeJSON(a, agentPage{list, next})
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AGENT\tSTATE\tQUEUED\tRUNNING\tWAITING\tHELD\tLAST OK\tSERVER\tPROTOCOL\tTOOLS\tENDPOINT\tLAST ERROR")
	for _, r := range list {
		fmt.Fprintf(w, "%d:%s\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", r.ChainID, r.AgentID, r.State, r.Open[store.Queued], r.Open[store.Running],
			r.Open[store.Waiting], r.Open[store.Held], when(r.LastOKAt), orDash(short(serverWords(r.ServerInfo))), orDash(r.Protocol), toolCount(r.Tools),
			orDash(short(r.Endpoint)), orDash(short(r.LastError)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return printNext(a, next)
}

// agentPage is one page of agents in JSON.
type agentPage struct {
	Agents []store.AgentRow `json:"agents"`
	Next   string           `json:"next,omitempty"` // --cursor of the next page; none: this is the last one
}

// cursorOf names the last agent of a page by the three that make one.
func cursorOf(r store.AgentRow) string {
	return fmt.Sprintf("%d:%s:%s", r.ChainID, r.IdentityRegistry, r.AgentID)
}

func parseCursor(s string) (store.Agent, error) {
	chain, rest, _ := strings.Cut(s, ":")
	registry, id, _ := strings.Cut(rest, ":")
	chainID, agentID, err := parseAgent(chain + ":" + id)
	if err != nil || !common.IsHexAddress(registry) {
		return store.Agent{}, &misuseError{fmt.Sprintf("%q is not a cursor: take it from the end of the previous page", s)}
	}
	return store.Agent{ChainID: chainID, Registry: strings.ToLower(registry), ID: agentID}, nil
}

// agentArg names one agent.
type agentArg struct {
	Agent    string `arg:"" help:"The agent, as in 8453:42." placeholder:"CHAIN:AGENT"`
	Registry string `help:"Its IdentityRegistry, when it is not the chain's usual one." placeholder:"0x…"`
}

// agent is the store's name of it.
func (c agentArg) agent(a *app) (store.Agent, error) {
	chainID, id, err := parseAgent(c.Agent)
	if err != nil {
		return store.Agent{}, err
	}
	if c.Registry != "" {
		registry, err := parseRegistry(c.Registry)
		return store.Agent{ChainID: chainID, Registry: registry, ID: id}, err
	}
	known, _ := a.cfg.Registries(chainID)
	if known.Identity == (common.Address{}) {
		return store.Agent{}, &misuseError{fmt.Sprintf("the IdentityRegistry of chain %d is not known: name it with --registry, or set IDENTITY_REGISTRY_%d", chainID, chainID)}
	}
	return store.Agent{ChainID: chainID, Registry: strings.ToLower(known.Identity.Hex()), ID: id}, nil
}

// parseRegistry takes an address; one in mixed case must carry the right checksum (EIP-55).
func parseRegistry(s string) (string, error) {
	digits, prefixed := strings.CutPrefix(s, "0x")
	mixed := digits != strings.ToLower(digits) && digits != strings.ToUpper(digits)
	if addr := common.HexToAddress(s); !prefixed || !common.IsHexAddress(s) || mixed && addr.Hex() != s {
		return "", &misuseError{fmt.Sprintf("--registry %q is not an address with the right checksum", s)}
	}
	return strings.ToLower(s), nil
}

func nameOf(g store.Agent) string {
	return fmt.Sprintf("agent %d:%s of registry %s", g.ChainID, g.ID, g.Registry)
}

type agentShowCmd struct {
	agentArg
	JSON bool `name:"json" help:"As JSON."`
}

func (c *agentShowCmd) Run(a *app) error {
	g, err := c.agent(a)
	if err != nil {
		return err
	}
	st, err := a.readStore()
	if err != nil {
		return err
	}
	defer st.close()
	r, err := st.AgentRow(a.ctx, g)
	if errors.Is(err, store.ErrNotFound) {
		return c.unknown(a, st, g)
	}
	if err != nil {
		return err
	}
	tokens, _, err := st.AgentTokens(a.ctx, g)
	if err != nil {
		return err
	}
	now := time.Now()
	if c.JSON {
		out := shownAgent{AgentRow: r, Tokens: []listedToken{}}
		for _, t := range tokens {
			out.Tokens = append(out.Tokens, listedOf(t, now))
		}
		return writeJSON(a, out)
	}
	if err := showAgent(a, r); err != nil {
		return err
	}
	return showTokens(a, tokens, now)
}

// shownAgent is an agent with what is stored for it, and nothing that is secret.
type shownAgent struct {
	store.AgentRow
	Tokens []listedToken `json:"tokens"`
}

// unknown looks whether the number is known under another registry.
func (c *agentShowCmd) unknown(a *app, st *openStore, g store.Agent) error {
	others, err := st.Agents(a.ctx, store.AgentFilter{ChainID: &g.ChainID, AgentID: g.ID, Limit: 10})
	if err != nil {
		return err
	}
	if len(others) > 0 && c.Registry == "" {
		return fmt.Errorf("%s not found; there is one of the same number: say --registry %s", nameOf(g), others[0].IdentityRegistry)
	}
	return errUnseen(g)
}

// errUnseen: Herald never had to do with the agent.
func errUnseen(g store.Agent) error {
	return fmt.Errorf("%s not found: no delivery was ever accepted for it; `worker agent list` shows the agents that there are", nameOf(g))
}

func showAgent(a *app, r store.AgentRow) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, printable(value))
		}
	}
	row("agent", fmt.Sprintf("%d:%s", r.ChainID, r.AgentID))
	row("registry", r.IdentityRegistry)
	state := r.State
	if !r.Enabled && state != "disabled" {
		state += ", disabled"
	}
	row("state", state)
	row("policy", "onUnknown="+onUnknown(r.Policy))
	row("endpoint", r.Endpoint)
	row("server", serverWords(r.ServerInfo))
	row("protocol", r.Protocol)
	row("tools", toolWords(r.Tools))
	row("epoch", fmt.Sprint(r.Epoch))
	var open []string
	for _, s := range []store.Status{store.Queued, store.Running, store.Waiting, store.Held} {
		open = append(open, fmt.Sprintf("%d %s", r.Open[s], s))
	}
	row("open", strings.Join(open, ", "))
	row("ended", compact(r.Totals))
	row("last success", when(r.LastOKAt))
	if r.LastError != "" {
		row("last error", when(r.LastErrorAt)+"  "+r.LastError)
	}
	row("known since", r.CreatedAt.UTC().Format(time.RFC3339))
	return w.Flush()
}

func when(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// agentChange is what enable, disable and policy answer.
type agentChange struct {
	Agent    string       `json:"agent"`
	Registry string       `json:"identityRegistry"`
	Enabled  *bool        `json:"enabled,omitempty"`
	Policy   *agentPolicy `json:"policy,omitempty"`
	Released int          `json:"released"`
	Unseen   bool         `json:"unseen,omitempty"` // nothing was known of the agent before
	Audit    int64        `json:"audit,omitempty"`
}

type agentPolicy struct {
	OnUnknown string `json:"onUnknown"`
}

func changeOf(g store.Agent) agentChange {
	return agentChange{Agent: fmt.Sprintf("%d:%s", g.ChainID, g.ID), Registry: g.Registry}
}

type agentEnableCmd struct {
	agentArg
	actorFlag
	JSON bool `name:"json" help:"As JSON."`
}

func (c *agentEnableCmd) Run(a *app) error { return able(a, c.agentArg, c.actor(), c.JSON, true) }

type agentDisableCmd struct {
	agentArg
	actorFlag
	JSON bool `name:"json" help:"As JSON."`
}

func (c *agentDisableCmd) Run(a *app) error { return able(a, c.agentArg, c.actor(), c.JSON, false) }

// fileDisables tells whether the servers file disables an agent, as far as it can be read here.
func (a *app) fileDisables(g store.Agent) bool {
	listed, err := a.listedServer(g)
	if err != nil {
		fmt.Fprintf(a.err, "warning: it is not known whether the servers file disables the agent: %v\n", err)
	}
	return listed != nil && !listed.Enabled
}

// able enables or disables.
func able(a *app, arg agentArg, actor string, asObject, enabled bool) error {
	g, err := arg.agent(a)
	if err != nil {
		return err
	}
	if enabled && a.fileDisables(g) {
		return fmt.Errorf("%s is disabled by the servers file (enabled: false), which wins: nothing was changed or released. Enable it there, which releases its deliveries; "+
			"if they stay held, run this again", nameOf(g))
	}
	st, err := a.dispatching()
	if err != nil {
		return err
	}
	defer st.close()
	out := changeOf(g)
	out.Enabled = &enabled
	before, err := st.AgentRow(a.ctx, g)
	if out.Unseen = errors.Is(err, store.ErrNotFound); err != nil && !out.Unseen {
		return err
	}
	if enabled && out.Unseen {
		return errUnseen(g)
	}
	action := map[bool]string{true: "agent enable", false: "agent disable"}[enabled]
	what := map[string]any{"agent": out.Agent, "registry": g.Registry, "wasEnabled": before.Enabled || out.Unseen, "open": before.Open}
	if out.Unseen {
		what["unseen"] = true
	}
	row := store.Audit{Actor: actor, Action: action, Filter: asJSON(what), Matched: 1}
	out.Audit, err = audited(a.ctx, st, row, func() (int64, error) {
		released, tasks, err := st.EnableAgent(a.ctx, g, enabled)
		st.dispatch(a.ctx, tasks)
		out.Released = released
		return int64(released), err
	})
	switch {
	case err != nil:
		return err
	case asObject:
		return writeJSON(a, out)
	case enabled:
		fmt.Fprintf(a.out, "%s is enabled; %d held deliveries were released (audit %d)\n", nameOf(g), out.Released, out.Audit)
	default:
		if out.Unseen {
			fmt.Fprintf(a.out, "%s was never seen: no delivery was ever accepted for it. Check the number; it is disabled nevertheless.\n", nameOf(g))
		}
		fmt.Fprintf(a.out, "%s is disabled: its deliveries are held, a call that runs now is finished; `worker agent enable` releases them (audit %d)\n", nameOf(g), out.Audit)
	}
	return nil
}

type agentPolicyCmd struct {
	agentArg
	Settings []string `arg:"" optional:"" help:"onUnknown=resend: a call whose outcome nobody knows is made again (default); onUnknown=hold: it is held until an operator replays it."`
	actorFlag
	JSON bool `name:"json" help:"As JSON."`
}

// parsePolicy reads NAME=VALUE.
func parsePolicy(settings []string) (p store.Policy, err error) {
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		switch {
		case name != "onUnknown":
			return p, &misuseError{fmt.Sprintf("unknown policy %q: use one of onUnknown=resend, onUnknown=hold", s)}
		case !slices.Contains([]string{store.OnUnknownResend, store.OnUnknownHold}, value):
			return p, &misuseError{fmt.Sprintf("unknown value %q of onUnknown: use one of onUnknown=resend, onUnknown=hold", value)}
		case p.OnUnknown != "" && p.OnUnknown != value:
			return p, &misuseError{"onUnknown is set twice"}
		}
		p.OnUnknown = value
	}
	return p, nil
}

func (c *agentPolicyCmd) Run(a *app) error {
	p, err := parsePolicy(c.Settings)
	if err != nil {
		return err
	}
	g, err := c.agent(a)
	if err != nil {
		return err
	}
	st, err := a.store()
	if err != nil {
		return err
	}
	defer st.close()
	out := changeOf(g)
	before, err := st.AgentRow(a.ctx, g)
	if out.Unseen = errors.Is(err, store.ErrNotFound); err != nil && !out.Unseen {
		return err
	}
	if len(c.Settings) > 0 {
		row := store.Audit{Actor: c.actor(), Action: "agent policy", Matched: 1,
			Filter: asJSON(map[string]any{"agent": out.Agent, "registry": g.Registry, "onUnknown": p.OnUnknown, "was": onUnknown(before.Policy)})}
		out.Audit, err = audited(a.ctx, st, row, func() (int64, error) {
			if err := st.SetPolicy(a.ctx, g, p); err != nil {
				return 0, err
			}
			return 1, nil
		})
		if err != nil {
			return err
		}
	} else {
		if out.Unseen {
			return errUnseen(g)
		}
		p = before.Policy
	}
	out.Policy = &agentPolicy{OnUnknown: onUnknown(p)}
	if c.JSON {
		return writeJSON(a, out)
	}
	if out.Unseen {
		fmt.Fprintf(a.out, "%s was never seen: no delivery was ever accepted for it. Check the number; the policy is set nevertheless.\n", nameOf(g))
	}
	_, err = fmt.Fprintf(a.out, "%s: onUnknown=%s\n", nameOf(g), out.Policy.OnUnknown)
	return err
}

// onUnknown is the setting in force.
func onUnknown(p store.Policy) string {
	return cmp.Or(p.OnUnknown, store.OnUnknownResend)
}
