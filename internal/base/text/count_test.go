package text

import "testing"

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 deliveries", 1: "1 delivery", 2: "2 deliveries", 1000: "1000 deliveries"} {
		if got := Count(n, "delivery", "deliveries"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
