package delivery

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

// TestConfirmationPause: for any duration of the missing blocks, the wait is neither negative nor excessive.
func TestConfirmationPause(t *testing.T) {
	t.Parallel()
	for missing, want := range map[time.Duration]time.Duration{
		-time.Second: minConfirmationPause, 0: minConfirmationPause, 90 * time.Millisecond: minConfirmationPause,
		600 * time.Millisecond: 600 * time.Millisecond, 24 * time.Second: 24 * time.Second,
		5 * time.Minute: maxConfirmationPause, math.MaxInt64: maxConfirmationPause,
	} {
		if got := findConfirmationPause(missing); got != want {
			t.Errorf("%s missing: %s, want %s", missing, got, want)
		}
	}
}

func TestDescribeMissing(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]chain.Standing{
		"needs 3 more blocks on top, about 600ms": {ConfirmedIn: 3, Wait: 600 * time.Millisecond},
		"name no safe block":                      {ConfirmedIn: 9, Wait: time.Second, Unnamed: "safe"},
	} {
		if got := describeMissing(s); !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// standingChain returns the same standing for each check.
type standingChain chain.Standing

func (c standingChain) Check(context.Context, job.Job, chain.Verify) (chain.Standing, error) {
	return chain.Standing(c), nil
}

// TestUndatedWaitEnds: a job waits at most an hour for a block above an old head of an idle chain. Above other heads,
// it waits as long as necessary.
func TestUndatedWaitEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		undated bool
		waited  time.Duration
		want    reason.Reason
	}{
		"59 minutes": {true, 59 * time.Minute, reason.NotConfirmed},
		"an hour":    {true, time.Hour, reason.EventNotFound},
		"a day, above a head that shows how far the chain is": {false, 24 * time.Hour, reason.NotConfirmed},
	} {
		standing := standingChain{Found: true, Pending: true, ConfirmedIn: 9, Wait: time.Minute, Undated: c.undated}
		e := &Executor{Config: Config{Verify: chain.VerifyReceipt, Chain: func(uint64) (Chain, bool) { return standing, true }}}
		a := &attempt{claim: &store.Claim{CreatedAt: time.Now().Add(-c.waited), Job: job.Job{BlockNumber: 7}}}
		err := e.checkEvent(t.Context(), a)
		var failure *retry.Failure
		if !errors.As(err, &failure) || failure.Reason != c.want || (len(a.event.refuted) > 0) != (c.want == reason.EventNotFound) {
			t.Errorf("%s: %+v, %v", name, a.event, err)
		}
	}
}
