package heraldtest

import (
	"context"
	"testing"
	"time"
)

// waitLimit is how long a test waits for something that it knows to come; a machine under load may need much of it.
const waitLimit = 30 * time.Second

// Await asks until ok, every few milliseconds, and fails the test when it is not so within 30 seconds: "not within 30s: "
// and what was awaited.
func Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	AwaitState(t, ok, func() string { return what })
}

// AwaitState is Await for a test that can say where things stand when they are not as they should be.
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

// Receive returns what comes from a channel, and fails the test when nothing comes within 30 seconds.
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

// Within returns a context that ends after limit and, unlike the test's own, not before the test's clean-up.
func Within(t testing.TB, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}
