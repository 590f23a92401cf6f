package delivery

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/delivery/effort"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/store"
)

const (
	// followerTimeout bounds the checks and file fetches of all followers together, because the leader holds a permit
	// meanwhile. A follower that is not ready by then is released. Its later attempt as a leader has more time.
	followerTimeout = 5 * time.Second
	// followersAtOnce bounds the followers that are prepared at a time.
	followersAtOnce = 8
)

// follower is the attempt of a delivery that is delivered in the call of another delivery, the leader.
type follower struct {
	*attempt
	given store.Follower

	size    int   // bytes of its arguments as JSON
	failure error // before the call: why it cannot be in the call; after the call: its result. nil: no failure
	back    bool  // it is left out of the call without a fault of its own, so its claim is released
	ended   bool  // an earlier attempt's spooled outcome was found, so there is no attempt
	final   bool  // with ended: the spooled outcome is recorded and final

	fetching time.Duration // how long fetching its file took
	decided  decision
}

// claimFollowers claims up to n deliveries for the leader's call, with leases that outlast the preparation and the
// call. If Postgres fails, it logs the error and returns the deliveries that were claimed, usually none.
func (e *Executor) claimFollowers(ctx context.Context, a *attempt, n int) (all []*follower) {
	began := e.Now()
	held := lease{began, e.Lease + followerTimeout}
	try, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	given, err := e.Followers.ClaimFollowers(try, a.claim, n, held.length)
	if err != nil && ctx.Err() == nil {
		e.Logger.Warn("nothing can be claimed to go in one call with a delivery", logging.About(logging.Postgres),
			"delivery", a.claim.ID, "error", err)
	}
	for _, g := range given {
		f := &follower{given: g, failure: g.Err,
			attempt: &attempt{claim: g.Claim, server: a.server, began: began, lease: held,
				stage: stage{name: "claim"}, agentKnown: g.Bound || !g.Verified}}
		f.spans = e.beginSpans(f.attempt)
		e.traceStep(f.attempt, "claim", "", g.Err, began)
		all = append(all, f)
	}
	return all
}

// prepareFollowers calls prepareFollower for all followers, followersAtOnce at a time, within followerTimeout. It sets
// back for followers that are late or exceed maxBatchBytes.
func (e *Executor) prepareFollowers(ctx context.Context, a *attempt, tool mcpcall.Tool, all []*follower) {
	limited, cancel := context.WithTimeout(ctx, followerTimeout)
	defer cancel()
	var working sync.WaitGroup
	room := make(chan struct{}, followersAtOnce)
	var bytes atomic.Int64 // of the ready arguments; once they are enough, no more files are fetched
	for _, f := range all {
		room <- struct{}{}
		working.Go(func() {
			defer func() { <-room }()
			if bytes.Load() >= maxBatchBytes {
				f.back = true
				return
			}
			if f.failure == nil {
				f.failure = e.prepareFollower(limited, a, f, tool)
			}
			if bytes.Add(int64(f.size)) > maxBatchBytes {
				f.back, f.call.arguments = true, nil
			}
			f.back = f.back || f.failure != nil && limited.Err() != nil
			f.file.Content = nil // the arguments contain it
		})
	}
	working.Wait()
	for _, f := range all {
		if f.fetching > 0 && wantsFile(f.claim.Job) {
			a.effort.hold.Spend(effort.Fetches, 1, f.fetching) // all followers have the same agent
		}
	}
}

// prepareFollower runs the steps before the call for one follower, as runAttempt does, but with the endpoint of the
// leader a, because both have the same agent. tool is the batch tool. An error with f.back set is no failure of the
// delivery.
func (e *Executor) prepareFollower(ctx context.Context, a *attempt, f *follower, tool mcpcall.Tool) (err error) {
	defer func() {
		if v := recover(); v != nil || err != nil {
			err = e.endStages(f.attempt, err, v)
		}
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.ended, err = e.adoptSpooled(ctx, f); f.ended || err != nil {
		return err
	}
	if err = e.checkDelivery(ctx, f.attempt); err != nil {
		return err
	}
	if f.back = f.claim.Job.ActionSum() != a.claim.Job.ActionSum(); f.back { // the check chose another action
		return errors.New("the delivery has another action than the batch")
	}

	e.beginStage(f.attempt, "resolve")
	f.endpoint = a.endpoint

	e.beginStage(f.attempt, "fetch")
	began := e.Now()
	if wantsFile(f.claim.Job) {
		if err = a.effort.hold.CheckFiles(); err != nil {
			f.back = true
			return err
		}
	}
	f.file, err = e.fetchContent(ctx, f.claim, nil)
	f.fetching = e.Now().Sub(began)
	if err != nil {
		return err
	}

	e.beginStage(f.attempt, "compose")
	fitted, err := fitItem(ctx, e, f.attempt, tool)
	if err != nil { // the agent's other tool may accept it
		f.back = true
		return err
	}
	f.size = len(fitted.Sent)
	f.call = preparedCall{tool: tool.Name, arguments: fitted.Arguments, sanitized: fitted.Cleaned,
		recorded: store.KeepSide(fitted.Sent)}
	return nil
}

// adoptSpooled looks in Redis for the outcome of an earlier attempt. If there is one, it records that outcome in
// Postgres and returns true, also if recording failed: the follower must not be delivered in the call. It returns false
// if there is none, if Postgres has another outcome of that attempt, or with the error if Redis does not answer.
func (e *Executor) adoptSpooled(ctx context.Context, f *follower) (ended bool, err error) {
	spooled, err := e.loadSpooledOutcome(ctx, f.claim)
	if spooled == nil || err != nil {
		return false, err
	}
	spooled.Outcome.Task = false // a follower has no task
	_, err = e.recordSpooledOutcome(ctx, f.attempt, *spooled)
	if errors.Is(err, store.ErrStale) { // the earlier attempt has another outcome, so make this one
		return false, nil
	}
	f.final = err == nil && spooled.Outcome.Status.Final()
	return true, nil // if it was not recorded, its lease expires
}

// decideFollower is decideOutcome for a follower, which has no task of its own. It clears Moved, because the outcome of
// the leader already reports that the endpoint may have moved.
func (e *Executor) decideFollower(f *follower) decision {
	d := e.decideOutcome(f.attempt, f.failure)
	d.Task, d.Anew, d.Moved = false, false, false
	return d
}

// recordFollowers records the followers' outcomes concurrently. The caller waits for the returned WaitGroup.
func (e *Executor) recordFollowers(ctx context.Context, a *attempt) *sync.WaitGroup {
	recording := &sync.WaitGroup{}
	if a.batch == nil {
		return recording
	}
	for _, f := range a.batch.members {
		if a.auth != nil { // each follower's copy of the leader's authorization after the call
			auth := *a.auth
			auth.Subject = f.subject()
			f.auth = &auth
		}
		f.decided = e.decideFollower(f)
	}
	for _, f := range append(a.batch.failed, a.batch.members...) {
		recording.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					e.Logger.Error("recording a delivery panicked; its lease brings it back", "delivery", f.claim.ID,
						"panic", v, "stack", string(debug.Stack()))
				}
			}()
			if _, err := e.recordOutcome(ctx, f.attempt, f.decided, e.Ledger.Record); err != nil {
				e.Logger.Warn("what became of a delivery of a batch is not recorded; its lease brings it back",
					"delivery", f.claim.ID, "error", err)
			}
		})
	}
	return recording
}

// ensureFollowersLeases extends the leases of the followers if they would end before a call with this timeout. That
// happens only to a call after a token refresh, which begins later; composeBatch has checked the leases for the first
// call.
func (e *Executor) ensureFollowersLeases(ctx context.Context, a *attempt, timeout time.Duration) error {
	if !a.inBatch() || a.batch.members[0].lease.left(e.Now()) >= timeout+e.LeaseMargin {
		return nil // all followers have the same lease
	}
	for _, f := range a.batch.members {
		if err := e.ensureLease(ctx, f.claim, &f.lease, timeout); err != nil {
			return err
		}
	}
	return nil
}

// giveBackTimeout bounds giveBack. After a timeout, the leases expire instead.
const giveBackTimeout = 10 * time.Second

// giveBack releases the claims of followers that were in no call, at no cost of an attempt.
func (e *Executor) giveBack(ctx context.Context, back []*follower) {
	if len(back) == 0 {
		return
	}
	given := make([]store.Follower, len(back))
	for i, f := range back {
		given[i] = f.given
		f.spans.endAttempt(decision{verdict: retry.Verdict{Text: "given back"}}, nil, e.Now)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	if err := e.Followers.GiveBack(ctx, given); err != nil {
		e.Logger.Warn(fmt.Sprintf("%d deliveries that went in no call keep their claims until these run out", len(back)),
			logging.About(logging.Postgres), "error", err)
	}
}
