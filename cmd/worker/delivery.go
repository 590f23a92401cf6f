package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"os/user"
	"reflect"
	"strconv"
	"strings"
	"syscall"

	"github.com/agentherald/herald/internal/base/progress"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/report"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/alecthomas/kong"
)

type deliveryCmd struct {
	List   deliveryListCmd   `cmd:"" help:"List deliveries, newest first."`
	Groups deliveryGroupsCmd `cmd:"" help:"Group failed, held and waiting deliveries by reason and sentence."`
	Show   deliveryShowCmd   `cmd:"" help:"Show one delivery with its job, attempts and answers."`
	Replay deliveryReplayCmd `cmd:"" help:"Deliver again, by id or by filter."`
	Cancel deliveryCancelCmd `cmd:"" help:"End deliveries that are not final, by id or by filter."`
	Audit  deliveryAuditCmd  `cmd:"" help:"List what operators changed, newest first."`
}

type deliveryListCmd struct {
	operator.Selection
	Wide bool `help:"Also the sentence that explains the status."`
	pageFlags
	jsonFlag
}

func (c *deliveryListCmd) Run(a *command) error {
	page, err := a.newOperator().ListDeliveries(a.ctx, c.Selection, c.Cursor, c.Limit)
	return c.printAnswer(a, page, err, func() {
		head := []any{"ID", "KIND", "AGENT", "STATUS", "REASON", "CLIENT", "VALUE", "TAG",
			"ATTEMPTS", "ACCEPTED", "ENDPOINT"}
		if c.Wide {
			head = append(head, "SENTENCE")
		}
		t := a.newTable(head...)
		for _, d := range page.Deliveries {
			row := []any{d.ID, d.Kind, erc8004.FormatAgent(d.ChainID, d.AgentID), d.Status, d.Reason, d.Client,
				text.Shorten(d.Value), text.Shorten(strings.TrimSpace(d.Tag1 + " " + d.Tag2)), d.Attempts,
				report.Time(&d.CreatedAt), d.Endpoint}
			if c.Wide {
				row = append(row, text.Cut(d.Error, 300, "…"))
			}
			t.addRow(row...)
		}
		a.endPage(t, page.Next)
	})
}

type deliveryGroupsCmd struct {
	Status     string `help:"Only in these statuses, separated by commas. Default: rejected,dead,held,waiting." placeholder:"STATUS,…"`
	EndedSince string `help:"Ended ones: only since then, RFC 3339, or how long ago. Default: ${default}." default:"24h" placeholder:"TIME"`
	jsonFlag
}

func (c *deliveryGroupsCmd) Run(a *command) error {
	list, err := a.newOperator().ShowGroups(a.ctx, c.Status, c.EndedSince)
	return c.printAnswer(a, list, err, func() {
		t := a.newTable("COUNT", "STATUS", "REASON", "FIRST", "LAST", "AGENTS", "MOST", "SAMPLE", "SENTENCE")
		for _, g := range list.Groups {
			count := fmt.Sprint(g.Count)
			if g.Partial {
				count += "+"
			}
			var most []string
			for _, m := range g.Most {
				most = append(most, fmt.Sprintf("%s (%d)", m.Agent, m.Count))
			}
			t.addRow(count, g.Status, g.Reason, report.Time(&g.First), report.Time(&g.Last),
				g.Agents, strings.Join(most, ", "), g.Sample, g.Sentence)
		}
		t.Flush()
		if len(list.Groups) > 0 {
			fmt.Fprintln(a.out,
				"# stands for an id, a number or a URL. `worker delivery list`, `replay` and `cancel` take "+
					"--status, --reason, --sentence and --ended-since of a group")
		}
	})
}

type findCmd struct {
	Text string `arg:"" help:"A delivery's id, its first 8 or more digits, or its key, a transaction's hash, a client's address, an agent (8453:42), or the beginning of an agent's name: that of its registration or, without one, of its server."`
	jsonFlag
}

func (c *findCmd) Run(a *command) error {
	found, err := a.newOperator().Find(a.ctx, c.Text)
	return c.printAnswer(a, found, err, func() {
		t := a.newTable("KIND", "TARGET", "WHAT", "COMMAND")
		for _, m := range found.Matches {
			t.addRow(m.Kind, m.Target, m.Text, m.Command)
		}
		t.Flush()
	})
}

type deliveryShowCmd struct {
	ID string `arg:"" help:"The delivery's id, the first 8 or more digits of it, or its key."`
	jsonFlag
}

func (c *deliveryShowCmd) Run(a *command) error {
	o := a.newOperator()
	d, err := o.ShowDelivery(a.ctx, c.ID)
	var retraction *ledger.Delivery
	if err == nil && !c.JSON {
		retraction, err = o.FindRetraction(a.ctx, d.Delivery)
	}
	return c.printAnswer(a, d, err, func() { a.printFacts(report.Delivery(d, retraction)) })
}

// actorFlag names the author of a change.
type actorFlag struct {
	Actor string `help:"The name for the audit. Default: the system user and host."`
}

func (f actorFlag) actorName() string {
	if f.Actor != "" {
		return f.Actor
	}
	name := "uid " + strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "an unnamed host"
	}
	return name + "@" + host
}

// moveFlags are the options that replay and cancel share.
type moveFlags struct {
	operator.MoveRequest
	actorFlag
	jsonFlag
}

// AfterApply refuses an empty filter, as of a variable that a script forgot to set: without its filter, the command
// would change the deliveries of everybody.
func (moveFlags) AfterApply(line *kong.Context) error {
	for _, p := range line.Path {
		if f := p.Flag; f != nil && f.Name != "actor" && f.Target.Kind() == reflect.String && f.Target.IsZero() {
			return operator.NewMisuseOf(f.Name, "is empty: leave it out to select without it")
		}
	}
	return nil
}

type deliveryReplayCmd struct {
	moveFlags
	Force bool `help:"Also delivered ones, whose agent is called again, and those that a filter skipped. With options, only together with --status delivered or --reason filtered."`
	Rate  int  `help:"At most so many a second; 0: as fast as it goes." default:"50"`
}

func (c *deliveryReplayCmd) Run(a *command) error {
	return c.runMove(a, a.newOperator().Replay, c.Force, c.Rate)
}

type deliveryCancelCmd struct {
	moveFlags
	Force bool `help:"Also running ones. The call cannot be undone, only its consequences."`
	Rate  int  `help:"At most so many a second; 0: as fast as it goes." default:"0"`
}

func (c *deliveryCancelCmd) Run(a *command) error {
	return c.runMove(a, a.newOperator().Cancel, c.Force, c.Rate)
}

// runMove replays or cancels deliveries. After each batch it prints the deliveries that could not be changed.
func (c moveFlags) runMove(a *command, move operator.Mover, force bool, rate int) error {
	// Otherwise the change ends in the middle, without its end in the audit, once the reader of its output has ended.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	bar := progress.New(a.err, 0)
	r := c.MoveRequest
	r.Actor, r.Force, r.Rate = c.actorName(), force, rate
	r.Progress = func(p operator.MoveProgress) {
		for _, left := range p.LeftNow {
			if !c.JSON {
				bar.Clear()
				fmt.Fprintf(a.out, "left %s  %s\n", left.ID, text.Printable(left.Why))
			}
		}
		bar.Draw(float64(p.Done)/float64(max(p.Total, 1)), func(seconds float64) string {
			return fmt.Sprintf("%d of %d, %.0f/s, %d left as %s", p.Done, p.Total, float64(p.Done)/seconds,
				p.Left, text.Plural(p.Left, "it is", "they are"))
		})
	}
	moved, err := move(a.ctx, r)
	bar.Clear()
	if moved == nil {
		return err
	}
	return errors.Join(err, c.printAnswer(a, moved, nil, func() { fmt.Fprint(a.out, report.Move(moved, rate)) }))
}

type deliveryAuditCmd struct {
	pageFlags
	jsonFlag
}

func (c *deliveryAuditCmd) Run(a *command) error {
	page, err := a.newOperator().ListAudit(a.ctx, c.Cursor, c.Limit)
	return c.printAnswer(a, page, err, func() {
		t := a.newTable("ID", "AT", "ACTOR", "ACTION", "STATE", "MATCHED", "MOVED", "WHAT", "NOTE")
		for _, r := range page.Audit {
			t.addRow(r.ID, report.Time(&r.At), r.Actor, r.Action, r.State, r.Matched, r.Moved,
				text.Shorten(string(r.Filter)), text.Shorten(r.Note))
		}
		a.endPage(t, page.Next)
	})
}
