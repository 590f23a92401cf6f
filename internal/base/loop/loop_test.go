package loop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 35*time.Second)
		defer cancel()
		began, rounds := time.Now(), 0
		for range Every(ctx, 10*time.Second) {
			if rounds++; time.Since(began) != time.Duration(rounds)*10*time.Second {
				t.Errorf("round %d after %s", rounds, time.Since(began))
			}
		}
		if rounds != 3 || time.Since(began) != 35*time.Second {
			t.Errorf("%d rounds, ended after %s", rounds, time.Since(began))
		}
		for range Every(ctx, time.Nanosecond) {
			t.Error("a round after the end")
		}
	})
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if err := Pause(ctx, 10*time.Second); err != nil {
			t.Error(err)
		}
		if err := Pause(ctx, 10*time.Second); err != context.DeadlineExceeded {
			t.Errorf("a pause longer than the context: %v", err)
		}
	})
}
