package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

type deliveryCmd struct {
	List   deliveryListCmd   `cmd:"" help:"List deliveries, newest first."`
	Show   deliveryShowCmd   `cmd:"" help:"Show one delivery with its job, attempts and answers."`
	Replay deliveryReplayCmd `cmd:"" help:"Deliver again, by id or by filter."`
	Cancel deliveryCancelCmd `cmd:"" help:"End deliveries that are not final, by id or by filter."`
	Audit  deliveryAuditCmd  `cmd:"" help:"List what operators changed, newest first."`
}

type deliveryListCmd struct {
	selection
	Cursor int64 `help:"Continue before this cursor, as the end of the previous page tells (next in JSON)."`
	Limit  int   `help:"Rows." default:"50"`
	JSON   bool  `name:"json" help:"As JSON."`
}

func (c *deliveryListCmd) Run(a *app) error {
	f, err := c.filter(time.Now())
	if err := cmp.Or(checkLimit(c.Limit), err); err != nil {
		return err
	}
	f.Before, f.Limit = c.Cursor, c.Limit+1
	st, err := a.readStore()
	if err != nil {
		return err
	}
	defer st.close()
	list, err := st.Deliveries(a.ctx, f)
	if err != nil {
		return err
	}
	list, next := cutPage(list, c.Limit, func(d store.Delivery) string { return strconv.FormatInt(d.Seq, 10) })
	if c.JSON {
		return writeJSON(a, deliveryPage{list, next})
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tKIND\tAGENT\tSTATUS\tREASON\tATTEMPTS\tACCEPTED\tENDPOINT")
	for _, d := range list {
		fmt.Fprintf(w, "%s\t%s\t%d:%s\t%s\t%s\t%d\t%s\t%s\n", d.ID, d.Kind, d.ChainID, d.AgentID, d.Status, orDash(d.Reason),
			d.Attempts, d.CreatedAt.UTC().Format(time.DateTime), orDash(d.Endpoint))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return printNext(a, next)
}

// deliveryPage is one page of deliveries in JSON.
type deliveryPage struct {
	Deliveries []store.Delivery `json:"deliveries"`
	Next       string           `json:"next,omitempty"` // --cursor of the next page; none: this is the last one
}

// parseAgent reads CHAIN:AGENT.
func parseAgent(s string) (chainID uint64, agentID string, err error) {
	chain, agent, ok := strings.Cut(s, ":")
	chainID, chainErr := strconv.ParseUint(chain, 10, 63)
	if !ok || chainErr != nil || agent == "" || strings.Trim(agent, "0123456789") != "" || len(agent) > 78 {
		return 0, "", &misuseError{fmt.Sprintf("%q is not CHAIN:AGENT, as in 8453:42", s)}
	}
	if agent = strings.TrimLeft(agent, "0"); agent == "" {
		agent = "0"
	}
	return chainID, agent, nil
}

type deliveryShowCmd struct {
	ID   string `arg:"" help:"The delivery's id."`
	JSON bool   `name:"json" help:"As JSON."`
}

func (c *deliveryShowCmd) Run(a *app) error {
	id, err := uuid.Parse(c.ID)
	if err != nil {
		return &misuseError{fmt.Sprintf("%q is not a delivery id", c.ID)}
	}
	st, err := a.readStore()
	if err != nil {
		return err
	}
	defer st.close()
	d, err := st.Delivery(a.ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("delivery %s not found: `worker delivery list` shows which there are", id)
	}
	if err != nil {
		return err
	}
	shown := shownDelivery{Delivery: d, NextStep: a.nextStep(d)}
	if c.JSON {
		return writeJSON(a, shown)
	}
	return show(a, shown)
}

// shownDelivery is a delivery with what is not stored of it: that is derived from its reason, whenever it got it.
type shownDelivery struct {
	store.Delivery
	NextStep string `json:"nextStep,omitempty"` // what a person does about it
}

// nextStep is what a person does about a delivery; empty for one that was delivered or is on its way.
func (a *app) nextStep(d store.Delivery) string {
	var asked struct {
		Action struct {
			ToolName string `json:"toolName"`
		} `json:"action"`
	}
	_ = json.Unmarshal(d.Job, &asked) // without a tool's name the sentence does without it
	g := store.Agent{ChainID: d.ChainID, Registry: d.IdentityRegistry, ID: d.AgentID}
	listed, err := a.listedServer(g)
	return retry.Reason(d.Reason).NextStep(retry.Subject{Delivery: d.ID.String(), ChainID: d.ChainID, AgentID: d.AgentID,
		Registry: d.IdentityRegistry, Endpoint: d.Endpoint, Tool: asked.Action.ToolName, Listed: err == nil && listed != nil,
		Over: d.Status.Final()})
}

// show writes a delivery as an operator reads it: what it is, where it stands, what each attempt did.
func show(a *app, d shownDelivery) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, printable(value))
		}
	}
	row("delivery", d.ID.String())
	row("key", d.Key)
	row("status", strings.TrimSpace(string(d.Status)+" "+d.Reason))
	row("error", d.Error)
	row("next step", d.NextStep)
	row("tool", d.ToolName)
	row("endpoint", d.Endpoint)
	row("file", strings.TrimSpace(d.FileVerification+" "+d.FileSource))
	if len(d.FileDisagrees) > 0 {
		row("file disagrees", strings.Join(d.FileDisagrees, ", ")+": the event wins")
	}
	row("accepted", d.CreatedAt.UTC().Format(time.RFC3339))
	row("attempts", attemptWords(d.Delivery))
	if d.NextAttemptAt != nil {
		row("next attempt", d.NextAttemptAt.UTC().Format(time.RFC3339))
	}
	if d.FinishedAt != nil {
		row("finished", d.FinishedAt.UTC().Format(time.RFC3339))
	}
	row("job", string(d.Job))
	row("result", string(d.Result))
	for _, t := range d.History {
		row(fmt.Sprintf("attempt %d", t.Number), attemptLine(t))
		row("  sent", compact(t.Arguments))
		row("  answered", compact(t.Response))
	}
	return w.Flush()
}

// attemptWords tell how many attempts count, and since when a delivery waits or is held. A hold or a free wait takes back its attempt
// unless the agent's tool was called, so that the list of attempts does not show it; what is held as it comes never had one.
func attemptWords(d store.Delivery) string {
	counted := fmt.Sprintf("%d that count", d.Attempts)
	if d.Status != store.Held && d.Status != store.Waiting {
		return counted
	}
	return fmt.Sprintf("%s; %s for %s since %s", counted, d.Status, d.Reason, d.UpdatedAt.UTC().Format(time.RFC3339))
}

func attemptLine(t store.Attempt) string {
	outcome := t.Outcome
	if outcome == "" {
		outcome = "not finished"
	}
	s := fmt.Sprintf("%s  %s at %s", t.StartedAt.UTC().Format(time.RFC3339), outcome, t.Stage)
	if t.DurationMs != nil {
		s += fmt.Sprintf(" after %d ms", *t.DurationMs)
	}
	if t.Reason != "" {
		s += "  " + t.Reason + ": " + t.Error
	}
	return s
}

// compact shortens JSON for one line of a terminal; --json has all of it.
func compact(raw json.RawMessage) string {
	const width = 300
	if r := []rune(string(raw)); len(r) > width {
		return string(r[:width]) + "… (--json shows all)"
	}
	return string(raw)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

// printable keeps strangers' text from driving the operator's terminal: control and direction characters become "·".
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if drivesTerminal(r) {
			return '·'
		}
		return r
	}, s)
}

// drivesTerminal: control characters, and those that change the direction of text.
func drivesTerminal(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }
