package chaintrial

import (
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job"
)

// maxTimeout is what jobs are made with; no event says a timeout.
const maxTimeout = time.Minute

// Row is a delivery as Postgres has it.
type Row struct {
	ID       string
	Key      string
	Status   string
	Reason   string
	Error    string // as an operator reads it
	Called   bool   // an attempt wrote a call, or may have
	OrderSeq uint64
	Job      job.Job
}

func (r Row) position() Position {
	p := Position{Block: r.Job.BlockNumber, BlockHash: r.Job.BlockHash, Transaction: r.Job.TransactionHash}
	if r.Job.LogIndex != nil {
		p.LogIndex = *r.Job.LogIndex
	}
	return p
}

// isNotFound tells whether a worker looked for the event and found it not on the chain.
func (r Row) isNotFound() bool { return r.Status == "rejected" && r.Reason == "event_not_found" }

// takenBack tells whether the row ended because its event left the chain.
func (r Row) takenBack() bool { return r.Status == "cancelled" && r.Reason == "reorg" }

// isRefused tells whether the row stands for a log that makes no job. Postgres keeps no job of it, so it may have no
// position.
func (r Row) isRefused() bool { return r.Status == "rejected" && r.Reason == "invalid_job" }

// Findings is what Compare found: how many rows there are of each sort, and each difference as a line. All
// differences are faults.
type Findings struct {
	Accepted  int // rows of events that are on the chain
	Rejected  int // rows of logs on the chain that make no job
	Cancelled int // rows of events that left it
	Retracted int // retractions of what was called

	Missing   []string // on the chain, and no row, or one that was taken back
	TooMany   []string // a row that nothing on the chain, or that ever was on it, asks for
	Misplaced []string // the row is of another block, transaction or log
	Wrong     []string // the row has another content, status or place in its line
}

// Faults are all differences.
func (f Findings) Faults() []string {
	var all []string
	for _, part := range [][]string{f.Missing, f.TooMany, f.Misplaced, f.Wrong} {
		all = append(all, part...)
	}
	return all
}

// Compare holds the rows against what the final chain asks for and against every key that was ever on a branch which
// is gone.
func Compare(wanted []Wanted, gone map[string]bool, rows []Row) Findings {
	f := comparison{byKey: map[string]Row{}, rejected: map[Position]Row{}, gone: gone, used: map[string]bool{},
		called: map[string]bool{}, retracted: map[string]bool{}}
	for _, r := range rows {
		f.byKey[r.Key] = r
		key, _, _ := strings.Cut(r.Key, "~")
		f.called[key] = f.called[key] || r.Called
		if r.Job.IsRetraction() {
			f.retracted[r.Job.Retracts] = true
		}
		if r.isRefused() {
			f.rejected[r.position()] = r
		}
	}
	var refused []Wanted
	for _, w := range wanted {
		if w.Refused != "" {
			refused = append(refused, w)
			continue
		}
		f.lookFor(w)
	}
	var nowhere []Row // rejected rows without a position
	for _, r := range rows {
		if r.isRefused() && r.position() == (Position{}) {
			nowhere = append(nowhere, r)
		}
	}
	if len(nowhere) > 0 {
		f.countRefused(refused, nowhere)
	} else {
		for _, w := range refused {
			f.lookForRefused(w)
		}
	}
	for _, r := range rows {
		if !f.used[r.ID] {
			f.judgeRest(r)
		}
	}
	return f.Findings
}

type comparison struct {
	Findings
	byKey    map[string]Row
	rejected map[Position]Row
	gone     map[string]bool
	used     map[string]bool // rows that were found, by id

	called    map[string]bool // by key
	retracted map[string]bool // by id
}

// feedbackOf gives the key of the feedback that a retraction takes back.
func feedbackOf(key string) (feedback string, isRetraction bool) {
	before, _, isRetraction := strings.Cut(key, "#Retraction@")
	return before + "#" + string(job.KindNewFeedback), isRetraction
}

// lookFor finds the row of an event on the chain.
func (f *comparison) lookFor(w Wanted) {
	r, there := f.byKey[w.Key]
	f.used[r.ID] = f.used[r.ID] || there
	what := fmt.Sprintf("%s of block %d", w.Key, w.Position.Block)
	switch {
	case !there:
		f.Missing = append(f.Missing, what+": no row")
		return
	case r.takenBack():
		f.Missing = append(f.Missing, what+": it was taken back as "+r.ID)
		return
	case r.isNotFound() && w.Untold:
		// as it should be
	case r.Status == "rejected" || r.Status == "cancelled":
		f.Wrong = append(f.Wrong, fmt.Sprintf("%s: %s is %s %s", what, r.ID, r.Status, r.Reason))
		return
	}
	f.Accepted++
	if got := r.position(); got != w.Position {
		f.Misplaced = append(f.Misplaced, fmt.Sprintf("%s: %s is at %+v, the event at %+v", what, r.ID, got,
			w.Position))
	}
	if field, differs := w.Job.Conflict(r.Job); differs || r.Job.Kind != w.Job.Kind {
		f.Wrong = append(f.Wrong, fmt.Sprintf("%s: %s differs from the event in %s", what, r.ID, field))
	}
	if r.OrderSeq != w.Job.OrderSeq() {
		f.Wrong = append(f.Wrong, fmt.Sprintf("%s: %s has place %d in its line, the event %d", what, r.ID, r.OrderSeq,
			w.Job.OrderSeq()))
	}
}

// lookForRefused finds the rejected row of a log that makes no job.
func (f *comparison) lookForRefused(w Wanted) {
	r, there := f.rejected[w.Position]
	if !there {
		f.Missing = append(f.Missing, fmt.Sprintf("the log %d of block %d (%s): no rejected row at %+v",
			w.Position.LogIndex,
			w.Position.Block, w.Refused, w.Position))
		return
	}
	f.used[r.ID] = true
	f.Rejected++
}

// countRefused counts where rejected rows have no position: those of gone branches may have stayed.
func (f *comparison) countRefused(refused []Wanted, rows []Row) {
	for _, r := range rows {
		f.used[r.ID] = true
	}
	goneRefused := 0
	for key := range f.gone {
		if strings.HasPrefix(key, goneRefusedMark) {
			goneRefused++
		}
	}
	f.Rejected = min(len(rows), len(refused))
	for range len(refused) - len(rows) {
		f.Missing = append(f.Missing, fmt.Sprintf("%d logs make no job, %d rejected rows", len(refused), len(rows)))
	}
	for range len(rows) - len(refused) - goneRefused {
		f.TooMany = append(f.TooMany, fmt.Sprintf("%d logs make no job, and %d of gone branches, %d rejected rows",
			len(refused), goneRefused, len(rows)))
	}
}

// judgeRest judges a row that nothing on the final chain asks for.
func (f *comparison) judgeRest(r Row) {
	key, _, _ := strings.Cut(r.Key, "~") // it gave its key to the event that came in its place
	feedback, isRetraction := feedbackOf(key)
	switch {
	case isRetraction && f.gone[feedback] && f.called[feedback]:
		f.Retracted++
		return
	case isRetraction && f.gone[feedback] && r.Status == "skipped" && r.Reason == "never_delivered":
		return // its feedback was in an attempt when its event left, and the attempt ended without a call
	case r.isRefused() && f.gone[goneAt(r.position())]:
		return // it was final before its log left the chain
	case f.gone[key] && r.Called:
		f.Cancelled++
		if r.Job.Kind == job.KindNewFeedback && !f.retracted[r.ID] {
			f.Missing = append(f.Missing, fmt.Sprintf("%s of block %d: %s was called, and nothing retracts it", r.Key,
				r.Job.BlockNumber, r.ID))
		}
		return
	case f.gone[key] && (r.takenBack() || r.isNotFound() || r.Status == "skipped"): // skipped: it ended before its event left
		f.Cancelled++
		return
	}
	f.TooMany = append(f.TooMany, fmt.Sprintf("%s of block %d: %s is %s %s, and no event asks for it", r.Key,
		r.Job.BlockNumber, r.ID,
		r.Status, r.Reason))
}

// Bury adds what logs that leave the chain asked for to the keys that are gone.
func Bury(gone map[string]bool, wanted []Wanted) {
	for _, w := range wanted {
		if w.Refused != "" {
			gone[goneAt(w.Position)] = true
		} else {
			gone[w.Key] = true
		}
	}
}

const goneRefusedMark = "refused@"

// goneAt names a log that has no key of its own.
func goneAt(p Position) string {
	return fmt.Sprintf("%s%s/%d", goneRefusedMark, p.BlockHash, p.LogIndex)
}
