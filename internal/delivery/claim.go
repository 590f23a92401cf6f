package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/delivery/spans"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/resolver/servers"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// claimTimeout bounds the statement that claims a delivery.
const claimTimeout = 10 * time.Second

// claimDelivery claims the delivery with this id for its task n and for this process, until the lease expires. It
// returns an attempt without an error, or
//
//   - nil without an error: the store refused the claim, for example because the task's n is not the row's dispatch
//     counter.
//   - nil with an error: the delivery is not due yet (*ledger.EarlyError), or Postgres failed.
//   - an attempt with an error: the delivery is claimed, but its stored job cannot be read (ledger.ErrUnreadableJob).
//     The caller records the outcome that the error decides.
func (e *Executor) claimDelivery(ctx context.Context, id uuid.UUID, n int) (*attempt, error) {
	began := e.Now()
	try, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	c, err := e.Ledger.Claim(try, id, n, e.Lease)
	if c == nil {
		var early *ledger.EarlyError
		if err != nil && !errors.As(err, &early) && ctx.Err() == nil {
			e.Logger.Warn("a delivery cannot be claimed; its task comes again", logging.About(logging.Postgres),
				"delivery", id, "error", err)
		}
		if err == nil {
			e.warnUnknown(try, id)
		}
		return nil, err
	}

	var server *servers.Server
	if e.Servers != nil {
		if s, ok := e.Servers(c.Agent()); ok {
			server = &s
		}
	}
	return e.beginAttempt(c, server, lease{began, e.Lease}, err), err
}

// warnUnknown warns if Postgres does not have the delivery of a task whose claim it refused. Two Heralds that share one
// Redis database take and drop each other's tasks, which delays all their deliveries. It asks Postgres at most once a
// minute, because after an outage of Redis it refuses many claims.
func (e *Executor) warnUnknown(ctx context.Context, id uuid.UUID) {
	now := e.Now().UnixNano()
	if last := e.unknownAsked.Load(); now-last < int64(time.Minute) || !e.unknownAsked.CompareAndSwap(last, now) {
		return
	}
	if _, err := e.Ledger.Delivery(ctx, id); errors.Is(err, ledger.ErrNotFound) {
		e.Logger.Warn("a task in Redis is of a delivery that Postgres does not have: unless Postgres lost data or was "+
			"restored, another Herald uses this Redis database, and both delay each other's deliveries. "+
			"Give each Herald a database of its own (REDIS_URL)", "delivery", id)
	}
}

// beginAttempt returns an attempt for a claim, and traces the step claim. server is the agent's entry in the servers
// file, or nil. err is the error of the claim, or nil.
func (e *Executor) beginAttempt(c *ledger.Claim, server *servers.Server, l lease, err error) *attempt {
	a := &attempt{claim: c, server: server, began: l.asked, ready: e.Now(), lease: l, stage: stage{name: "claim"},
		agentKnown: c.Bound || !c.Verified}
	a.levels = policy.Levels{Operator: c.Policy, Own: c.OwnPolicy}
	if server != nil {
		a.levels.Operator = a.levels.Operator.Override(server.Policy)
	}
	if e.DefaultPolicy != nil {
		a.levels.Default = e.DefaultPolicy()
	}
	a.policy = a.levels.Settings()
	a.spans = spans.Begin(e.Tracer, c, a.began)
	e.traceStep(a, "claim", "", err, a.began)
	return a
}

// lease is the period for which this process has claimed a delivery. It begins at asked and lasts for length.
type lease struct {
	asked  time.Time // this process' monotonic time shortly before Postgres set the lease
	length time.Duration
}

// timeLeft returns how much of the lease is left at the time now. The result may be slightly lower than by Postgres'
// clock. It is negative after the end. The monotonic clock does not run while the machine is suspended, so the wall
// clock counts if it shows that more time has passed.
func (l lease) timeLeft(now time.Time) time.Duration {
	return l.length - max(now.Sub(l.asked), now.Round(0).Sub(l.asked.Round(0)))
}

// ensureLease makes sure that the claim c does not expire during a call with this timeout. If less than timeout plus
// LeaseMargin is left of the lease l, it extends the lease. It returns an error if the claim is lost
// (ledger.ErrFenced), or if less than timeout is left afterwards.
func (e *Executor) ensureLease(ctx context.Context, c *ledger.Claim, l *lease, timeout time.Duration) error {
	left := l.timeLeft(e.Now())
	if left >= timeout+e.LeaseMargin {
		return nil
	}

	// If Postgres is unavailable, waiting for it must not use up the rest of the lease, which may be enough for the
	// call.
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
	case l.timeLeft(e.Now()) >= timeout:
		return nil
	case err == nil:
		err = errors.New("extending it took too long")
	}
	return fmt.Errorf("make sure of the lease before the call: %w", err)
}

// isFenced reports whether err means that this process lost the claim, so that Postgres refuses its writes.
func isFenced(err error) bool { return errors.Is(err, ledger.ErrFenced) }
