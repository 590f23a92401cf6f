package chaintrial

import (
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/trial"
)

// Life is how long an event was in a block of the chain.
type Life struct {
	Wanted
	From, Until time.Time // Until is zero if it still is
}

// Height is the chain's newest block, from a moment on.
type Height struct {
	At   time.Time
	Head uint64
}

// History is what was on the chain when. In doubt its times say that an event was there for longer.
type History struct {
	Lives   []Life
	Heights []Height // in order
}

// JudgeCalls finds the calls for which the chain gave no reason: of an event that was not on it with so many
// confirmations, and of a retraction of what was. A worker asks the chain before it calls, so that what was true for a
// moment within that time before the call is reason enough.
func (h History) JudgeCalls(
	calls trial.Calls, rows []Row, confirmations uint64, before time.Duration,
) (faults []string) {
	byID := make(map[string]Row, len(rows))
	for _, r := range rows {
		byID[r.ID] = r
	}
	lives := map[string][]Life{}
	for _, l := range h.Lives {
		lives[l.Key] = append(lives[l.Key], l)
	}
	for _, c := range calls {
		r, known := byID[c.Delivery.String()]
		key, _, _ := strings.Cut(r.Key, "~") // it gave its key to the event that came in its place
		feedback, isRetraction := feedbackOf(key)
		moment := span{c.Begun.Add(-before), c.Begun}
		at := c.Begun.Format(time.StampMilli)
		switch {
		case !known:
			faults = append(faults, fmt.Sprintf("%s was called, and there is no such delivery", c.Delivery))
		case isRetraction && isThereAllAlong(lives[feedback], r, moment):
			faults = append(faults, fmt.Sprintf("%s: %s was called at %s, and its feedback was on the chain", r.Key, r.ID,
				at))
		case !isRetraction && !h.isConfirmed(lives[key], r, confirmations, moment):
			faults = append(faults, fmt.Sprintf("%s: %s was called at %s, and was not on the chain with %d confirmations",
				r.Key, r.ID, at, confirmations))
		}
	}
	return faults
}

type span struct{ from, until time.Time }

// isThereAllAlong tells whether the feedback that a retraction takes back was in its block for the whole time.
func isThereAllAlong(lives []Life, r Row, moment span) bool {
	for _, l := range lives {
		if l.Position.BlockHash == r.Job.BlockHash && !l.From.After(moment.from) &&
			(l.Until.IsZero() || l.Until.After(moment.until)) {
			return true
		}
	}
	return false
}

// isConfirmed tells whether an event with the row's content was deep enough once in that time.
func (h History) isConfirmed(lives []Life, r Row, confirmations uint64, moment span) bool {
	for _, l := range lives {
		if _, differs := l.Job.Conflict(r.Job); differs {
			continue
		}
		both := moment
		if l.From.After(both.from) {
			both.from = l.From
		}
		if !l.Until.IsZero() && l.Until.Before(both.until) {
			both.until = l.Until
		}
		if !both.from.After(both.until) && h.findHighestHead(both) >= l.Position.Block+confirmations {
			return true
		}
	}
	return false
}

// findHighestHead returns the highest head in a time.
func (h History) findHighestHead(in span) (head uint64) {
	for i, height := range h.Heights {
		if height.At.After(in.until) {
			break
		}
		if i+1 == len(h.Heights) || h.Heights[i+1].At.After(in.from) {
			head = max(head, height.Head)
		}
	}
	return head
}
