package netguard

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RetryAfter returns the wait that the Retry-After header states (RFC 9110 §10.2.3), in seconds or as a date. The
// result is at most longest. It is 0 if the header is missing or invalid, or in the past.
func RetryAfter(h http.Header, now time.Time, longest time.Duration) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(longest/time.Second) {
			return longest
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(0, min(at.Sub(now), longest))
}
