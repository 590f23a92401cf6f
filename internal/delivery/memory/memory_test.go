package memory

import "testing"

// TestShares: large arguments of newcomers use at most half of the budget, and those at one origin at
// most a quarter. A call of any size is allowed if no large arguments are in flight.
func TestShares(t *testing.T) {
	t.Parallel()
	b := NewBudget(3 * 64 << 20)
	var releases []func()
	take := func(size int, origin string, newcomer, want bool) {
		t.Helper()
		release, ok := b.Acquire(size<<20, origin, newcomer)
		if ok != want {
			t.Errorf("%d MiB at %s: %v, held %v", size, origin, ok, b.held)
		}
		if release != nil {
			releases = append(releases, release)
		}
	}
	take(16, "a", true, true)
	take(1, "a", true, false)
	take(1, "a", false, false)
	take(16, "b", true, true)
	take(1, "c", true, false) // newcomers use their half
	take(24, "c", false, true)
	take(1, "c", false, false)
	take(8, "d", false, true)
	take(1, "e", false, false) // the budget is used up
	for _, release := range releases {
		release()
	}
	take(64, "a", true, true)
	releases[len(releases)-1]()
	if len(b.held) != 0 {
		t.Errorf("not given back: %v", b.held)
	}
}
