package trial

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestAwaitState(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	away := errors.New("away")
	err := Until(ctx, time.Millisecond, "nothing", func() (bool, error) { return true, away })
	if !errors.Is(err, away) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	n := 0
	if err := Until(t.Context(), time.Millisecond, "three", func() (bool, error) { n++; return n == 3, nil }); err != nil || n != 3 {
		t.Errorf("%d %v", n, err)
	}
}
