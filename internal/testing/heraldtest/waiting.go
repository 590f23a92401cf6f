package heraldtest

import (
	"context"
	"testing"
	"time"
)

// waitLimit is how long a test waits for an expected event. Only a failing test waits so long. 30 s were too short on a
// machine at a tenth of its usual speed.
const waitLimit = 2 * time.Minute

// maxPause bounds the pause between two calls of ok in AwaitState. Most calls query Postgres: at 5 ms they cost a
// seventh of the processor time of internal/delivery's tests.
const maxPause = 64 * time.Millisecond

// Await calls ok until it returns true, with pauses of 1 to 64 ms between the calls. After 2 minutes it fails the test
// with "not within 2m0s:" and what.
func Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	AwaitState(t, ok, func() string { return what })
}

// AwaitState is Await with a function that describes the current state for the failure.
func AwaitState(t testing.TB, ok func() bool, state func() string) {
	t.Helper()
	deadline := time.NewTimer(waitLimit)
	defer deadline.Stop()
	for pause := time.Millisecond; !ok(); pause = min(2*pause, maxPause) {
		select {
		case <-time.After(pause):
		case <-deadline.C:
			t.Fatalf("not within %v: %s", waitLimit, state())
		}
	}
}

// Receive returns the next value from a channel. It fails the test if no value arrives within 2 minutes.
func Receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(waitLimit):
		t.Fatalf("not within %v: %s", waitLimit, what)
		panic("unreachable")
	}
}

// Within returns a context that ends after limit. Unlike the test's own context, it does not end before the clean-up.
func Within(t testing.TB, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}
