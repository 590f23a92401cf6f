package text

import "testing"

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 deliveries", 1: "1 delivery", 2: "2 deliveries", 1000: "1000 deliveries"} {
		if got := Count(n, "delivery", "deliveries"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for most, want := range map[int]string{1: "a and 2 more", 2: "a, b and 1 more", 3: "a, b, c", 4: "a, b, c"} {
		if got := JoinFirst([]string{"a", "b", "c"}, most, ", "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
