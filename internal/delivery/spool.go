package delivery

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// OutcomeSpool stores outcomes in Redis while Postgres is unavailable, so that the next claim of a delivery does not
// repeat a call whose outcome is known. The outcomes are encrypted and authenticated (sealOutcome), because other
// programs may write to the same Redis. See docs/design/delivery.md.
type OutcomeSpool interface {
	Put(ctx context.Context, id string, outcome []byte) error
	PutMissing(ctx context.Context, id string, outcome []byte) error // does nothing if Redis has an outcome
	Get(ctx context.Context, id string) ([]byte, error)              // nil: no outcome
	Delete(ctx context.Context, id string) error
}

const (
	spoolTimeout = 2 * time.Second // bounds one call to Redis
	spoolPause   = 200 * time.Millisecond
)

// spoolError means that an earlier attempt has no outcome in Postgres, and that Redis did not answer whether it has the
// spooled outcome of that attempt.
type spoolError struct{ error }

func (e *spoolError) Unwrap() error { return e.error }

// spoolOutcome stores the outcome of claim c in Redis (sealOutcome), and reports whether that succeeded. It logs a
// failure. If d was spooled before, it stores d again only if Redis lost it: a later claim may have spooled its own
// outcome. If an earlier attempt has no outcome in Postgres, an attempt without a call stores nothing: it may have
// ended before it loaded the spooled outcome of the earlier attempt, which it would replace.
func (e *Executor) spoolOutcome(ctx context.Context, c *ledger.Claim, d decision) bool {
	if c.Unfinished && !d.Called {
		return false
	}
	put := e.Spool.Put
	if d.spooled {
		put = e.Spool.PutMissing
	}
	b, err := sealOutcome(e.Keys, c, ledger.SpooledOutcome{Attempt: c.Attempt, StartedAt: c.StartedAt, At: e.Now(),
		Epoch: c.Epoch, Outcome: d.Outcome})
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoolTimeout)
		defer cancel()
		err = put(ctx, c.ID.String(), b)
	}
	if err != nil {
		e.Logger.Warn("neither Postgres nor Redis accepts the outcome; this process keeps it in memory",
			logging.About(logging.Redis), "delivery", c.ID, "error", err)
	}
	return err == nil
}

// loadSpooledOutcome loads the spooled outcome of an earlier attempt that has no outcome in Postgres. c is the new
// claim of the delivery. If all earlier attempts have an outcome, or Redis has no readable spooled outcome, it returns
// nil and no error. It ignores a failure of an attempt before the operator's replay. If Redis does not answer, it
// returns a *spoolError, and the agent must not be called, because it may have accepted the earlier call.
func (e *Executor) loadSpooledOutcome(ctx context.Context, c *ledger.Claim) (*ledger.SpooledOutcome, error) {
	if !c.Unfinished {
		return nil, nil
	}
	sealed, err := e.readSpool(ctx, c.ID)
	if err != nil {
		return nil, &spoolError{outcome.Fail(outcome.InternalError,
			fmt.Sprintf("an earlier attempt never ended, and Redis does not answer whether its outcome is known: %v",
				err))}
	}
	if sealed == nil {
		return nil, nil
	}
	past, err := openOutcome(e.Keys, c, sealed)
	if err != nil {
		e.ignoreSpooled(c, "unreadable", err)
		return nil, nil
	}
	if base := c.Attempt - c.Budget; c.Replay && past.Attempt <= base && past.Outcome.Status != outcome.Delivered {
		return nil, nil // the operator who replayed the delivery asked for another call than the one that failed
	}
	// The wait began when the outcome was spooled, by the clock of another worker, which may be ahead of this one.
	past.Outcome.Delay = max(past.Outcome.Delay-max(e.Now().Sub(past.At), 0), 0)
	return past, nil
}

// readSpool reads the sealed outcome of a delivery from Redis. It returns nil if Redis has none. If Redis does not
// answer, it tries again for at most SpoolTimeout, and then returns the error.
func (e *Executor) readSpool(ctx context.Context, id uuid.UUID) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, e.SpoolTimeout)
	defer cancel()
	for {
		try, done := context.WithTimeout(ctx, spoolTimeout)
		sealed, err := e.Spool.Get(try, id.String())
		done()
		if err == nil {
			return sealed, nil
		}
		if loop.Pause(ctx, spoolPause) != nil {
			return nil, err
		}
	}
}

// recordSpooledOutcome records past, the spooled outcome of an earlier attempt, as the outcome of that attempt. The
// attempt a, which loaded it, ends without a call. If Postgres already has another outcome of the earlier attempt,
// recordSpooledOutcome deletes past from Redis and returns ledger.ErrStale.
func (e *Executor) recordSpooledOutcome(ctx context.Context, a *attempt, past ledger.SpooledOutcome) (Result, error) {
	d := decision{Outcome: past.Outcome, spooled: true,
		verdict: outcome.Verdict{Reason: past.Outcome.Reason, Text: past.Outcome.Error}}
	adopt := func(ctx context.Context, c *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error) {
		past.Outcome = o // commitOutcome may have removed texts that Postgres refused
		return e.Ledger.Adopt(ctx, c, past)
	}
	res, err := e.recordOutcome(ctx, a, d, adopt)
	switch {
	case errors.Is(err, ledger.ErrStale):
		e.ignoreSpooled(a.claim, "old", err)
		e.dropSpooled(ctx, a.claim.ID)
	case err == nil && res.Status == outcome.Delivered: // recordOutcome deletes all other outcomes
		e.dropSpooled(ctx, a.claim.ID)
	}
	return res, err
}

// dropSpooled deletes the delivery's spooled outcome from Redis. It is called after the record. A failure is harmless:
// Redis deletes the outcome after a day, and until then Ledger.Adopt refuses it, because Postgres already has an
// outcome of its attempt.
func (e *Executor) dropSpooled(ctx context.Context, id uuid.UUID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoolTimeout)
	defer cancel()
	if err := e.Spool.Delete(ctx, id.String()); err != nil {
		e.Logger.Debug("a recorded outcome stays in Redis for a day", "delivery", id, "error", err)
	}
}

// ignoreSpooled counts a spooled outcome that is ignored, and logs a warning. why is the label of the metric:
// "unreadable" if the outcome cannot be decrypted (Herald did not write it, it was copied from another delivery, it is
// damaged, or its key was removed from the keyset), and "old" if Postgres already has another outcome of the attempt.
// It logs at most once a minute, because another program that writes to Redis could cause a warning for every delivery.
func (e *Executor) ignoreSpooled(c *ledger.Claim, why string, err error) {
	e.Metrics.ignoredOutcomes.WithLabelValues(why).Inc()
	now := e.Now().UnixNano()
	if last := e.spoolWarned.Load(); now-last < int64(time.Minute) || !e.spoolWarned.CompareAndSwap(last, now) {
		return
	}
	e.Logger.Warn("an outcome in Redis is ignored, and its delivery continues as if the outcome were unknown; "+
		"if no worker was just upgraded and no key removed, another client writes to this Redis: check its clients",
		"delivery", c.ID, "why", why, "error", err)
}

const (
	// A sealed outcome begins with a head of sealedHead bytes: sealedVersion, the claim number, and the attempt's
	// number.
	sealedVersion = 1
	sealedHead    = 1 + 8 + 4
)

// outcomeBinding returns the associated data with which an outcome is encrypted. It names the delivery, the claim
// (claimNo) and the attempt, so that the outcome cannot be decrypted for any other.
func outcomeBinding(c *ledger.Claim, claimNo int64, attempt int) secret.Binding {
	return secret.Binding{Purpose: "deliveries.result.v1", Generation: fmt.Sprintf("%s/%d/%d", c.ID, claimNo, attempt)}
}

// sealOutcome encodes past, the outcome of claim c, as JSON and encrypts it for Redis, with outcomeBinding.
func sealOutcome(keys event.Keys, c *ledger.Claim, past ledger.SpooledOutcome) ([]byte, error) {
	plain, err := json.Marshal(past)
	if err != nil {
		return nil, err
	}
	text, err := keys.Seal(plain, outcomeBinding(c, c.No, c.Attempt))
	if err != nil {
		return nil, err
	}
	head := binary.BigEndian.AppendUint64([]byte{sealedVersion}, uint64(c.No))
	return append(binary.BigEndian.AppendUint32(head, uint32(c.Attempt)), text...), nil
}

// openOutcome decrypts an outcome that sealOutcome encrypted for an earlier claim of the same delivery. c is the
// present claim. It returns an error for any other data. Ledger.Adopt checks that the earlier attempt still has no
// outcome.
func openOutcome(keys event.Keys, c *ledger.Claim, sealed []byte) (*ledger.SpooledOutcome, error) {
	if len(sealed) < sealedHead || sealed[0] != sealedVersion {
		return nil, errors.New("it is not sealed by a worker of this version")
	}
	claimNo, attempt := int64(binary.BigEndian.Uint64(sealed[1:])), int(binary.BigEndian.Uint32(sealed[9:]))
	plain, err := keys.Open(sealed[sealedHead:], outcomeBinding(c, claimNo, attempt))
	if err != nil {
		return nil, err
	}
	past := &ledger.SpooledOutcome{}
	if err := json.Unmarshal(plain, past); err != nil {
		return nil, err
	}
	if past.Attempt != attempt || attempt >= c.Attempt || claimNo >= c.No {
		return nil, fmt.Errorf("it is of attempt %d, and not of one before attempt %d", attempt, c.Attempt)
	}
	return past, nil
}
