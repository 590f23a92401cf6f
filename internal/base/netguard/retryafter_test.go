package netguard

import (
	"net/http"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const longest = 24 * time.Hour
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "15": 15 * time.Second, " 7 ": 7 * time.Second, "-3": 0, "1.5": 0, "soon": 0,
		"99999999999999999999": longest, "9000000": longest,
		"Sat, 21 Nov 2026 12:00:30 GMT": 30 * time.Second, "Sat, 21 Nov 2026 11:00:00 GMT": 0,
		"Sat, 21 Nov 2099 12:00:30 GMT": longest,
	} {
		if got := RetryAfter(http.Header{"Retry-After": {value}}, now, longest); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

// FuzzRetryAfter checks that the wait is in its bounds, and that of a date is the time until then.
func FuzzRetryAfter(f *testing.F) {
	f.Add("15", int64(1_800_000_000))
	f.Add("Sat, 21 Nov 2026 12:00:30 GMT", int64(-1))
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, value string, at int64) {
		const longest = 24 * time.Hour
		if got := RetryAfter(http.Header{"Retry-After": {value}}, now, longest); got < 0 || got > longest {
			t.Errorf("%q: %s", value, got)
		}
		date := time.Unix(at%(1<<35), 0).UTC()
		got := RetryAfter(http.Header{"Retry-After": {date.Format(http.TimeFormat)}}, now, longest)
		if want := max(0, min(date.Sub(now), longest)); date.Year() > 0 && date.Year() < 10_000 && got != want {
			t.Errorf("%s: %s, want %s", date, got, want)
		}
	})
}
