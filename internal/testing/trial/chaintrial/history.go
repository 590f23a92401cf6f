package chaintrial

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/trial"
)

// Life is the time for which an event was in a block of the chain.
type Life struct {
	Wanted
	From, Until time.Time // Until is zero while the event is on the chain
}

// Height is the number of the chain's newest block from a point in time on.
type Height struct {
	At   time.Time
	Head uint64
}

// History records when which events were on the chain. Its times are never shorter than the real ones.
type History struct {
	Lives   []Life
	Heights []Height // in order
}

// JudgeCalls returns the calls that the chain did not justify: calls for an event that was not on the chain with
// enough confirmations, and calls for a retraction of feedback that was on the chain. A worker checks the chain
// before it calls, so a state that was true at any time within before of the call justifies it.
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
		key, _, _ := strings.Cut(r.Key, "~") // another event took over its key
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

// FindBelieved returns the feedback that an agent accepted although it is not on the chain, and whose retraction the
// agent did not receive. An event is on the chain if its transaction contains it under its key.
func FindBelieved(present []Wanted, calls trial.Calls, rows []Row) (faults []string) {
	type event struct{ key, transaction string }
	there := map[event]bool{}
	for _, w := range present {
		there[event{w.Key, w.Position.Transaction.Hex()}] = true
	}
	byID, taken, retracted := map[string]Row{}, map[string]bool{}, map[string]bool{}
	for _, r := range rows {
		byID[r.ID] = r
	}
	for _, c := range calls {
		r := byID[c.Delivery.String()]
		switch {
		case !c.Answered:
		case r.Job.IsRetraction():
			retracted[r.Job.Retracts] = true
		case r.Job.Kind == job.KindNewFeedback:
			taken[r.ID] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(taken)) {
		r := byID[id]
		key, _, _ := strings.Cut(r.Key, "~")
		if !there[event{key, r.Job.TransactionHash.Hex()}] && !retracted[id] {
			faults = append(faults, fmt.Sprintf("%s: an agent took %s, which is not on the chain, and no retraction of it", r.Key, id))
		}
	}
	return faults
}

type span struct{ from, until time.Time }

// isThereAllAlong reports whether the retracted feedback was in its block for the whole time.
func isThereAllAlong(lives []Life, r Row, moment span) bool {
	for _, l := range lives {
		if l.Position.BlockHash == r.Job.BlockHash && !l.From.After(moment.from) &&
			(l.Until.IsZero() || l.Until.After(moment.until)) {
			return true
		}
	}
	return false
}

// isConfirmed reports whether an event with the row's content had enough confirmations at some time in moment.
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

// findHighestHead returns the highest head in a span of time.
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
