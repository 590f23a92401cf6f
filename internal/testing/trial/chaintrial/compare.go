package chaintrial

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/google/uuid"
)

// maxTimeout is the limit with which jobs are made. Events contain no timeout.
const maxTimeout = time.Minute

// Row is a delivery in Postgres.
type Row struct {
	ID       string
	Key      string
	Status   string
	Reason   string
	Error    string // as an operator reads it
	Called   bool   // an attempt started a call, or may have
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

// isNotFound reports whether a worker searched the chain for the event and did not find it.
func (r Row) isNotFound() bool { return r.Status == "rejected" && r.Reason == "event_not_found" }

// takenBack reports whether the row ended because its event left the chain.
func (r Row) takenBack() bool { return r.Status == "cancelled" && r.Reason == "reorg" }

// isRefused reports whether the row is that of a log that becomes no job. Postgres stores no job for it, so it has no
// position.
func (r Row) isRefused() bool { return r.Status == "rejected" && r.Reason == "invalid_job" }

// Findings is the result of Compare: the number of rows of each sort, and a line for each difference. All differences
// are faults.
type Findings struct {
	Accepted  int // rows of events that are on the chain
	Rejected  int // rows of logs on the chain that become no job
	Cancelled int // rows of events that left the chain
	Retracted int // retractions of feedback that was delivered

	Missing   []string // events on the chain without a row, or whose row was taken back
	TooMany   []string // rows without an event on the chain or on a removed branch
	Misplaced []string // rows with another block, transaction or log
	Wrong     []string // rows with other content, another status or another OrderSeq
}

// Faults returns all differences.
func (f Findings) Faults() []string { return slices.Concat(f.Missing, f.TooMany, f.Misplaced, f.Wrong) }

// Compare compares the rows with the events of the final chain and with gone, which Bury filled with the events of the
// removed branches.
func Compare(wanted []Wanted, gone map[string]bool, rows []Row) Findings {
	f := comparison{byKey: map[string]Row{}, gone: gone, used: map[string]bool{}, called: map[string]bool{},
		retracted: map[string]bool{}}
	for _, r := range rows {
		f.byKey[r.Key] = r
		key, _, _ := strings.Cut(r.Key, "~")
		f.called[key] = f.called[key] || r.Called
		if r.Job.IsRetraction() && r.Reason != "mined_again" { // after which the feedback may leave the chain once more
			f.retracted[r.Job.Retracts] = true
		}
	}
	refused := 0 // logs that become no job, and whose key has no row that it should have
	for _, w := range wanted {
		switch {
		case w.Refused == "":
			f.lookFor(w)
		case !f.findRefused(w):
			refused++
		}
	}
	f.countRefused(refused, rows)
	for _, r := range rows {
		if !f.used[r.ID] {
			f.judgeRest(r)
		}
	}
	return f.Findings
}

type comparison struct {
	Findings
	byKey map[string]Row
	gone  map[string]bool
	used  map[string]bool // ids of rows that were matched

	called    map[string]bool // by key
	retracted map[string]bool // by id
}

// feedbackOf returns the key of the feedback that a retraction retracts.
func feedbackOf(key string) (feedback string, isRetraction bool) {
	before, _, isRetraction := strings.Cut(key, "#Retraction@")
	return before + "#" + string(job.KindNewFeedback), isRetraction
}

// lookFor finds the row of an event on the chain and compares them.
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
	case r.isNotFound() && w.Incomplete:
		// the row is as expected
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

// findRefused reports whether the key of an event that becomes no job has the row that it should have: a rejected one,
// or that of an event with this key on a removed branch, which a refused job does not change.
func (f *comparison) findRefused(w Wanted) bool {
	r, there := f.byKey[w.Key]
	switch {
	case there && r.isRefused():
		f.used[r.ID] = true
	case !there || !f.gone[w.Key]:
		return false
	}
	f.Rejected++
	return true
}

// countRefused compares the number of logs that become no job with the number of rejected rows that no key matched.
// Rows from removed branches may remain.
func (f *comparison) countRefused(refused int, rows []Row) {
	rejected, gone := 0, 0
	for _, r := range rows {
		if r.isRefused() && !f.used[r.ID] {
			f.used[r.ID] = true
			rejected++
		}
	}
	for key := range f.gone {
		if strings.HasPrefix(key, goneRefusedMark) {
			gone++
		}
	}
	f.Rejected += min(rejected, refused)
	for range refused - rejected {
		f.Missing = append(f.Missing, fmt.Sprintf("%d logs make no job, %d rejected rows", refused, rejected))
	}
	for range rejected - refused - gone {
		f.TooMany = append(f.TooMany, fmt.Sprintf("%d logs make no job, and %d of gone branches, %d rejected rows",
			refused, gone, rejected))
	}
}

// judgeRest checks a row that matches no event on the final chain.
func (f *comparison) judgeRest(r Row) {
	key, _, _ := strings.Cut(r.Key, "~") // another event took over its key
	feedback, isRetraction := feedbackOf(key)
	first, _, _ := strings.Cut(key, ".") // of the feedback's retractions in this block
	switch {
	case isRetraction && f.gone[first] && f.called[feedback]:
		f.Retracted++
		return
	case isRetraction && f.gone[first] && r.Status == "skipped" && (r.Reason == "never_delivered" || r.Reason == "mined_again"):
		// Its feedback was in an attempt when its event left, and the attempt ended without a call. The check reads the
		// chain first, where the transaction may be again.
		return
	case f.gone[key] && r.Called:
		f.Cancelled++
		if r.Job.Kind == job.KindNewFeedback && !f.retracted[r.ID] {
			f.Missing = append(f.Missing, fmt.Sprintf("%s of block %d: %s was called, and nothing retracts it", r.Key,
				r.Job.BlockNumber, r.ID))
		}
		return
	// Skipped: it ended before its event left.
	case f.gone[key] && (r.takenBack() || r.isNotFound() || r.Status == "skipped"):
		f.Cancelled++
		return
	}
	f.TooMany = append(f.TooMany, fmt.Sprintf("%s of block %d: %s is %s %s, and no event asks for it (its feedback was "+
		"on a removed branch: %v, in this block: %v, and called: %v)", r.Key, r.Job.BlockNumber, r.ID, r.Status, r.Reason,
		f.gone[feedback], f.gone[first], f.called[feedback]))
}

// Bury adds the keys of logs that leave the chain, and of the retractions that this justifies, to gone.
func Bury(gone map[string]bool, wanted []Wanted) {
	for _, w := range wanted {
		if w.Refused != "" {
			gone[fmt.Sprintf("%s%s/%d", goneRefusedMark, w.Position.BlockHash, w.Position.LogIndex)] = true
			continue
		}
		gone[w.Key] = true
		if w.Job.Kind == job.KindNewFeedback {
			gone[w.Job.Retraction(uuid.Nil).Key()] = true
		}
	}
}

// goneRefusedMark begins the identifier of a log that becomes no job.
const goneRefusedMark = "refused@"
