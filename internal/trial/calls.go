package trial

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// Call is one tools/call that came to an agent.
type Call struct {
	Agent    int
	Delivery uuid.UUID
	Attempt  int // as the caller said
	Number   int // of this delivery's calls, from 1
	Begun    time.Time
	Ended    time.Time // zero: still under way
	Answered bool      // the whole answer went out, and it was a good one
}

// Calls are in the order in which they began.
type Calls []Call

// Repeat is a call for a delivery that had been called before.
type Repeat struct{ Earlier, Later Call }

// Repeats pairs every further call of a delivery with the one before it.
func (cs Calls) Repeats() []Repeat {
	var out []Repeat
	last := make(map[uuid.UUID]Call, len(cs))
	for _, c := range cs {
		if before, ok := last[c.Delivery]; ok {
			out = append(out, Repeat{before, c})
		}
		last[c.Delivery] = c
	}
	return out
}

// ByDelivery groups them.
func (cs Calls) ByDelivery() map[uuid.UUID]Calls {
	out := make(map[uuid.UUID]Calls, len(cs))
	for _, c := range cs {
		out[c.Delivery] = append(out[c.Delivery], c)
	}
	return out
}

// KnownAgain counts calls for deliveries that had been answered before: while no worker is killed, the answer was known.
func (cs Calls) KnownAgain() int {
	n := 0
	answered := map[uuid.UUID]time.Time{}
	for _, c := range cs {
		if at, ok := answered[c.Delivery]; ok && c.Begun.After(at) {
			n++
		}
		if c.Answered {
			if at, ok := answered[c.Delivery]; !ok || c.Ended.Before(at) {
				answered[c.Delivery] = c.Ended
			}
		}
	}
	return n
}

// Overlaps counts calls that began while an earlier one for the same delivery was under way.
func (cs Calls) Overlaps() int {
	n := 0
	for _, r := range cs.Repeats() {
		if r.Earlier.Ended.IsZero() || r.Later.Begun.Before(r.Earlier.Ended) {
			n++
		}
	}
	return n
}

// Moment is a span of time in which something was done to the system: a kill, say. Its bounds are close together.
type Moment struct{ From, To time.Time }

// Touches tells whether the call was under way in the moment, or had ended less than slack before it: a worker that has an
// answer still has to record it.
func (m Moment) Touches(c Call, slack time.Duration) bool {
	return c.Begun.Before(m.To) && (c.Ended.IsZero() || c.Ended.Add(slack).After(m.From))
}

// At are the calls under way in the moment.
func (cs Calls) At(m Moment) Calls {
	return slices.DeleteFunc(slices.Clone(cs), func(c Call) bool { return !m.Touches(c, 0) })
}

// Quantile is the smallest of the values that at least the share q of them do not exceed; 0 without values.
func Quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(at, 0), len(sorted)-1)]
}
