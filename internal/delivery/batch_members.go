package delivery

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/delivery/content"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/store/ledger"
)

const (
	// memberTimeout bounds the checks and file fetches of all members of a batch together, because the leader has a
	// permit and waits for them. The claim of a member that is not ready in time is released; the delivery is called
	// later.
	memberTimeout = 5 * time.Second
	// membersAtOnce bounds the members of a batch that are prepared concurrently.
	membersAtOnce = 8
	// maxMemberFetches bounds the files that the members of all batches of the process fetch concurrently. Members have
	// no slots, so nothing else bounds the memory for their files, each of which may have Config.FetchLimit bytes.
	maxMemberFetches = 8
	// memberFetchWait is how long a member waits for its fetch to begin. Then it leaves the batch: the leader has a
	// slot and a permit, and files of other agents may be slow.
	memberFetchWait = 200 * time.Millisecond
)

// member is the attempt of a delivery that was claimed for the batch of another delivery, the leader.
type member struct {
	*attempt
	given ledger.Member

	size    int   // of the arguments, in bytes of JSON
	failure error // why the attempt failed, before or in the call; nil: it did not fail
	back    bool  // it is not in the call, and failure does not count; its claim is released

	fetching time.Duration // duration of the fetch of its file
	decided  decision
}

// claimMembers claims up to n more deliveries of the agent for the batch of the leader a. Their leases are long
// enough for the preparation and the call. If Postgres fails, it logs the error and returns the deliveries that were
// claimed, usually none.
func (e *Executor) claimMembers(ctx context.Context, a *attempt, n int) (all []*member) {
	held := lease{e.Now(), e.Lease + memberTimeout}
	try, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	given, err := e.Members.ClaimMembers(try, a.claim, n, held.length)
	if err != nil && ctx.Err() == nil {
		e.Logger.Warn("nothing can be claimed to go in one call with a delivery", logging.About(logging.Postgres),
			"delivery", a.claim.ID, "error", err)
	}
	for _, g := range given {
		g.Epoch = min(g.Epoch, a.claim.Epoch) // the call has the leader's credential; a newer one may be stored
		all = append(all, &member{given: g, failure: g.Err, attempt: e.beginAttempt(g.Claim, a.server, held, g.Err)})
	}
	return all
}

// prepareMembers calls prepareMember for each of these deliveries, at most membersAtOnce at a time, within
// memberTimeout. It sets back (member.back) for deliveries that are not ready in time, and for those whose
// arguments exceed maxBatchBytes together with the arguments that are ready already.
func (e *Executor) prepareMembers(ctx context.Context, a *attempt, tool mcpcall.Tool, all []*member) {
	limited, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	var working sync.WaitGroup
	room := make(chan struct{}, membersAtOnce)
	var bytes atomic.Int64 // size of the arguments that are ready; once it is maxBatchBytes, no more files are fetched
	for _, f := range all {
		room <- struct{}{}
		working.Go(func() {
			defer func() { <-room }()
			if bytes.Load() >= maxBatchBytes {
				f.back = true
				return
			}
			if f.failure == nil {
				f.failure = e.prepareMember(limited, a, f, tool)
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
		if f.fetching > 0 && content.IsWanted(f.claim.Job) {
			a.pass.Spend(effort.Fetches, 1, f.fetching) // members use the budget of the leader's agent
		}
	}
}

// prepareMember runs the steps of the delivery f that precede the call. It uses the endpoint of the leader a, because
// both have the same agent. tool is the batch tool. If prepareMember sets f.back, the returned error is no failure of
// the delivery, and the caller releases the claim.
func (e *Executor) prepareMember(ctx context.Context, a *attempt, f *member, tool mcpcall.Tool) (err error) {
	defer func() {
		if v := recover(); v != nil || err != nil {
			err = e.endStages(f.attempt, err, v)
		}
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	spooled, err := e.loadSpooledOutcome(ctx, f.claim)
	if err != nil {
		return err
	}
	if f.back = spooled != nil; f.back { // the attempt of its own task records that outcome
		return errors.New("the outcome of its earlier attempt is known")
	}
	if err = e.checkDelivery(ctx, f.attempt); err != nil {
		return err
	}
	// The check may have chosen a job with another action (tool, endpoint, template) than the leader's.
	if f.back = f.claim.Job.ActionSum() != a.claim.Job.ActionSum(); f.back {
		return errors.New("the delivery has another action than the batch")
	}

	e.beginStage(f.attempt, "resolve")
	f.endpoint = a.endpoint

	e.beginStage(f.attempt, "fetch")
	if content.IsWanted(f.claim.Job) {
		if err = a.pass.CheckFiles(effort.Fetches); err != nil {
			f.back = true
			return err
		}
		select {
		case e.memberFetches <- struct{}{}:
			defer func() { <-e.memberFetches }() // after the file was fitted, which takes memory too
		case <-time.After(memberFetchWait):
			f.back = true
			return errors.New("the members of other batches fetch files")
		}
	}
	began := e.Now()
	f.file, err = e.files.Fetch(ctx, f.claim, nil)
	f.fetching = e.Now().Sub(began)
	if err != nil {
		return err
	}

	e.beginStage(f.attempt, "connect") // takes no time, because the leader has connected to the agent
	e.beginStage(f.attempt, "compose")
	fitted, err := e.fitItem(ctx, f.attempt, tool)
	if err != nil { // the tool for one feedback, in a call with this delivery alone, may accept the arguments
		f.back = true
		return err
	}
	f.size = len(fitted.Sent)
	f.call = preparedCall{tool: tool.Name, arguments: fitted.Arguments, sanitized: fitted.Cleaned,
		recorded: ledger.KeepSide(fitted.Sent)}
	return nil
}

// decideMember returns the outcome of the batch member f (decideOutcome), with three fields of the outcome cleared.
// Task and Anew are false, because f has no task in Redis. Moved is false, because the leader's outcome already says
// that the endpoint may have moved.
func (e *Executor) decideMember(f *member) decision {
	d := e.decideOutcome(f.attempt, f.failure)
	d.Task, d.Anew, d.Moved = false, false, false
	return d
}

// recordMembers starts to record, concurrently, the outcomes of all members of the batch of the leader a. The members
// that failed before the call are among them. The caller waits for the returned WaitGroup.
func (e *Executor) recordMembers(ctx context.Context, a *attempt) *sync.WaitGroup {
	recording := &sync.WaitGroup{}
	if a.batch == nil {
		return recording
	}
	for _, f := range a.batch.members {
		if a.auth != nil { // a copy of the leader's authorization for each member
			auth := *a.auth
			auth.Subject = f.subject()
			f.auth = &auth
		}
	}
	for i, f := range append(a.batch.failed, a.batch.members...) {
		recording.Go(func() {
			defer func() {
				if v := recover(); v != nil {
					e.Logger.Error("recording a delivery panicked; its lease brings it back", "delivery", f.claim.ID,
						"panic", v, "stack", string(debug.Stack()))
				}
			}()
			if i >= len(a.batch.failed) { // sortMembers has decided the outcomes of the others
				f.decided = e.decideMember(f)
			}
			if _, err := e.recordOutcome(ctx, f.attempt, f.decided, e.Ledger.Record); err != nil {
				e.Logger.Warn("what became of a delivery of a batch is not recorded; its lease brings it back",
					"delivery", f.claim.ID, "error", err)
			}
		})
	}
	return recording
}

// ensureMemberLeases extends the leases of the batch's members if they would expire during a call with this timeout.
// It returns the error of the first that cannot be extended. composeBatch checked the leases for the first call, so
// usually only a second call, after a token refresh, needs this. While it waits for Postgres, the lease of the leader a
// may become too short, which is an error too.
func (e *Executor) ensureMemberLeases(ctx context.Context, a *attempt, timeout time.Duration) error {
	if !a.inBatch() || a.batch.members[0].lease.timeLeft(e.Now()) >= timeout+e.LeaseMargin {
		return nil // all have the same lease
	}
	for _, f := range a.batch.members {
		if err := e.ensureLease(ctx, f.claim, &f.lease, timeout); err != nil {
			return err
		}
	}
	if left := a.lease.timeLeft(e.Now()); left < timeout {
		return fmt.Errorf("make sure of the leases before the call: of the leader's %s is left", left)
	}
	return nil
}

// giveBackTimeout bounds the statement of giveBack. If the statement fails, the claims end when their leases expire.
const giveBackTimeout = 10 * time.Second

// giveBack releases the claims of deliveries that were in no call, or in a call that the agent refused or did not
// receive. Their attempts do not count. It logs a failure.
func (e *Executor) giveBack(ctx context.Context, back []*member) {
	if len(back) == 0 {
		return
	}
	given := make([]ledger.Member, len(back))
	for i, f := range back {
		given[i] = f.given
		f.spans.End("", "", true, nil, e.Now())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	if err := e.Members.GiveBack(ctx, given); err != nil {
		e.Logger.Warn(text.Count(len(back), "delivery that went in no call keeps its claim until it runs out",
			"deliveries that went in no call keep their claims until these run out"),
			logging.About(logging.Postgres), "error", err)
	}
}
