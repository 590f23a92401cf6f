package operator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
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

// auditor keeps the trail of what operators change.
type auditor interface {
	BeginAudit(ctx context.Context, a store.Audit) (int64, error)
	EndAudit(ctx context.Context, id int64, moved int64, state, note string) error
}

// RunAudited makes one change between the two halves of its audit row, which keeps what of it. No row, no change.
func RunAudited(ctx context.Context, st auditor, a store.Audit, what map[string]any,
	change func() (moved int64, err error)) (int64, error) {
	return runAuditedWithNote(ctx, st, a, what, func() (int64, string, error) {
		moved, err := change()
		return moved, "", err
	})
}

// runAuditedWithNote is RunAudited for a change that has something to note about how it went.
func runAuditedWithNote(ctx context.Context, st auditor, a store.Audit, what map[string]any,
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

// stateOf is how a change ended: err is why it did before it was done.
func stateOf(ctx context.Context, err error) string {
	switch {
	case err == nil:
		return auditDone
	case ctx.Err() != nil:
		return auditCancelled
	}
	return auditFailed
}

// AuditPage is one page of what operators changed, newest first.
type AuditPage struct {
	Audit []store.Audit `json:"audit"`
	Next  string        `json:"next,omitempty"` // --cursor of the next page; none: this is the last one
}

// ListAudit lists what operators changed before the row cursor; 0: from the newest on.
func (o *Operator) ListAudit(ctx context.Context, cursor int64, limit int) (page AuditPage, err error) {
	if err := checkLimit(limit); err != nil {
		return page, err
	}
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		rows, err := st.Audits(ctx, cursor, limit+1)
		page.Audit, page.Next = cutPage(rows, limit, func(r store.Audit) string { return strconv.FormatInt(r.ID, 10) })
		return err
	})
	return page, err
}

// maxPage is the longest page of a list.
const maxPage = 1000

// checkLimit refuses pages that no list has.
func checkLimit(limit int) error {
	if limit < 1 || limit > maxPage {
		return misuseOf("limit", "%d is not between 1 and %d", limit, maxPage)
	}
	return nil
}

// cutPage takes rows that were listed with one more than the page holds. That one only tells that there is another
// page: it is cut off, and next is the cursor of the page's last row. On the last page next is empty.
func cutPage[T any](rows []T, limit int, cursor func(T) string) (page []T, next string) {
	if rows == nil {
		rows = []T{} // a list in JSON, not null
	}
	if len(rows) <= limit {
		return rows, ""
	}
	return rows[:limit], cursor(rows[limit-1])
}
