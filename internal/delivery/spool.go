package delivery

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// OutcomeSpool is Redis, where an outcome waits that Postgres cannot take now: whoever claims the delivery next must
// not ask the agent for what is known already (DESIGN §5). Others may write there, too: what is spooled is sealed
// (sealOutcome).
type OutcomeSpool interface {
	SpoolOutcome(ctx context.Context, id uuid.UUID, outcome []byte) error
	SpooledOutcome(ctx context.Context, id uuid.UUID) ([]byte, error) // nil: nothing
	DropOutcome(ctx context.Context, id uuid.UUID) error
}

const (
	spoolTimeout = 2 * time.Second // one try at Redis
	spoolPause   = 200 * time.Millisecond
)

// spoolError: an earlier attempt never ended, and Redis does not tell whether its outcome is known.
type spoolError struct{ error }

func (e *spoolError) Unwrap() error { return e.error }

// spoolOutcome puts the outcome into Redis and tells whether Redis has it now.
func (e *Executor) spoolOutcome(ctx context.Context, c *store.Claim, o store.Outcome) bool {
	b, err := sealOutcome(e.Sealer, c, store.SpooledOutcome{Attempt: c.Attempt, StartedAt: c.StartedAt, At: e.Now(),
		Outcome: o})
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoolTimeout)
		defer cancel()
		err = e.Spool.SpoolOutcome(ctx, c.ID, b)
	}
	if err != nil {
		e.Logger.Warn("neither Postgres nor Redis takes the outcome; this process keeps it",
			logging.About(logging.Redis), "delivery", c.ID, "error", err)
	}
	return err == nil
}

// loadSpooledOutcome asks Redis what an earlier attempt led to that has no outcome in Postgres; nil without an error:
// nobody knows, or there is no such attempt. Without an answer nothing is called.
func (e *Executor) loadSpooledOutcome(ctx context.Context, c *store.Claim) (*store.SpooledOutcome, error) {
	if !c.Unfinished {
		return nil, nil
	}
	sealed, err := e.readSpool(ctx, c.ID)
	if err != nil {
		return nil, &spoolError{retry.Fail(reason.InternalError,
			fmt.Sprintf("an earlier attempt never ended, and Redis does not tell whether its outcome is known: %v",
				err))}
	}
	if sealed == nil {
		return nil, nil
	}
	past, err := openOutcome(e.Opener, c, sealed)
	if err != nil {
		e.ignoreSpooled(c, spooledUnreadable, err)
		return nil, nil
	}
	// A wait goes on from where it was when it became known.
	past.Outcome.Delay = max(past.Outcome.Delay-e.Now().Sub(past.At), 0)
	return past, nil
}

// readSpool tries until Redis answers, for SpoolPatience.
func (e *Executor) readSpool(ctx context.Context, id uuid.UUID) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, e.SpoolPatience)
	defer cancel()
	for {
		try, done := context.WithTimeout(ctx, spoolTimeout)
		sealed, err := e.Spool.SpooledOutcome(try, id)
		done()
		if err == nil {
			return sealed, nil
		}
		timer := time.NewTimer(spoolPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}

// recordSpooledOutcome records what an earlier attempt led to, instead of making another. store.ErrStale: that attempt
// ended otherwise, which was recorded, though Redis still has this; it is dropped.
func (e *Executor) recordSpooledOutcome(ctx context.Context, a *attempt, past store.SpooledOutcome) (Result, error) {
	d := decision{Outcome: past.Outcome, spooled: true,
		verdict: retry.Verdict{Reason: past.Outcome.Reason, Text: past.Outcome.Error}}
	adopt := func(ctx context.Context, c *store.Claim, o store.Outcome) (store.Recorded, error) {
		past.Outcome = o // without what Postgres would not take
		return e.Ledger.Adopt(ctx, c, past)
	}
	res, err := e.recordOutcome(ctx, a, d, adopt)
	if errors.Is(err, store.ErrStale) {
		e.ignoreSpooled(a.claim, spooledOld, err)
		e.dropSpooled(ctx, a.claim.ID)
	}
	return res, err
}

// dropSpooled drops what Redis has of the delivery. What stays is harmless: it names an attempt that is complete.
func (e *Executor) dropSpooled(ctx context.Context, id uuid.UUID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoolTimeout)
	defer cancel()
	if err := e.Spool.DropOutcome(ctx, id); err != nil {
		e.Logger.Debug("a recorded outcome stays in Redis for a day", "delivery", id, "error", err)
	}
}

// Why a spooled outcome is ignored, as herald_spooled_outcomes_ignored_total says it.
const (
	// spooledUnreadable: not written by Herald, moved from another delivery, damaged, or sealed with a removed key.
	spooledUnreadable = "unreadable"
	// spooledOld: its attempt has another outcome in Postgres.
	spooledOld = "old"
)

// ignoreSpooled counts an outcome that the delivery does not end by, and warns of it once a minute at most: who can
// write to Redis can make as many as there are deliveries.
func (e *Executor) ignoreSpooled(c *store.Claim, why string, err error) {
	e.Metrics.ignoredOutcomes.WithLabelValues(why).Inc()
	now := e.Now().UnixNano()
	if last := e.spoolWarned.Load(); now-last < int64(time.Minute) || !e.spoolWarned.CompareAndSwap(last, now) {
		return
	}
	e.Logger.Warn("an outcome in Redis is ignored, and its delivery goes on as if nobody knew of one; "+
		"if no worker was just upgraded and no key removed, somebody else writes to this Redis: look who can",
		"delivery", c.ID, "why", why, "error", err)
}

// sealedHead is the length of what precedes the ciphertext of a spooled outcome: a version, the number of the claim,
// and the attempt. The worker of the version before keeps JSON, which does not begin with the version: each takes the
// other's for unreadable.
const (
	sealedVersion = 1
	sealedHead    = 1 + 8 + 4
)

// outcomeBinding is what a spooled outcome belongs to: one claim of one delivery.
func outcomeBinding(c *store.Claim, claimNo int64, attempt int) secret.Binding {
	return secret.Binding{Purpose: "deliveries.result.v1", Generation: fmt.Sprintf("%s/%d/%d", c.ID, claimNo, attempt)}
}

// sealOutcome makes of an outcome what Redis keeps.
func sealOutcome(keys Sealer, c *store.Claim, past store.SpooledOutcome) ([]byte, error) {
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

// openOutcome reads what sealOutcome made under an earlier claim of the delivery that c claims. Whether that one's
// attempt is still without an outcome the store tells (Ledger.Adopt).
func openOutcome(keys Opener, c *store.Claim, sealed []byte) (*store.SpooledOutcome, error) {
	if len(sealed) < sealedHead || sealed[0] != sealedVersion {
		return nil, errors.New("it is not sealed by a worker of this version")
	}
	claimNo, attempt := int64(binary.BigEndian.Uint64(sealed[1:])), int(binary.BigEndian.Uint32(sealed[9:]))
	plain, err := keys.Open(sealed[sealedHead:], outcomeBinding(c, claimNo, attempt))
	if err != nil {
		return nil, err
	}
	past := &store.SpooledOutcome{}
	if err := json.Unmarshal(plain, past); err != nil {
		return nil, err
	}
	if past.Attempt != attempt || attempt >= c.Attempt || claimNo >= c.No {
		return nil, fmt.Errorf("it is of attempt %d, and not of one before attempt %d", attempt, c.Attempt)
	}
	return past, nil
}
