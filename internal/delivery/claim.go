package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// claimTimeout bounds the claim, which is one statement.
const claimTimeout = 10 * time.Second

// claimDelivery claims the delivery's row for task n and for this process, until the lease expires. It returns nil and
// no error if the store refused the claim. It returns nil and an error if the delivery is not yet due
// (*store.EarlyError) or if the claim failed. If it returns an attempt and an error, the row is claimed, and the error
// decides the delivery's outcome.
func (e *Executor) claimDelivery(ctx context.Context, id uuid.UUID, n int) (*attempt, error) {
	began := e.Now()
	try, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	c, err := e.Ledger.Claim(try, id, n, e.Lease)
	if c == nil {
		var early *store.EarlyError
		if err != nil && !errors.As(err, &early) && ctx.Err() == nil {
			e.Logger.Warn("a delivery cannot be claimed; its task comes again", logging.About(logging.Postgres),
				"delivery", id, "error", err)
		}
		return nil, err
	}

	a := &attempt{claim: c, began: began, lease: lease{began, e.Lease}, stage: stage{name: "claim"},
		agentKnown: c.Bound || !c.Verified}
	if e.Servers != nil {
		if s, ok := e.Servers(c.Agent()); ok {
			a.server = &s
		}
	}
	a.spans = e.beginSpans(a)
	e.traceStep(a, "claim", "", err, began)
	return a, err
}

// lease is the period for which this process holds a claim: from asked, for length.
type lease struct {
	asked  time.Time // this process' monotonic time shortly before Postgres set the lease
	length time.Duration
}

// left returns how much of the lease is left at now, or a little less. It is negative after the end.
func (l lease) left(now time.Time) time.Duration { return l.length - now.Sub(l.asked) }

// ensureLease ensures that the lease lasts as long as a call with this timeout, so that no claim expires during the
// call. If less than the timeout plus LeaseMargin is left, it extends the lease. It returns an error if the claim is
// lost (store.ErrFenced), or if less than the timeout is left nevertheless.
func (e *Executor) ensureLease(ctx context.Context, c *store.Claim, l *lease, timeout time.Duration) error {
	left := l.left(e.Now())
	if left >= timeout+e.LeaseMargin {
		return nil
	}

	// If Postgres is unavailable, waiting for it must not use up the rest of the lease, which may be enough.
	limit := e.RecordTimeout
	if left > timeout {
		limit = min(limit, left-timeout)
	}
	asked := e.Now()
	try, cancel := context.WithTimeout(ctx, limit)
	err := e.Ledger.Extend(try, c, e.Lease)
	cancel()
	if err == nil {
		*l = lease{asked, e.Lease}
	}

	switch {
	case isFenced(err):
	case l.left(e.Now()) >= timeout:
		return nil
	case err == nil:
		err = errors.New("extending it took too long")
	}
	return fmt.Errorf("make sure of the lease before the call: %w", err)
}

// isFenced reports whether err says that the claim was lost, so that Postgres refuses its writes.
func isFenced(err error) bool { return errors.Is(err, store.ErrFenced) }
