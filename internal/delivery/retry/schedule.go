package retry

import (
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/reason"
)

const (
	jitter        = 0.2       // every wait is spread by ±20 %, so that a crowd does not come back at once
	maxRetryAfter = time.Hour // an agent may not push a delivery further away than this
	// minRateLimitedWait is the least wait after rate_limited: a 429 of the agent or of an authorization server, or an
	// input_required that asks for patience only.
	minRateLimitedWait = 60 * time.Second
)

// Schedule is the attempts' budget: one more attempt than waits.
type Schedule struct{ waits []time.Duration }

// NewSchedule takes the wait after each failed attempt.
func NewSchedule(waits []time.Duration) (Schedule, error) {
	for i, w := range waits {
		if w < 0 {
			return Schedule{}, fmt.Errorf("retry: wait %d is negative", i+1)
		}
	}
	if len(waits) == 0 {
		return Schedule{}, errors.New("retry: a schedule needs at least one wait")
	}
	return Schedule{waits: waits}, nil
}

// Attempts is how many attempts a delivery has.
func (s Schedule) Attempts() int { return len(s.waits) + 1 }

// Next is how long to wait after attempt number attempt (1-based) failed as v says; false: no attempts are left. rnd is
// a random number in [0, 1). A free wait has its own length and always has a next.
//
// wait = max(scheduled ±20 %, min(Retry-After, 1 h)), and at least 60 s after RateLimited.
func (s Schedule) Next(attempt int, v Verdict, rnd float64) (time.Duration, bool) {
	if v.Free && v.exact {
		return v.Pause, true
	}
	if v.Free {
		return spreadWait(v.Pause, rnd), true
	}
	if attempt > len(s.waits) {
		return 0, false
	}
	d := spreadWait(s.waits[max(attempt, 1)-1], rnd)
	d = max(d, min(v.RetryAfter, maxRetryAfter))
	if v.Reason == reason.RateLimited {
		d = max(d, minRateLimitedWait)
	}
	return d, true
}

// maxFreeWait is the longest free wait that nobody gave a length: a chain may be away for days, with many deliveries.
const maxFreeWait = 5 * time.Minute

// BackOff is how long a delivery of this age waits, at no cost, for something that is away: a quarter of its age, so
// that a short outage costs a fresh delivery seconds. It has no end but the delivery's expiry.
func BackOff(age time.Duration) time.Duration {
	return min(max(age/4, time.Second), maxFreeWait)
}

func spreadWait(d time.Duration, rnd float64) time.Duration {
	return time.Duration(float64(d) * (1 - jitter + 2*jitter*rnd))
}
