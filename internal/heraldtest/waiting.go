package heraldtest

import (
	"context"
	"testing"
	"time"
)

// waitLimit is how long a test waits for an expected event. On a loaded machine this can take long.
const waitLimit = 30 * time.Second

// Await calls ok every few milliseconds until it returns true. After 30 seconds it fails the test with "not within
// 30s:" and what.
func Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	AwaitState(t, ok, func() string { return what })
}

// AwaitState is Await with a function that describes the current state for the failure.
func AwaitState(t testing.TB, ok func() bool, state func() string) {
	t.Helper()
	deadline := time.NewTimer(waitLimit)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", waitLimit, state())
		}
	}
}

// Receive returns the next value from a channel. It fails the test if no value arrives within 30 seconds.
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
