package outcome

import (
	"errors"
	"fmt"
	"time"
)

const (
	jitter        = 0.2       // each wait gets ±20 % of jitter, so that deliveries do not return at the same time
	maxRetryAfter = time.Hour // a longer Retry-After of an agent or server is cut to this
	// minRateLimitedWait is the shortest wait after rate_limited: after a 429 of the agent or its authorization server,
	// or after an input_required that only asks Herald to wait.
	minRateLimitedWait = 60 * time.Second
)

// Schedule contains the waits between the attempts of a delivery. It allows one attempt more than it has waits.
type Schedule struct{ waits []time.Duration }

// NewSchedule returns a schedule with these waits. It needs at least one wait; none may be negative.
func NewSchedule(waits []time.Duration) (Schedule, error) {
	for i, w := range waits {
		if w < 0 {
			return Schedule{}, fmt.Errorf("outcome: wait %d is negative", i+1)
		}
	}
	if len(waits) == 0 {
		return Schedule{}, errors.New("outcome: a schedule needs at least one wait")
	}
	return Schedule{waits: waits}, nil
}

// Attempts returns how many attempts a delivery has, including the first one.
func (s Schedule) Attempts() int { return len(s.waits) + 1 }

// Next returns how long to wait after an attempt that failed with verdict v, or false if no attempts are left. attempt
// is the number of the attempt since the delivery's acceptance or replay, from 1. rnd is a random number in [0, 1). A
// free wait lasts v.Pause ±20 % and is always allowed. For other waits, scheduled is the schedule's wait with this
// number:
//
// wait = max(scheduled ±20 %, min(v.RetryAfter, 1 h)), and at least minRateLimitedWait for the reason rate_limited.
func (s Schedule) Next(attempt int, v Verdict, rnd float64) (time.Duration, bool) {
	if v.Free {
		return spreadWait(v.Pause, rnd), true
	}
	if attempt > len(s.waits) {
		return 0, false
	}
	d := spreadWait(s.waits[max(attempt, 1)-1], rnd)
	d = max(d, min(v.RetryAfter, maxRetryAfter))
	if v.Reason == RateLimited {
		d = max(d, minRateLimitedWait)
	}
	return d, true
}

// maxFreeWait is the longest wait that BackOff returns. A chain may be down for days while many deliveries wait for it.
const maxFreeWait = 5 * time.Minute

// BackOff returns the length of a free wait for a delivery of this age: a quarter of the age, but at least a second and
// at most maxFreeWait. So a new delivery waits only seconds during a short outage. Free waits repeat until the delivery
// expires.
func BackOff(age time.Duration) time.Duration {
	return min(max(age/4, time.Second), maxFreeWait)
}

// spreadWait returns d with ±20 % of jitter. rnd is a random number in [0, 1).
func spreadWait(d time.Duration, rnd float64) time.Duration {
	return time.Duration(float64(d) * (1 - jitter + 2*jitter*rnd))
}
