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
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// Results is Redis, where an outcome is kept that Postgres cannot take now: whoever claims the delivery next must not ask the
// agent for what is known already (DESIGN §5). Others may write there, too: what is kept is sealed (sealResult).
type Results interface {
	Keep(ctx context.Context, id uuid.UUID, outcome []byte) error
	Kept(ctx context.Context, id uuid.UUID) ([]byte, error) // nil: nothing
	Forget(ctx context.Context, id uuid.UUID) error
}

const keepTimeout = 2 * time.Second // one try at Redis

// keep puts the outcome into Redis and tells whether Redis has it now.
func (p *Executor) keep(ctx context.Context, a *attempt) bool {
	past := store.Past{Attempt: a.claim.Attempt, StartedAt: a.claim.StartedAt, At: p.Now(), Outcome: a.out}
	b, err := sealResult(p.Sealer, a.claim, past)
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
func (p *Executor) forget(ctx context.Context, a *attempt) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	if err := p.Results.Forget(ctx, a.claim.ID); err != nil {
		p.Logger.Debug("a recorded outcome stays in Redis for a day", "delivery", a.claim.ID, "error", err)
	}
}

// recall asks Redis, when an earlier attempt of the delivery never ended, what that one led to: nil, nothing is known. Without an
// answer nothing is called.
func (p *Executor) recall(ctx context.Context, a *attempt) (*store.Past, error) {
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
	past, err := openResult(p.Opener, a.claim, b)
	if err != nil {
		p.ignoreResult(a, resultUnreadable, err)
		return nil, p.unknown(a)
	}
	// A wait goes on from where it was when it became known.
	past.Outcome.Delay = max(past.Outcome.Delay-p.Now().Sub(past.At), 0)
	return past, nil
}

// sealedHead is the length of what precedes the ciphertext of a kept outcome: a version, the number of the claim, and the attempt. The worker
// of the version before keeps JSON, which does not begin with the version: each takes the other's for unreadable.
const (
	sealedVersion = 1
	sealedHead    = 1 + 8 + 4
)

// resultBinding is what a kept outcome belongs to: one claim of one delivery.
func resultBinding(c *store.Claim, claimNo int64, attempt int) secret.Binding {
	return secret.Binding{Purpose: "deliveries.result.v1", Generation: fmt.Sprintf("%s/%d/%d", c.ID, claimNo, attempt)}
}

// sealResult makes of an outcome what Redis keeps.
func sealResult(keys Sealer, c *store.Claim, past store.Past) ([]byte, error) {
	plain, err := json.Marshal(past)
	if err != nil {
		return nil, err
	}
	sealed, err := keys.Seal(plain, resultBinding(c, c.No, c.Attempt))
	if err != nil {
		return nil, err
	}
	head := binary.BigEndian.AppendUint64([]byte{sealedVersion}, uint64(c.No))
	return append(binary.BigEndian.AppendUint32(head, uint32(c.Attempt)), sealed...), nil
}

// openResult reads what sealResult made under an earlier claim of the delivery that c claims. Whether that one's attempt is still without an
// outcome the store tells (Ledger.Adopt).
func openResult(keys Opener, c *store.Claim, kept []byte) (*store.Past, error) {
	if len(kept) < sealedHead || kept[0] != sealedVersion {
		return nil, errors.New("it is not sealed by a worker of this version")
	}
	claimNo, attempt := int64(binary.BigEndian.Uint64(kept[1:])), int(binary.BigEndian.Uint32(kept[9:]))
	plain, err := keys.Open(kept[sealedHead:], resultBinding(c, claimNo, attempt))
	if err != nil {
		return nil, err
	}
	past := &store.Past{}
	if err := json.Unmarshal(plain, past); err != nil {
		return nil, err
	}
	if past.Attempt != attempt || attempt >= c.Attempt || claimNo >= c.No {
		return nil, fmt.Errorf("it is of attempt %d, and not of one before attempt %d", attempt, c.Attempt)
	}
	return past, nil
}

// Why a kept outcome is ignored.
const (
	resultUnreadable = "unreadable" // not written by Herald, moved from another delivery, damaged, or sealed with a key that is gone
	resultOld        = "old"        // its attempt has another outcome in Postgres
)

// ignoreResult counts an outcome that the delivery does not end by, and warns of it once a minute at most: who can write to Redis can make
// as many as there are deliveries.
func (p *Executor) ignoreResult(a *attempt, why string, err error) {
	p.Metrics.ignoredResults.WithLabelValues(why).Inc()
	now := p.Now().UnixNano()
	if last := p.resultWarned.Load(); now-last < int64(time.Minute) || !p.resultWarned.CompareAndSwap(last, now) {
		return
	}
	p.Logger.Warn("an outcome in Redis is ignored, and its delivery goes on as if nobody knew of one; if no worker was just upgraded and no key removed, "+
		"somebody else writes to this Redis: look who can", "delivery", a.claim.ID, "why", why, "error", err)
}

func (p *Executor) kept(ctx context.Context, id uuid.UUID) ([]byte, error) {
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
func (p *Executor) unknown(a *attempt) error {
	if !a.claim.InDoubt || a.onUnknown() != store.OnUnknownHold {
		return nil
	}
	return retry.Fail(retry.HeldUnknown, "an earlier attempt ended with its worker, nobody knows whether the agent took the call, and the agent's policy "+
		"is onUnknown=hold: `worker delivery replay` sends it again, `worker delivery cancel` ends it")
}

// adopt records what an earlier attempt is known to have led to, instead of making another.
func (p *Executor) adopt(ctx context.Context, a *attempt, past store.Past) (Result, error) {
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
	p.ignoreResult(a, resultOld, err)
	p.forget(ctx, a)
	a.out, a.kept = fresh, false
	return p.proceed(ctx, a, p.unknown(a))
}
