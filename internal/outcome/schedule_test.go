package outcome

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// standard is the default of HERALD_RETRY_SCHEDULE.
var standard = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute,
	30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour}

func newSchedule(t *testing.T, waits ...time.Duration) Schedule {
	t.Helper()
	s, err := NewSchedule(waits)
	heraldtest.Must(t, err)
	return s
}

func TestScheduleFollowsTheList(t *testing.T) {
	t.Parallel()
	s := newSchedule(t, standard...)
	heraldtest.Equal(t, "attempts", s.Attempts(), 11)
	var total time.Duration
	for i, want := range standard {
		got, more := s.Next(i+1, Verdict{Reason: Timeout}, 0.5)
		if !more || got != want {
			t.Errorf("after attempt %d: %s, %t; want %s", i+1, got, more, want)
		}
		total += got
	}
	if total < 17*time.Hour || total > 19*time.Hour {
		t.Errorf("the schedule lasts %s, want about 18 h", total)
	}
	for _, attempt := range []int{11, 1000} {
		_, more := s.Next(attempt, Verdict{Reason: Timeout}, 0.5)
		heraldtest.Equal(t, fmt.Sprint("another attempt is granted after ", attempt), more, false)
	}
	if d, more := s.Next(0, Verdict{Reason: Timeout}, 0.5); !more || d != time.Second {
		t.Errorf("attempt 0: %s, %t", d, more)
	}
}

func TestJitterStaysWithinTwentyPercent(t *testing.T) {
	t.Parallel()
	s := newSchedule(t, 10*time.Second)
	for _, c := range []struct {
		rnd  float64
		want time.Duration
	}{{0, 8 * time.Second}, {0.25, 9 * time.Second}, {0.5, 10 * time.Second}, {0.999999, 12 * time.Second}} {
		got, _ := s.Next(1, Verdict{Reason: ConnectFailed}, c.rnd)
		if diff := (got - c.want).Abs(); diff > time.Millisecond {
			t.Errorf("rnd %v: %s, want %s", c.rnd, got, c.want)
		}
	}
}

func TestRetryAfterAndOverload(t *testing.T) {
	t.Parallel()
	s := newSchedule(t, time.Second, 2*time.Hour)
	for name, c := range map[string]struct {
		attempt int
		v       Verdict
		want    time.Duration
	}{
		"shorter than the schedule":     {1, Verdict{Reason: ServerError, RetryAfter: 500 * time.Millisecond}, time.Second},
		"longer than the schedule":      {1, Verdict{Reason: ServerError, RetryAfter: 15 * time.Second}, 15 * time.Second},
		"no longer than an hour":        {1, Verdict{Reason: ServerError, RetryAfter: 24 * time.Hour}, time.Hour},
		"the schedule may be longer":    {2, Verdict{Reason: ServerError, RetryAfter: 24 * time.Hour}, 2 * time.Hour},
		"a minute after 429":            {1, Verdict{Reason: RateLimited}, time.Minute},
		"429 with a short Retry-After":  {1, Verdict{Reason: RateLimited, RetryAfter: 5 * time.Second}, time.Minute},
		"429 with a longer Retry-After": {1, Verdict{Reason: RateLimited, RetryAfter: 5 * time.Minute}, 5 * time.Minute},
		"negative":                      {1, Verdict{Reason: ServerError, RetryAfter: -time.Hour}, time.Second},
		"free, beyond the budget":       {99, Verdict{Free: true, Pause: time.Second}, time.Second},
	} {
		if got, more := s.Next(c.attempt, c.v, 0.5); !more || got != c.want {
			t.Errorf("%s: %s, %t; want %s", name, got, more, c.want)
		}
	}
}

func TestNewScheduleRefuses(t *testing.T) {
	t.Parallel()
	for _, waits := range [][]time.Duration{nil, {time.Second, -time.Second}} {
		_, err := NewSchedule(waits)
		heraldtest.Fails(t, fmt.Sprint(waits), err)
	}
}

func TestBackOff(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]time.Duration{-time.Hour: time.Second, 0: time.Second, 4 * time.Second: time.Second,
		time.Minute: 15 * time.Second, 20 * time.Minute: 5 * time.Minute, 720 * time.Hour: 5 * time.Minute} {
		heraldtest.Equal(t, age.String(), BackOff(age), want)
	}
}
