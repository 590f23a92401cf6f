package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentherald/herald/internal/store"
)

// auditTimeout bounds the last write of a change, which is made although a signal asked to stop.
const auditTimeout = 10 * time.Second

// States of an audit row.
const (
	auditDone      = "done"
	auditCancelled = "cancelled"
	auditFailed    = "failed"
)

// actorFlag says who makes a change.
type actorFlag struct {
	Actor string `help:"Who the audit names. Default: the user of the system at this host."`
}

func (f actorFlag) actor() string {
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

// auditor keeps the trail of what operators change.
type auditor interface {
	BeginAudit(ctx context.Context, a store.Audit) (int64, error)
	EndAudit(ctx context.Context, id int64, moved int64, state, note string) error
}

// audited makes one change between the two halves of its audit row. No row, no change.
func audited(ctx context.Context, st auditor, a store.Audit, change func() (moved int64, err error)) (id int64, err error) {
	return auditedWithNote(ctx, st, a, func() (int64, string, error) {
		moved, err := change()
		return moved, "", err
	})
}

// auditedWithNote is audited for a change that has something to note about how it went.
func auditedWithNote(ctx context.Context, st auditor, a store.Audit, change func() (moved int64, note string, err error)) (id int64, err error) {
	if id, err = st.BeginAudit(ctx, a); err != nil {
		return 0, fmt.Errorf("nothing was changed, because the audit cannot be written: %w", err)
	}
	moved, note, err := change()
	state := auditDone
	if err != nil {
		state, note = auditFailed, strings.TrimPrefix(note+"; "+err.Error(), "; ")
		if ctx.Err() != nil {
			state = auditCancelled
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
	defer cancel()
	if end := st.EndAudit(last, id, moved, state, note); end != nil {
		err = errors.Join(err, fmt.Errorf("audit row %d stays \"running\": %w", id, end))
	}
	return id, err
}

type deliveryAuditCmd struct {
	Cursor int64 `help:"Continue before this cursor, as the end of the previous page tells (next in JSON)."`
	Limit  int   `help:"Rows." default:"50"`
	JSON   bool  `name:"json" help:"As JSON."`
}

// auditPage is one page of the audit in JSON.
type auditPage struct {
	Audit []store.Audit `json:"audit"`
	Next  string        `json:"next,omitempty"` // --cursor of the next page; none: this is the last one
}

func (c *deliveryAuditCmd) Run(a *app) error {
	if err := checkLimit(c.Limit); err != nil {
		return err
	}
	st, err := a.readStore()
	if err != nil {
		return err
	}
	defer st.close()
	list, err := st.Audits(a.ctx, c.Cursor, c.Limit+1)
	if err != nil {
		return err
	}
	list, next := cutPage(list, c.Limit, func(r store.Audit) string { return strconv.FormatInt(r.ID, 10) })
	if c.JSON {
		return writeJSON(a, auditPage{list, next})
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tAT\tACTOR\tACTION\tSTATE\tMATCHED\tMOVED\tWHAT\tNOTE")
	for _, r := range list {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", r.ID, r.At.UTC().Format(time.DateTime), orDash(r.Actor), orDash(r.Action), orDash(r.State),
			r.Matched, r.Moved, orDash(short(string(r.Filter))), orDash(short(r.Note)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return printNext(a, next)
}

// short cuts a line of a table; --json has all of it.
func short(s string) string {
	const width = 120
	if r := []rune(s); len(r) > width {
		return string(r[:width]) + "…"
	}
	return s
}
