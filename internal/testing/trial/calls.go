package trial

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// Call is one tools/call that an agent received.
type Call struct {
	Agent    int
	Delivery uuid.UUID
	Attempt  int // as the caller stated
	Number   int // number among this delivery's calls, from 1
	Begun    time.Time
	Ended    time.Time // zero while the call is running
	Answered bool      // the whole answer was sent, and it was a success
}

// Calls is a list of calls in the order in which they began.
type Calls []Call

// Repeat is a call for a delivery that was called before, together with the previous call.
type Repeat struct{ Earlier, Later Call }

// Repeats returns every further call of a delivery together with the previous one.
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

// ByDelivery groups the calls by delivery.
func (cs Calls) ByDelivery() map[uuid.UUID]Calls {
	out := make(map[uuid.UUID]Calls, len(cs))
	for _, c := range cs {
		out[c.Delivery] = append(out[c.Delivery], c)
	}
	return out
}

// KnownAgain counts calls for deliveries that were answered before. Unless a worker was killed, the answer was known.
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

// Overlaps counts calls that began while the previous call for the same delivery was running.
func (cs Calls) Overlaps() int {
	n := 0
	for _, r := range cs.Repeats() {
		if r.Earlier.Ended.IsZero() || r.Later.Begun.Before(r.Earlier.Ended) {
			n++
		}
	}
	return n
}

// Moment is a short span of time in which the trial disturbed the system, for example with a kill.
type Moment struct{ From, To time.Time }

// Touches reports whether the call was running in the moment, or ended less than slack before it: a worker that
// received an answer still has to record it.
func (m Moment) Touches(c Call, slack time.Duration) bool {
	return c.Begun.Before(m.To) && (c.Ended.IsZero() || c.Ended.Add(slack).After(m.From))
}

// At returns the calls that were running in the moment.
func (cs Calls) At(m Moment) Calls {
	return slices.DeleteFunc(slices.Clone(cs), func(c Call) bool { return !m.Touches(c, 0) })
}

// Quantile returns the smallest value that is not exceeded by at least the share q of the values. It returns 0 if
// there are no values.
func Quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(at, 0), len(sorted)-1)]
}
