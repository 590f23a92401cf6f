package intake

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// taker is a ledger that accepts everything.
type taker struct{}

func (taker) Accept(_ context.Context, in []ledger.Intake) ([]ledger.Acceptance, []ledger.Task, error) {
	return make([]ledger.Acceptance, len(in)), make([]ledger.Task, len(in)), nil
}

// silent is a Redis that refuses each task after a time.
type silent struct{ after time.Duration }

func (s silent) Dispatch(context.Context, []ledger.Task) int { time.Sleep(s.after); return 0 }

// TestFrozenRedis: if Redis does not answer, only one sender of jobs in 15 s waits for it.
func TestFrozenRedis(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]time.Duration{
		5 * time.Second:  10 * time.Second,
		time.Millisecond: 200 * time.Millisecond, // it refuses at once: nobody has to be spared
	} {
		synctest.Test(t, func(t *testing.T) {
			in := &Intake{Config: Config{Ledger: taker{}, Dispatcher: silent{after}}}
			waited := time.Duration(0)
			for range 200 {
				asked := time.Now()
				_, err := in.acceptJobs(t.Context(), make([]ledger.Intake, 1))
				heraldtest.Must(t, err)
				waited += time.Since(asked)
				time.Sleep(100 * time.Millisecond)
			}
			heraldtest.Equal(t, "waited", waited, want)
		})
	}
}
