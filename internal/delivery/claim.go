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

// claimTimeout bounds the claim: one statement, or the database is in trouble.
const claimTimeout = 10 * time.Second

// claimDelivery takes the row for this process until the lease runs out. nil without an error: the claim was refused.
// An attempt beside an error: the row is taken, and the error is what becomes of the delivery.
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

	a := &attempt{claim: c, began: began, lease: lease{began, e.Lease}, stage: stage{name: "claim"}}
	if e.Servers != nil {
		if s, ok := e.Servers(c.Agent()); ok {
			a.server = &s
		}
	}
	a.spans = e.beginSpans(a)
	e.traceStep(a, "claim", "", err, began)
	return a, err
}

// lease is how long a claim is this process'.
type lease struct {
	asked  time.Time // by this process' monotonic clock, before Postgres set it: what is left is a lower bound
	length time.Duration
}

func (l lease) left(now time.Time) time.Duration { return l.length - now.Sub(l.asked) }

// ensureLease makes sure that the claim outlasts a call: the lease is extended when less than call and margin is left,
// and there is no call with less than the call's own time.
func (e *Executor) ensureLease(ctx context.Context, c *store.Claim, l *lease, timeout time.Duration) error {
	left := l.left(e.Now())
	if left >= timeout+e.LeaseMargin {
		return nil
	}

	// While Postgres is away, what is left is still ours: it must not be spent on asking.
	patience := e.RecordTimeout
	if left > timeout {
		patience = min(patience, left-timeout)
	}
	asked := e.Now()
	try, cancel := context.WithTimeout(ctx, patience)
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

func isFenced(err error) bool { return errors.Is(err, store.ErrFenced) }
