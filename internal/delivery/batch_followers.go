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
	// followerPatience is how long a batch waits for its followers to be checked and their files to be fetched, while it
	// holds a permit. Who is not ready is given back, and has more time when its turn comes to lead.
	followerPatience = 5 * time.Second
	// followersAtOnce bounds how many are checked at a time.
	followersAtOnce = 8
)

// follower is an attempt that goes in another one's call.
type follower struct {
	*attempt
	given store.Follower

	size    int   // of the arguments, in bytes of JSON
	failure error // nil: it can go in the call, or was delivered by it
	back    bool  // it cannot go, through no fault of its own: it is given back
	ended   bool  // what an earlier attempt led to was found and recorded
	final   bool  // with that it is over

	fetching time.Duration // its file
	decided  decision
}

// claimFollowers takes what can go in the leader's call, with leases that outlast getting ready and the call.
func (e *Executor) claimFollowers(ctx context.Context, a *attempt, n int) (all []*follower) {
	began := e.Now()
	held := lease{began, e.Lease + followerPatience}
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
				stage: stage{name: "claim"}}}
		f.spans = e.beginSpans(f.attempt)
		e.traceStep(f.attempt, "claim", "", g.Err, began)
		all = append(all, f)
	}
	return all
}

// prepareFollowers does with each follower what comes before its call, some at a time, for as long as the batch waits.
func (e *Executor) prepareFollowers(ctx context.Context, a *attempt, tool mcpcall.Tool, all []*follower) {
	patience, cancel := context.WithTimeout(ctx, followerPatience)
	defer cancel()
	var working sync.WaitGroup
	room := make(chan struct{}, followersAtOnce)
	var bytes atomic.Int64 // of the arguments that are ready: what comes after enough of them is not even fetched
	for _, f := range all {
		room <- struct{}{}
		working.Go(func() {
			defer func() { <-room }()
			if bytes.Load() >= maxBatchBytes {
				f.back = true
				return
			}
			if f.failure == nil {
				f.failure = e.prepareFollower(patience, a, f, tool)
			}
			if bytes.Add(int64(f.size)) > maxBatchBytes {
				f.back, f.call.arguments = true, nil
			}
			f.back = f.back || f.failure != nil && patience.Err() != nil
			f.file.Content = nil // it is in the arguments
		})
	}
	working.Wait()
	for _, f := range all {
		if f.fetching > 0 && wantsFile(f.claim.Job) {
			a.effort.hold.Spend(effort.Fetches, 1, f.fetching) // at the expense of the one agent
		}
	}
}

// prepareFollower takes a follower to where it only has to be called. Its agent is where the leader's is.
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
	if err != nil { // the agent's other tool may take it
		f.back = true
		return err
	}
	f.size = len(fitted.Sent)
	f.call = preparedCall{tool: tool.Name, arguments: fitted.Arguments, sanitized: fitted.Cleaned,
		recorded: store.KeepSide(fitted.Sent)}
	return nil
}

// adoptSpooled records what an earlier attempt is known to have led to, if Redis has that.
func (e *Executor) adoptSpooled(ctx context.Context, f *follower) (ended bool, err error) {
	spooled, err := e.loadSpooledOutcome(ctx, f.claim)
	if spooled == nil || err != nil {
		return false, err
	}
	spooled.Outcome.Task = false // it has none
	_, err = e.recordSpooledOutcome(ctx, f.attempt, *spooled)
	if errors.Is(err, store.ErrStale) { // that attempt ended otherwise, so this one is made
		return false, nil
	}
	f.final = err == nil && spooled.Outcome.Status.Final()
	return true, nil // what is not recorded comes back with its lease
}

// decideFollower is decideOutcome for a delivery without a task. What its failure says of the endpoint, the leader's
// says once.
func (e *Executor) decideFollower(f *follower) decision {
	d := e.decideOutcome(f.attempt, f.failure)
	d.Task, d.Anew, d.Moved = false, false, false
	return d
}

// recordFollowers records what became of a batch's followers, each by itself; who waits for it knows that it is done.
func (e *Executor) recordFollowers(ctx context.Context, a *attempt) *sync.WaitGroup {
	recording := &sync.WaitGroup{}
	if a.batch == nil {
		return recording
	}
	for _, f := range a.batch.members {
		if a.auth != nil { // each what the leader had, as it is after the call
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

// ensureFollowersLeases makes sure that the claims of all that go in a call outlast it. The first call has been seen to;
// one after a token was refreshed comes later.
func (e *Executor) ensureFollowersLeases(ctx context.Context, a *attempt, timeout time.Duration) error {
	if !a.inBatch() || a.batch.members[0].lease.left(e.Now()) >= timeout+e.LeaseMargin {
		return nil // they have one lease in common
	}
	for _, f := range a.batch.members {
		if err := e.ensureLease(ctx, f.claim, &f.lease, timeout); err != nil {
			return err
		}
	}
	return nil
}

// giveBackTimeout bounds giving back: one statement, or the leases do it.
const giveBackTimeout = 10 * time.Second

// giveBack ends the claims of followers that no agent has looked at.
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
