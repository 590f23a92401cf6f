package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

const (
	maxBatch     = 500 // deliveries that the store moves in one transaction
	pageRows     = 1000
	ratePeriod   = 5                // batches a second at most, unless they would be larger than maxBatch
	movePatience = 30 * time.Second // one batch, commit and dispatch included
	maxAuditIDs  = 100              // ids that an audit row names; it counts all
)

// moveFlags are what replay and cancel have in common.
type moveFlags struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Deliveries. Without any: those that the options choose."`
	selection
	actorFlag
	Yes    bool `help:"Do it. Without: only count what a choice by options would move."`
	DryRun bool `help:"Only count, which is what happens without --yes."`
	JSON   bool `name:"json" help:"As JSON."`
}

// verb is what is done to deliveries, and to which ones when a filter chooses.
type verb struct {
	name    string                  // as the audit and the sentences call it
	force   bool                    // --force was said
	done    string                  // "queued anew"
	takes   []store.Status          // by filter, without --status
	named   []store.Status          // by filter, only when --status or --reason names them
	refuses map[store.Status]string // by --status: why it makes no sense
	move    func(ctx context.Context, ids []uuid.UUID) (moved int, left map[uuid.UUID]string, err error)
}

// ledger is the store as moving needs it.
type ledger interface {
	auditor
	Deliveries(ctx context.Context, f store.Filter) ([]store.Delivery, error)
	Delivery(ctx context.Context, id uuid.UUID) (store.Delivery, error)
	Count(ctx context.Context, f store.Filter) (map[store.Status]int64, error)
}

// moveReport is the answer, as --json writes it.
type moveReport struct {
	Action    string                 `json:"action"`
	DryRun    bool                   `json:"dryRun,omitempty"`
	Audit     int64                  `json:"audit,omitempty"` // the row's id
	State     string                 `json:"state,omitempty"` // done cancelled failed
	Matched   int64                  `json:"matched"`
	ByStatus  map[store.Status]int64 `json:"byStatus,omitempty"`  // dry run: what would be moved
	Untouched map[store.Status]int64 `json:"untouched,omitempty"` // dry run: what the choice meets and would not be moved
	Moved     int64                  `json:"moved"`
	Left      []leftRow              `json:"left,omitempty"`
}

type leftRow struct {
	ID  uuid.UUID `json:"id"`
	Why string    `json:"why"`
}

// check refuses command lines that cannot be meant, before anything is connected to.
func (c moveFlags) check(v verb, rate int) (ids []uuid.UUID, f store.Filter, err error) {
	misuse := func(text string) ([]uuid.UUID, store.Filter, error) { return nil, f, &misuseError{text} }
	switch {
	case rate < 0:
		return misuse(fmt.Sprintf("--rate %d is below 0: 0 is as fast as it goes", rate))
	case c.Yes && c.DryRun:
		return misuse("--yes and --dry-run contradict each other")
	case len(c.IDs) > 0 && c.narrows():
		return misuse("name deliveries by id or choose them by options, not both")
	case len(c.IDs) > 0 && c.DryRun:
		return misuse("--dry-run counts what options choose; a single one is shown by `worker delivery show`")
	case len(c.IDs) == 0 && !c.narrows():
		return misuse(fmt.Sprintf("name deliveries to %s, or choose some with --agent, --status, --reason, --kind, --since or --until", v.name))
	}
	for _, s := range c.IDs {
		id, err := uuid.Parse(s)
		if err != nil {
			return misuse(fmt.Sprintf("%q is not a delivery id", s))
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if f, err = c.filter(time.Now()); err != nil {
		return nil, f, err
	}
	if why, ok := v.refuses[f.Status]; ok {
		return misuse(fmt.Sprintf("--status %s: %s", f.Status, why))
	}
	return ids, f, nil
}

// statuses are those that a filter moves.
func (v verb) statuses(f store.Filter) []store.Status {
	switch {
	case f.Status != "":
		return []store.Status{f.Status}
	case f.Reason != "":
		return slices.Concat(v.takes, v.named)
	}
	return v.takes
}

// run moves the named deliveries, or those that the filter chooses.
func (c moveFlags) run(a *app, st ledger, v verb, rate int, ids []uuid.UUID, f store.Filter) error {
	if len(ids) == 0 && !c.Yes {
		return c.count(a, st, v, rate, f)
	}
	var what map[string]any
	if len(ids) > 0 {
		named := ids[:min(len(ids), maxAuditIDs)]
		was, err := countNamed(a.ctx, st, named)
		if err != nil {
			return err
		}
		what, rate = map[string]any{"ids": named, "was": was}, 0
	} else {
		what = recorded(f)
		var was map[string]int
		var err error
		if ids, was, err = choose(a.ctx, st, f, v.statuses(f)); err != nil {
			return err
		}
		what["was"] = was
	}
	if v.force {
		what["force"] = true
	}
	r := moveReport{Action: v.name, Matched: int64(len(ids))}
	if len(ids) == 0 {
		return r.say(a, c.JSON, v, nil)
	}
	var err error
	var fault error
	row := store.Audit{Actor: c.actor(), Action: v.name, Filter: asJSON(what), Matched: r.Matched}
	r.Audit, err = auditedWithNote(a.ctx, st, row, func() (int64, string, error) {
		fault = r.move(a, v, rate, ids, c.JSON)
		return r.Moved, r.leftWords(), fault
	})
	if r.Audit == 0 {
		return err
	}
	r.State = auditDone
	if fault != nil {
		r.State = auditFailed
		if a.ctx.Err() != nil {
			r.State = auditCancelled
		}
	}
	return r.say(a, c.JSON, v, err)
}

// leftWords counts what was left by why it was, for the audit.
func (r *moveReport) leftWords() string {
	counts := map[string]int{}
	for _, l := range r.Left {
		counts[l.Why]++
	}
	var said []string
	for _, why := range slices.Sorted(maps.Keys(counts)) {
		said = append(said, fmt.Sprintf("%d left: %s", counts[why], why))
	}
	return strings.Join(said, "; ")
}

// countNamed counts named deliveries by status and reason, for the audit. One that is not there is told of when it is to be moved.
func countNamed(ctx context.Context, st ledger, ids []uuid.UUID) (map[string]int, error) {
	was := map[string]int{}
	for _, id := range ids {
		d, err := st.Delivery(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		was[describeState(d)]++
	}
	return was, nil
}

// describeState is a delivery's status and reason, as the audit counts them.
func describeState(d store.Delivery) string {
	return strings.TrimSpace(string(d.Status) + " " + d.Reason)
}

// choose lists the ids once and oldest first, so that what moves meanwhile is not chosen twice and agents get them in order. was counts
// them by status and reason.
func choose(ctx context.Context, st ledger, f store.Filter, statuses []store.Status) (ids []uuid.UUID, was map[string]int, err error) {
	type row struct {
		seq int64
		id  uuid.UUID
		was string
	}
	var rows []row
	for _, status := range statuses {
		f.Status, f.Before, f.Limit = status, 0, pageRows
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
		if len(ids) == 0 || ids[len(ids)-1] != r.id { // it changed its status between two lists
			ids = append(ids, r.id)
			was[r.was]++
		}
	}
	return ids, was, nil
}

// pace divides a rate into batches: so many, every so often. A rate of 0 knows no pause.
func pace(rate int) (size int, every time.Duration) {
	if rate == 0 {
		return maxBatch, 0
	}
	size = min(max(rate/ratePeriod, 1), maxBatch)
	return size, time.Duration(float64(size) / float64(rate) * float64(time.Second))
}

// move goes through the ids, batch by batch. What it left is written as it is found, so that nothing is untold when it ends early.
func (r *moveReport) move(a *app, v verb, rate int, ids []uuid.UUID, quiet bool) error {
	size, every := pace(rate)
	var tick <-chan time.Time
	if every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		tick = t.C
	}
	bar := newProgress(a.err, len(ids))
	defer bar.clear()
	done := 0
	for batch := range slices.Chunk(ids, size) {
		if done > 0 && tick != nil {
			select {
			case <-tick:
			case <-a.ctx.Done():
			}
		}
		if a.ctx.Err() != nil {
			return fmt.Errorf("stopped after %d of %d: %w", done, len(ids), context.Cause(a.ctx))
		}
		moved, left, err := r.batch(a.ctx, v, batch)
		r.Moved += int64(moved)
		if err != nil {
			return fmt.Errorf("after %d of %d: %w", done, len(ids), err)
		}
		done += len(batch)
		for _, id := range batch {
			why, is := left[id]
			if !is {
				continue
			}
			r.Left = append(r.Left, leftRow{id, why})
			if !quiet {
				bar.clear()
				fmt.Fprintf(a.out, "left %s  %s\n", id, printable(why))
			}
		}
		bar.show(done, len(r.Left))
	}
	return nil
}

// batch moves one. A signal ends the going on, not a commit that has begun.
func (r *moveReport) batch(ctx context.Context, v verb, ids []uuid.UUID) (int, map[uuid.UUID]string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), movePatience)
	defer cancel()
	return v.move(ctx, ids)
}

// say tells what was done; fault is why it ended early.
func (r *moveReport) say(a *app, asJSON bool, v verb, fault error) error {
	if asJSON {
		if err := writeJSON(a, r); err != nil {
			return errors.Join(fault, err)
		}
	} else {
		switch {
		case r.Matched == 0:
			fmt.Fprintln(a.out, "no delivery matches")
		default:
			fmt.Fprintf(a.out, "%d of %d %s (audit %d)\n", r.Moved, r.Matched, v.done, r.Audit)
		}
	}
	switch {
	case fault != nil && r.State == auditCancelled:
		return fmt.Errorf("%w; the same command takes up the rest", fault)
	case fault != nil:
		return fmt.Errorf("%w; what was told is done, the last batch may be: the same command takes up the rest", fault)
	case r.foundNone():
		return errors.New("not found: none of these ids is a delivery; `worker delivery list` shows which there are")
	case len(r.Left) > 0:
		return &leftError{fmt.Sprintf("%d of %d changed. Reasons are listed above.", r.Moved, r.Matched)}
	}
	return nil
}

// foundNone tells whether nothing that was named exists.
func (r *moveReport) foundNone() bool {
	unknown := 0
	for _, left := range r.Left {
		if left.Why == store.NoSuchDelivery {
			unknown++
		}
	}
	return unknown > 0 && int64(unknown) == r.Matched
}

// count is the dry run.
func (c moveFlags) count(a *app, st ledger, v verb, rate int, f store.Filter) error {
	all, err := st.Count(a.ctx, f)
	if err != nil {
		return err
	}
	r := moveReport{Action: v.name, DryRun: true, ByStatus: map[store.Status]int64{}, Untouched: map[store.Status]int64{}}
	takes := v.statuses(f)
	for status, n := range all {
		switch {
		case n == 0:
		case slices.Contains(takes, status):
			r.ByStatus[status] = n
			r.Matched += n
		default:
			r.Untouched[status] = n
		}
	}
	if c.JSON {
		return writeJSON(a, r)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, status := range slices.Sorted(maps.Keys(r.ByStatus)) {
		fmt.Fprintf(w, "%d\t%s\t\n", r.ByStatus[status], status)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, status := range slices.Sorted(maps.Keys(r.Untouched)) {
		why := v.refuses[status]
		if slices.Contains(v.named, status) {
			why = "only with --status " + string(status)
		}
		fmt.Fprintf(a.out, "not moved: %d %s (%s)\n", r.Untouched[status], status, why)
	}
	if r.Matched == 0 {
		fmt.Fprintln(a.out, "no delivery matches that could be moved")
		return nil
	}
	takesTime := ""
	if rate > 0 {
		takesTime = fmt.Sprintf(", %d a second, in about %s", rate, (time.Duration(r.Matched) * time.Second / time.Duration(rate)).Round(time.Second))
	}
	fmt.Fprintf(a.out, "%d would be %s%s. Nothing was changed: the same command with --yes does it.\n", r.Matched, v.done, takesTime)
	return nil
}
