package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/google/uuid"
)

const (
	maxBatch     = 500 // deliveries that the store changes in one transaction
	pageRows     = 1000
	ratePeriod   = 5                // batches in a second, unless they would be larger than maxBatch
	batchTimeout = 30 * time.Second // bounds one batch, including commit and dispatch
	maxAuditIDs  = 100              // bounds the ids in an audit row, which also counts all of them
)

// MoveRequest selects the deliveries to replay or cancel: by id, or by a selection.
type MoveRequest struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Deliveries: their ids, or the first 8 or more digits of each. Without any: those that the options choose."`
	Selection
	Yes    bool `help:"Do it. Without it, options only count the deliveries that they select."`
	DryRun bool `help:"Only count, which is what happens without --yes."`

	Actor    string             `kong:"-"` // named in the audit row
	Force    bool               `kong:"-"` // replay: also delivered deliveries; cancel: also running ones
	Rate     int                `kong:"-"` // maximum of deliveries in a second; 0: no limit
	Progress func(MoveProgress) `kong:"-"` // called after each batch; may be nil
}

// MoveProgress is the progress of a replay or a cancellation.
type MoveProgress struct {
	Done, Total, Left int
	LeftNow           []LeftDelivery // left by the last batch
}

// MoveReport is the result of a replay or a cancellation, or of its dry run.
type MoveReport struct {
	Action    string                   `json:"action"`
	DryRun    bool                     `json:"dryRun,omitempty"`
	Audit     int64                    `json:"audit,omitempty"` // id of the audit row
	State     string                   `json:"state,omitempty"` // done, cancelled or failed
	Matched   int64                    `json:"matched"`
	ByStatus  map[outcome.Status]int64 `json:"byStatus,omitempty"`  // dry run: the deliveries that would change
	Untouched map[outcome.Status]int64 `json:"untouched,omitempty"` // dry run: deliveries that would not change
	Moved     int64                    `json:"moved"`
	Left      []LeftDelivery           `json:"left,omitempty"`

	Done string                    `json:"-"` // the change in words: "queued anew"
	Why  map[outcome.Status]string `json:"-"` // reasons for Untouched
}

// LeftDelivery is a delivery that was not changed, and the reason.
type LeftDelivery struct {
	ID  uuid.UUID `json:"id"`
	Why string    `json:"why"`
}

// Mover is Operator.Replay or Operator.Cancel.
type Mover func(context.Context, MoveRequest) (*MoveReport, error)

// Cancel ends deliveries that are not final.
func (o *Operator) Cancel(ctx context.Context, r MoveRequest) (*MoveReport, error) {
	return o.moveDeliveries(ctx, r, cancelVerb(r), func(ctx context.Context, l *Ledger, ids []uuid.UUID,
		_ records.Filter) (int, map[uuid.UUID]string, []ledger.Task, error) {
		return l.Cancel(ctx, ids, r.Force)
	})
}

// moveDeliveries changes deliveries by calling move.
func (o *Operator) moveDeliveries(ctx context.Context, r MoveRequest, v verb,
	move func(context.Context, *Ledger, []uuid.UUID, records.Filter) (int, map[uuid.UUID]string, []ledger.Task,
		error)) (*MoveReport, error) {
	f, err := r.checkMove(v, time.Now())
	if err != nil {
		return nil, err
	}
	if r.DryRun {
		release, err := o.shareReads(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	st, err := o.OpenDispatching(ctx)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	var ids []uuid.UUID
	for _, s := range r.IDs {
		id, err := findID(ctx, st, s)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	v.move = func(ctx context.Context, ids []uuid.UUID) (int, map[uuid.UUID]string, error) {
		moved, left, tasks, err := move(ctx, st.Ledger, ids, f)
		st.Dispatch(ctx, tasks)
		return moved, left, err
	}
	return r.runMove(ctx, st, v, ids, f)
}

// verb describes a change of deliveries, and which statuses a selection includes.
type verb struct {
	name       string                    // its name in the audit row and in texts
	done       string                    // "queued anew"
	takes      []outcome.Status          // statuses that a selection without a status includes
	named      []outcome.Status          // statuses that it includes only if the selection names a status or a reason
	refuses    map[outcome.Status]string // statuses that cannot be selected, with the reason
	unfiltered bool                      // a selection leaves out deliveries that a filter skipped
	repeats    bool                      // it also changes delivered deliveries, and selects them again
	needsJob   bool                      // it leaves deliveries without a job
	move       func(ctx context.Context, ids []uuid.UUID) (moved int, left map[uuid.UUID]string, err error)
}

func cancelVerb(r MoveRequest) verb {
	const final = "they have ended already"
	v := verb{name: "cancel", done: "cancelled", takes: []outcome.Status{outcome.Queued, outcome.Waiting, outcome.Held},
		refuses: map[outcome.Status]string{outcome.Delivered: final, outcome.Skipped: final, outcome.Rejected: final,
			outcome.Dead: final, outcome.Cancelled: final,
			outcome.Running: "only with --force: the call cannot be taken back"}}
	if r.Force {
		v.takes = append(v.takes, outcome.Running)
		delete(v.refuses, outcome.Running)
	}
	return v
}

// ListMoves returns the names of the changes that accept the selection without force: replay and cancel.
func (s Selection) ListMoves() (names []string) {
	r := MoveRequest{Selection: s}
	for _, v := range []verb{replayVerb(r), cancelVerb(r)} {
		if _, err := r.checkMove(v, time.Now()); err == nil {
			names = append(names, v.name)
		}
	}
	return names
}

// takenStatuses returns the statuses that a filter includes.
func (v verb) takenStatuses(f records.Filter) []outcome.Status {
	switch {
	case len(f.Statuses) > 0:
		return f.Statuses
	case f.Reason != "":
		return slices.Concat(v.takes, v.named)
	}
	return v.takes
}

// checkMove returns an error if the request is invalid in itself, before anything is connected.
func (r MoveRequest) checkMove(v verb, now time.Time) (f records.Filter, err error) {
	selects := r.Selection != Selection{}
	switch {
	case r.Rate < 0:
		err = NewMisuseOf("rate", "%d is below 0: 0 is as fast as it goes", r.Rate)
	case r.Yes && r.DryRun:
		err = NewMisuse("--yes and --dry-run contradict each other")
	case len(r.IDs) > 0 && selects:
		err = NewMisuse("name deliveries by id or choose them by options, not both")
	case len(r.IDs) > 0 && r.DryRun:
		err = NewMisuse("--dry-run counts what options choose; a single one is shown by `worker delivery show`")
	case len(r.IDs) == 0 && !selects:
		err = NewMisuse("name deliveries to %s, or choose some with --agent, --registry, --client, --transaction, "+
			"--key, --status, --reason, --sentence, --kind, --since, --until or --ended-since", v.name)
	case r.Reorged:
		err = NewMisuseOf("reorged", "only lists deliveries")
	}
	for _, s := range r.IDs {
		_, _, idErr := parseID(s)
		err = cmp.Or(err, idErr)
	}
	if err != nil {
		return f, err
	}
	if f, err = r.parseFilter(now); err != nil {
		return f, err
	}
	for _, status := range f.Statuses {
		if why, ok := v.refuses[status]; ok {
			return f, NewMisuseOf("status", "%s: %s", status, why)
		}
	}
	if f.Unfiltered = v.unfiltered; f.Unfiltered && f.Reason == outcome.Filtered {
		return f, NewMisuseOf("reason", "%s: with --force they are delivered despite the filter", f.Reason)
	}
	return f, nil
}

// moveStore is the part of the store that a replay or a cancellation needs.
type moveStore interface {
	auditor
	Deliveries(ctx context.Context, f records.Filter) ([]ledger.Delivery, error)
	Delivery(ctx context.Context, id uuid.UUID) (ledger.Delivery, error)
	Count(ctx context.Context, f records.Filter) (map[outcome.Status]int64, error)
}

// runMove changes the deliveries with the given ids or, without ids, those that the filter selects.
func (r MoveRequest) runMove(ctx context.Context, st moveStore, v verb, ids []uuid.UUID,
	f records.Filter) (*MoveReport, error) {
	if len(ids) == 0 && !r.Yes {
		return countMoves(ctx, st, v, f)
	}
	ids, what, err := r.chooseDeliveries(ctx, st, v, ids, f)
	if err != nil {
		return nil, err
	}
	out := &MoveReport{Action: v.name, Done: v.done, Matched: int64(len(ids))}
	if len(ids) == 0 {
		return out, nil
	}

	var fault error
	row := records.Audit{Actor: r.Actor, Action: v.name, Matched: out.Matched}
	out.Audit, err = runAuditedWithNote(ctx, st, row, what, func() (int64, string, error) {
		fault = r.moveAll(ctx, v, ids, out)
		return out.Moved, out.countLeft(), fault
	})
	if out.Audit == 0 {
		return nil, err
	}
	out.State = stateOf(ctx, fault)
	rest := "run the same command again for the rest"
	if done := int(out.Moved) + len(out.Left); err != nil && v.repeats && done < len(ids) {
		rest = r.describeRest(ctx, st, ids[done], done)
	}
	return out, out.conclude(err, rest)
}

// chooseDeliveries returns the ids of the deliveries to change, and the filter for the audit row. If the deliveries are
// given by id, it removes the rate limit.
func (r *MoveRequest) chooseDeliveries(ctx context.Context, st moveStore, v verb, named []uuid.UUID, f records.Filter) (
	ids []uuid.UUID, what map[string]any, err error) {
	var was map[string]int // counts by status and reason
	if len(named) > 0 {
		ids, r.Rate = named, 0
		first := named[:min(len(named), maxAuditIDs)]
		what = map[string]any{"ids": first}
		was, err = countNamed(ctx, st, first)
	} else {
		what = f.Describe()
		ids, was, err = listIDs(ctx, st, f, v.takenStatuses(f))
	}
	what["was"] = was
	if r.Force {
		what["force"] = true
	}
	return ids, what, err
}

// countNamed counts the given deliveries by status and reason. It skips ids that do not exist: the change reports them.
func countNamed(ctx context.Context, st moveStore, ids []uuid.UUID) (map[string]int, error) {
	was := map[string]int{}
	for _, id := range ids {
		switch d, err := st.Delivery(ctx, id); {
		case err == nil:
			was[describeState(d)]++
		case !errors.Is(err, ledger.ErrNotFound):
			return nil, err
		}
	}
	return was, nil
}

// describeState returns a delivery's status and reason, the key of the counts in audit rows.
func describeState(d ledger.Delivery) string {
	return strings.TrimSpace(string(d.Status) + " " + string(d.Reason))
}

// listIDs lists the ids of the selected deliveries in the order of their acceptance, so that agents receive them in
// that order. It lists them before the first change, so that a delivery which changes its status is not selected twice.
// was counts them by status and reason.
func listIDs(ctx context.Context, st moveStore, f records.Filter, statuses []outcome.Status) (
	ids []uuid.UUID, was map[string]int, err error) {
	type row struct {
		seq int64
		id  uuid.UUID
		was string
	}
	var rows []row
	for _, status := range statuses {
		f.Statuses, f.Before, f.Limit = []outcome.Status{status}, 0, pageRows
		for {
			page, err := st.Deliveries(ctx, f)
			if err != nil {
				return nil, nil, err
			}
			for _, d := range page {
				rows = append(rows, row{d.Seq, d.ID, describeState(d)})
				f.Before = d.Seq
			}
			if len(page) < pageRows {
				break
			}
		}
	}

	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.seq, b.seq) })
	ids, was = make([]uuid.UUID, 0, len(rows)), map[string]int{}
	for _, r := range rows {
		if len(ids) == 0 || ids[len(ids)-1] != r.id { // false if it changed its status between two lists
			ids = append(ids, r.id)
			was[r.was]++
		}
	}
	return ids, was, nil
}

// divideRate divides a rate per second into batches of a size and the time between them. A rate of 0 has no pauses.
func divideRate(rate int) (size int, every time.Duration) {
	if rate == 0 {
		return maxBatch, 0
	}
	size = min(max(rate/ratePeriod, 1), maxBatch)
	return size, time.Duration(float64(size) / float64(rate) * float64(time.Second))
}

// moveAll changes the deliveries batch by batch. It reports the unchanged deliveries of each batch at once, so
// that the report is complete if it ends early.
func (r MoveRequest) moveAll(ctx context.Context, v verb, ids []uuid.UUID, out *MoveReport) error {
	size, every := divideRate(r.Rate)
	next, done := time.Now(), 0
	for batch := range slices.Chunk(ids, size) {
		_ = loop.Pause(ctx, time.Until(next))
		next = next.Add(every)
		if ctx.Err() != nil {
			return fmt.Errorf("stopped after %d of %d: %w", done, len(ids), context.Cause(ctx))
		}

		// Without a cancellation, so that a commit that has begun can end.
		uncancelled, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
		moved, left, err := v.move(uncancelled, batch)
		cancel()
		out.Moved += int64(moved)
		if err != nil {
			return fmt.Errorf("after %d of %d: %w", done, len(ids), err)
		}

		done += len(batch)
		before := len(out.Left)
		for _, id := range batch {
			if why, is := left[id]; is {
				out.Left = append(out.Left, LeftDelivery{id, why})
			}
		}
		if r.Progress != nil {
			r.Progress(MoveProgress{done, len(ids), len(out.Left), out.Left[before:]})
		}
	}
	return nil
}

// countLeft counts the deliveries that were left by reason, for the audit row.
func (r *MoveReport) countLeft() string {
	counts := map[string]int{}
	for _, l := range r.Left {
		counts[l.Why]++
	}
	var reasons []string
	for _, why := range slices.Sorted(maps.Keys(counts)) {
		reasons = append(reasons, fmt.Sprintf("%d left: %s", counts[why], why))
	}
	return strings.Join(reasons, "; ")
}

// describeRest returns how to go on after the first deliveries are done, where the same command would select these
// again. next is the first one that is left.
func (r MoveRequest) describeRest(ctx context.Context, st moveStore, next uuid.UUID, done int) string {
	again := fmt.Sprintf("the same command calls the agents of the first %d again", done)
	if len(r.IDs) > 0 {
		return fmt.Sprintf("%s: name only those from %s on", again, next)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
	defer cancel()
	d, err := st.Delivery(ctx, next)
	if err != nil {
		return again
	}
	return fmt.Sprintf("%s; with --since %s, when the next one was accepted, it leaves out those accepted before",
		again, d.CreatedAt.UTC().Format(time.RFC3339Nano))
}

// conclude returns the error with which a change ends. fault is the error that ended it early, or nil, and rest says
// how to go on then.
func (r *MoveReport) conclude(fault error, rest string) error {
	switch {
	case fault != nil && r.State == auditCancelled:
		return fmt.Errorf("%w; %s", fault, rest)
	case fault != nil:
		return fmt.Errorf("%w; the reported batches are done, the last one may be: %s", fault, rest)
	case r.foundNone():
		return errors.New("not found: none of these ids is a delivery; `worker delivery list` shows which there are")
	case len(r.Left) > 0:
		return &LeftError{fmt.Sprintf("%d of %d changed. Reasons are listed above.", r.Moved, r.Matched)}
	}
	return nil
}

// foundNone reports whether none of the given ids exists.
func (r *MoveReport) foundNone() bool {
	exists := func(l LeftDelivery) bool { return l.Why != ledger.NoSuchDelivery }
	return len(r.Left) > 0 && int64(len(r.Left)) == r.Matched && !slices.ContainsFunc(r.Left, exists)
}

// countMoves is the dry run: it counts the deliveries that would change.
func countMoves(ctx context.Context, st moveStore, v verb, f records.Filter) (*MoveReport, error) {
	able := f
	able.WithJob, f.Unfiltered = true, false // those that only able omits stay as they are
	all, err := st.Count(ctx, f)
	movable := all
	if err == nil && v.needsJob {
		movable, err = st.Count(ctx, able)
	}
	if err != nil {
		return nil, err
	}
	r := &MoveReport{Action: v.name, Done: v.done, DryRun: true, ByStatus: map[outcome.Status]int64{},
		Untouched: map[outcome.Status]int64{}, Why: map[outcome.Status]string{}}
	takes := v.takenStatuses(f)
	for status, n := range all {
		switch {
		case n == 0:
		case slices.Contains(takes, status):
			can := min(movable[status], n) // the rows may change between the counts
			if can > 0 {
				r.ByStatus[status] = can
				r.Matched += can
			}
			if can < n {
				r.Untouched[status], r.Why[status] = n-can, "without a job: retention deleted it, or it was invalid"
				if status == outcome.Skipped {
					r.Why[status] += "; or skipped by a filter: replay these with --reason filtered --force"
				}
			}
		default:
			r.Untouched[status], r.Why[status] = n, v.refuses[status]
			if slices.Contains(v.named, status) {
				r.Why[status] = "only with --status " + string(status)
			}
		}
	}
	return r, nil
}
