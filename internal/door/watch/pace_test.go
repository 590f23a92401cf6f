package watch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: after n deliveries, wait lasts n/rate minus the time since they were added. An earlier pause is no credit,
// and the end of the context ends the wait.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := pace{rate: 100}
		after := func(want time.Duration) {
			t.Helper()
			if err := p.awaitRoom(t.Context()); err != nil || time.Since(began) != want {
				t.Errorf("after %v (%v), want %v", time.Since(began), err, want)
			}
		}
		after(0)
		p.countJobs(50)
		<-time.After(200 * time.Millisecond) // duration of the commit
		after(500 * time.Millisecond)
		p.countJobs(0)
		after(500 * time.Millisecond)
		<-time.After(time.Hour)
		p.countJobs(100)
		p.countJobs(100)
		after(time.Hour + 2500*time.Millisecond)

		p.countJobs(1000)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.awaitRoom(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Hour+3500*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		p = pace{}
		p.countJobs(1e9)
		after(time.Hour + 3500*time.Millisecond)
	})
}
