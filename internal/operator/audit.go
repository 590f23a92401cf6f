package operator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/store/records"
)

// auditTimeout bounds the final write to an audit row. That write is made even if a signal cancelled the change.
const auditTimeout = 10 * time.Second

// States of an audit row.
const (
	auditDone      = "done"
	auditCancelled = "cancelled"
	auditFailed    = "failed"
)

// auditor stores audit rows of operators' changes.
type auditor interface {
	BeginAudit(ctx context.Context, a records.Audit) (int64, error)
	EndAudit(ctx context.Context, id int64, moved int64, state, note string) error
}

// RunAudited begins an audit row, makes one change, and completes the row with the result. The row stores what as its
// filter. If the row cannot be written, the change is not made.
func RunAudited(ctx context.Context, st auditor, a records.Audit, what map[string]any,
	change func() (moved int64, err error)) (int64, error) {
	return runAuditedWithNote(ctx, st, a, what, func() (int64, string, error) {
		moved, err := change()
		return moved, "", err
	})
}

// ChangeOne opens the store and makes a change of one row with RunAudited.
func (o *Operator) ChangeOne(ctx context.Context, actor, action string, what map[string]any,
	change func(*Session) error) error {
	st, err := o.OpenStore(ctx)
	if err != nil {
		return err
	}
	defer st.Close()
	_, err = RunAudited(ctx, st, records.Audit{Actor: actor, Action: action, Matched: 1}, what,
		func() (int64, error) { return countOne(change(st)) })
	return err
}

// countOne returns 1 for a change of one row that succeeded.
func countOne(err error) (moved int64, _ error) {
	if err != nil {
		return 0, err
	}
	return 1, nil
}

// runAuditedWithNote is RunAudited for a change that also returns a note for the audit row.
func runAuditedWithNote(ctx context.Context, st auditor, a records.Audit, what map[string]any,
	change func() (moved int64, note string, err error)) (id int64, err error) {
	a.Filter = mustMarshal(what)
	if id, err = st.BeginAudit(ctx, a); err != nil {
		return 0, fmt.Errorf("nothing was changed, because the audit cannot be written: %w", err)
	}
	moved, note, err := change()
	state := stateOf(ctx, err)
	if err != nil {
		note = strings.TrimPrefix(note+"; "+err.Error(), "; ")
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
	defer cancel()
	if end := st.EndAudit(last, id, moved, state, note); end != nil {
		err = errors.Join(err, fmt.Errorf("audit row %d stays \"running\": %w", id, end))
	}
	return id, err
}

// stateOf returns the audit state of a change that ended with err.
func stateOf(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return auditDone
	case ctx.Err() != nil:
		return auditCancelled
	}
	return auditFailed
}

// AuditPage is one page of audit rows, newest first.
type AuditPage struct {
	Audit []records.Audit `json:"audit"`
	Next  string          `json:"next,omitempty"` // --cursor of the next page; empty on the last page
}

// ListAudit lists the audit rows before the row cursor, newest first. With cursor 0 it begins with the newest row.
func (o *Operator) ListAudit(ctx context.Context, cursor int64, limit int) (page AuditPage, err error) {
	if err := checkLimit(limit); err != nil {
		return page, err
	}
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		rows, err := st.Audits(ctx, cursor, limit+1)
		page.Audit, page.Next = cutPage(rows, limit,
			func(r records.Audit) string { return strconv.FormatInt(r.ID, 10) })
		return err
	})
	return page, err
}

// maxPage bounds the length of one page of a list.
const maxPage = 1000

// checkLimit returns an error if limit is not between 1 and maxPage.
func checkLimit(limit int) error {
	if limit < 1 || limit > maxPage {
		return NewMisuseOf("limit", "%d is not between 1 and %d", limit, maxPage)
	}
	return nil
}

// cutPage cuts rows to one page. The caller reads one row more than the page holds: that extra row shows that another
// page follows. next is the cursor of the page's last row, or empty on the last page.
func cutPage[T any](rows []T, limit int, cursor func(T) string) (page []T, next string) {
	if rows == nil {
		rows = []T{} // encodes as [] in JSON, not as null
	}
	if len(rows) <= limit {
		return rows, ""
	}
	return rows[:limit], cursor(rows[limit-1])
}
