package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// Results is Redis, where an outcome is kept that Postgres cannot take now: whoever claims the delivery next must not ask the
// agent for what is known already (DESIGN §5).
type Results interface {
	Keep(ctx context.Context, id uuid.UUID, outcome []byte) error
	Kept(ctx context.Context, id uuid.UUID) ([]byte, error) // nil: nothing
	Forget(ctx context.Context, id uuid.UUID) error
}

const keepTimeout = 2 * time.Second // one try at Redis

// keep puts the outcome into Redis and tells whether Redis has it now.
func (p *Pipeline) keep(ctx context.Context, a *attempt) bool {
	past := store.Past{Attempt: a.claim.Attempt, StartedAt: a.claim.StartedAt, At: p.Now(), Outcome: a.out}
	b, err := json.Marshal(past)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
		defer cancel()
		err = p.Results.Keep(ctx, a.claim.ID, b)
	}
	if err != nil {
		p.Logger.Warn("neither Postgres nor Redis takes the outcome; this process keeps it", logging.About(logging.Redis),
			"delivery", a.claim.ID, "error", err)
	}
	return err == nil
}

// forget drops what Redis has of the delivery. What stays is harmless: it names an attempt that is complete.
func (p *Pipeline) forget(ctx context.Context, a *attempt) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	if err := p.Results.Forget(ctx, a.claim.ID); err != nil {
		p.Logger.Debug("a recorded outcome stays in Redis for a day", "delivery", a.claim.ID, "error", err)
	}
}

// recall asks Redis, when an earlier attempt of the delivery never ended, what that one led to: nil, nothing is known. Without an
// answer nothing is called.
func (p *Pipeline) recall(ctx context.Context, a *attempt) (*store.Past, error) {
	if !a.claim.Unfinished {
		return nil, nil
	}
	b, err := p.kept(ctx, a.claim.ID)
	if err != nil {
		a.away = true
		return nil, retry.Fail(retry.InternalError, fmt.Sprintf("an earlier attempt never ended, and Redis does not tell whether its outcome is known: %v", err))
	}
	if b == nil {
		return nil, p.unknown(a)
	}
	var past store.Past
	if err := json.Unmarshal(b, &past); err != nil {
		p.Logger.Error("an outcome kept in Redis cannot be read; it counts as unknown", "delivery", a.claim.ID, "error", err)
		return nil, p.unknown(a)
	}
	// A wait goes on from where it was when it became known.
	past.Outcome.Delay = max(past.Outcome.Delay-p.Now().Sub(past.At), 0)
	return &past, nil
}

func (p *Pipeline) kept(ctx context.Context, id uuid.UUID) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.RecallPatience)
	defer cancel()
	for {
		try, done := context.WithTimeout(ctx, keepTimeout)
		b, err := p.Results.Kept(try, id)
		done()
		if err == nil {
			return b, nil
		}
		timer := time.NewTimer(200 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}

// unknown decides about an earlier attempt whose outcome only a dead process knew. Who replays has decided that it is sent again.
func (p *Pipeline) unknown(a *attempt) error {
	if !a.claim.InDoubt || a.onUnknown() != store.OnUnknownHold {
		return nil
	}
	return retry.Fail(retry.HeldUnknown, "an earlier attempt ended with its worker, nobody knows whether the agent took the call, and the agent's policy "+
		"is onUnknown=hold: `worker delivery replay` sends it again, `worker delivery cancel` ends it")
}

// adopt records what an earlier attempt is known to have led to, instead of making another.
func (p *Pipeline) adopt(ctx context.Context, a *attempt, past store.Past) (Result, error) {
	fresh := a.out
	a.out, a.kept = past.Outcome, true
	v := retry.Verdict{Reason: retry.Reason(past.Outcome.Reason), Text: past.Outcome.Error}
	res, err := p.write(ctx, a, v, func(ctx context.Context) (store.Recorded, error) {
		past.Outcome = a.out // without what Postgres would not take
		return p.Ledger.Adopt(ctx, a.claim, past)
	})
	if !errors.Is(err, store.ErrStale) {
		return res, err
	}
	// The kept outcome was of an attempt that ended otherwise: recorded, but not forgotten.
	p.forget(ctx, a)
	a.out, a.kept = fresh, false
	return p.proceed(ctx, a, p.unknown(a))
}
