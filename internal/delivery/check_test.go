package delivery

import (
	"math"
	"testing"
	"time"
)

// However many confirmations are said to be missing, the wait is neither negative nor short: a wrapped one polled every second for ever.
func TestConfirmationPause(t *testing.T) {
	t.Parallel()
	for missing, want := range map[uint64]time.Duration{
		0: blockTime, 1: blockTime, 5: 5 * blockTime, 99: 99 * blockTime,
		100: maxConfirmationPause, 101: maxConfirmationPause, 1000: maxConfirmationPause,
		math.MaxInt64 / uint64(blockTime): maxConfirmationPause, math.MaxInt64/uint64(blockTime) + 1: maxConfirmationPause,
		math.MaxInt64: maxConfirmationPause, math.MaxInt64 + 1: maxConfirmationPause, math.MaxUint64: maxConfirmationPause,
	} {
		if got := confirmationPause(missing); got != want {
			t.Errorf("%d missing: %s, want %s", missing, got, want)
		}
	}
}
