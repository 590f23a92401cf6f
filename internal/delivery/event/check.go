package event

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

const (
	// minConfirmationPause and maxConfirmationPause bound the wait after which a delivery checks again whether its
	// event is confirmed.
	minConfirmationPause = 500 * time.Millisecond
	maxConfirmationPause = 5 * time.Minute
	// maxUndatedWait bounds the wait for a job's block that is above the chain's head, if the head is old. An old head
	// does not show whether the node is behind or the chain makes no blocks (chain.Standing.Undated). When
	// maxUndatedWait has passed since the job was accepted, the event counts as not found.
	maxUndatedWait = time.Hour
	// maxUnseenWait bounds the wait for an event that the node does not know (isUnseen): the node may lag behind the
	// node of the job's sender. The pauses begin with minUnseenPause and grow, because each check of a false job costs
	// a search.
	maxUnseenWait  = time.Minute
	minUnseenPause = 2 * time.Second
	// maxUnlistedWait bounds the wait for a worker whose settings list the registry of an event that Herald has read.
	// The pauses may be short, because such a check asks no node.
	maxUnlistedWait  = time.Hour
	maxUnlistedPause = 10 * time.Second
)

// Ledger is the part of *store.Store that the checks use.
type Ledger interface {
	Hints(ctx context.Context, c *ledger.Claim) ([]ledger.Hint, error)
	Bind(ctx context.Context, c *ledger.Claim, b ledger.Binding) error
	Delivery(ctx context.Context, id uuid.UUID) (ledger.Delivery, error)
	DeliveryByKey(ctx context.Context, key string) (ledger.Delivery, error)
}

// Chain checks events on one chain.
type Chain interface {
	Check(ctx context.Context, j job.Job, v chain.Verify) (chain.Standing, error)
}

// Keys encrypts (Seal) and decrypts (Open) a job's secret headers, and spooled outcomes.
type Keys interface {
	Seal(plain []byte, b secret.Binding) ([]byte, error)
	Open(cipher []byte, b secret.Binding) ([]byte, error)
}

// Checker checks the events of deliveries. It is safe for concurrent use. All fields are required.
type Checker struct {
	Ledger Ledger
	Chain  func(chainID uint64) (Chain, bool) // false: the chain has no RPC URL
	Verify chain.Verify                       // the check that an event must pass
	Keys   Keys
	// CountCorrected counts a field of a job that the event on the chain contradicts.
	CountCorrected func(field string)
}

// Result contains the results of Checker.Check, except its error.
type Result struct {
	Undecided bool         // the event is in no block or not confirmed, or a new hint arrived during the check
	Rerouted  bool         // the event has another agent or ordering key than the row had, so the row was changed
	Refuted   []int        // ranks (ledger.Hint.Rank) of the hints that the check refuted
	Gone      *ledger.Gone // not nil: the chain no longer has the event, and the delivery must not get another one
	Detail    string       // for display: the result of the check as a phrase

	unlisted bool // a hint was refuted although no node was asked (chain.Standing.Unlisted)
}

// Check reads the event of the claimed delivery from the chain and replaces claim.Job by it (bindEvent). It returns nil
// if the event is confirmed and not revoked. A retraction must also pass confirmRetraction. Check writes its other
// results to r as it finds them, so r has them even after a panic.
//
// While Check asks the chain, it needs group permits of pass if the node is slow (admission.Pass.AdmitCheck). If a
// group has no free slot, the error is a free wait (agent_busy).
//
// If the chain has no RPC URL, or with HERALD_VERIFY_EVENT=off, no event is read, and the delivery is bound to its own
// job. If there is no RPC URL and several jobs of the event contradict each other, the error has the reason
// chain_unconfigured.
//
// If a reorg gave the delivery's key to another event before the claim, the delivery ends (Result.Gone), unless an
// operator replayed it. If its event returns to the chain, the follower gives it another delivery.
func (c *Checker) Check(ctx context.Context, claim *ledger.Claim, pass *admission.Pass, r *Result) error {
	r.Detail = "not asked"
	if claim.HasLostKey() && !claim.Replay {
		r.Gone = &ledger.Gone{}
		return outcome.Fail(outcome.EventNotFound, "a reorg gave the key of this delivery to another event")
	}
	client, ok := c.Chain(claim.Job.ChainID)
	isOff := !ok || c.Verify == chain.VerifyOff
	switch {
	case !ok && claim.Verified && !claim.Bound && claim.Hints > 0:
		return outcome.Fail(outcome.ChainUnconfigured, fmt.Sprintf("the jobs of this event differ, and only the "+
			"chain can decide between them: set RPC_URL_%d", claim.Job.ChainID))
	case isOff && claim.Verified && !claim.Bound:
		if err := c.bindEvent(ctx, claim, r,
			ledger.Binding{Job: claim.Job, SealedHeaders: claim.SealedHeaders, Source: claim.Source}); err != nil {
			return err
		}
	}
	switch {
	case isOff && claim.Job.IsRetraction():
		_, err := c.confirmRetraction(ctx, claim, true)
		return err
	case isOff:
		return nil
	}

	hints, err := c.listHints(ctx, claim)
	if err != nil {
		return err
	}
	// The agent may know the event, or the other event with its key has a delivery of its own.
	keepsEvent := claim.Called || claim.HasLostKey()
	// A node that has read the event before does not lag behind the sender's node. A retraction is bound without an
	// event, while the block that it names is not confirmed.
	patient := !keepsEvent && (!claim.Bound || claim.Job.IsRetraction())
	s, err := c.findAdmitted(ctx, client, claim, pass, hints, patient, r)
	r.Undecided = s.Event == nil
	var failed *outcome.Failure
	isFailed := errors.As(err, &failed)
	age := claim.StartedAt.Sub(claim.CreatedAt)
	switch {
	case isFailed && r.unlisted && (claim.Bound || claim.Job.Retracts != "") && age < maxUnlistedWait:
		// Another worker's settings list the registry, for example because it was restarted with new ones.
		r.Refuted = nil
		return outcome.Pause(outcome.NotConfirmed, min(max(age, minUnseenPause), maxUnlistedPause),
			failed.Text+". Herald has read this event with other settings")
	case isFailed && failed.Reason == outcome.MinedAgain:
		return c.checkMinedAgain(ctx, claim, r, failed)
	case keepsEvent && isFailed && failed.Reason == outcome.EventNotFound:
		// Only the receipt of its transaction shows that the event is gone.
		if claim.Job.TransactionHash != (common.Hash{}) && !r.unlisted {
			r.Gone = &ledger.Gone{}
		}
		return err
	case err != nil:
		return err
	case keepsEvent && !isEventOf(claim, *s.Event):
		r.Gone = &ledger.Gone{Next: s.Event}
		return outcome.Fail(outcome.EventNotFound, "the chain has another event with this key")
	}
	b, sender := chooseAction(claim, *s.Event, hints)
	if err := c.resealHeaders(&b, sender); err != nil {
		return err
	}
	if err := c.bindEvent(ctx, claim, r, b); err != nil {
		return err
	}
	switch {
	case s.Revoked && claim.Job.Kind == job.KindNewFeedback:
		return outcome.Fail(outcome.Revoked, "the client revoked this feedback before it was delivered")
	case !s.Confirmed:
		r.Undecided = true
		return outcome.Pause(outcome.NotConfirmed, findConfirmationPause(s.Wait), describeMissing(s))
	case claim.Job.IsRetraction():
		stored := claim.Job.Retracts
		if r.Detail, err = c.confirmRetraction(ctx, claim, s.Witnessed); err == nil && claim.Job.Retracts != stored {
			// The ledger needs the id of the retracted delivery, whose event may return to the chain.
			b.Job.Retracts, claim.Job.Retracts = claim.Job.Retracts, stored
			err = c.bindEvent(ctx, claim, r, b)
		}
		return err
	}
	r.Detail = "event found and confirmed"
	return nil
}

// checkMinedAgain checks a retraction whose event is on the chain again. It returns refusal, the error that ends the
// retraction, unless the event has a new delivery. Then the agent must forget the old one, so the retraction is sent.
// For maxUnseenWait it returns a wait instead of refusal: the node may lag behind that of the chain follower.
func (c *Checker) checkMinedAgain(
	ctx context.Context, claim *ledger.Claim, r *Result, refusal *outcome.Failure,
) error {
	d, err := c.loadRetracted(ctx, claim.Job)
	switch {
	case errors.Is(err, ledger.ErrNotFound), err == nil && !d.HasLostKey():
		age := claim.StartedAt.Sub(claim.CreatedAt)
		if claim.Called || age >= maxUnseenWait {
			return refusal
		}
		r.Refuted = nil
		return pauseUnseen(age, refusal.Text)
	case err != nil:
		return fmt.Errorf("looking for the feedback that is retracted: %w", err)
	}
	r.Undecided, r.Refuted = false, nil
	r.Detail, err = c.confirmRetraction(ctx, claim, true)
	return err
}

// isEventOf reports whether event, which was read from the chain, is the event that the claim's agent got or may have
// got. A claim that is called and not bound is of a job that was accepted when no worker verified its chain.
func isEventOf(claim *ledger.Claim, event job.Job) bool {
	if claim.Bound {
		return event.SameEvent(claim.Job)
	}
	return claim.Job.NamesEvent(event)
}

// Review reads the event of the delivery under review from the chain again. next is the confirmed event that the chain
// has with the same key, or nil if it has none. decided is false if the chain has no RPC URL, events are not verified,
// the node does not answer, the event is not confirmed yet, the node may lag behind a recent hint
// (ledger.Review.Recent), or the settings do not list the registry of a hint that is not older than maxUnlistedWait.
// Then the delivery must be reviewed again later.
func (c *Checker) Review(ctx context.Context, l ledger.Review) (next *job.Job, decided bool) {
	client, ok := c.Chain(l.Job.ChainID)
	if !ok || c.Verify == chain.VerifyOff {
		return nil, false
	}
	hints := append([]ledger.Hint{{Rank: -1, Job: l.Job}}, l.Hints...)
	var r Result
	now := time.Now() // this machine's clock will do: hints are compared only with maxUndatedWait and maxUnlistedWait
	s, err := c.findEvent(ctx, client, hints, now, false, &r)
	var failed *outcome.Failure
	switch notFound := errors.As(err, &failed) && failed.Reason == outcome.EventNotFound; {
	case r.unlisted && now.Sub(hints[len(hints)-1].CreatedAt) < maxUnlistedWait: // the last hint is the newest
		return nil, false
	case err != nil:
		return nil, notFound && !l.Recent
	case !s.Confirmed, l.Recent && s.Event.SameEvent(l.Job):
		return nil, false
	}
	return s.Event, true
}

// listHints returns the hints of the delivery's event, in the order in which findEvent tries them: first those that
// Herald itself read from the chain (ledger.TrustChain), then all others. Stored hints of a group are sorted by rank.
// The row's own job (Rank -1) precedes the stored hints of its group. If the row is not bound and has stored hints, its
// own job is omitted, because it is the first stored hint.
func (c *Checker) listHints(ctx context.Context, claim *ledger.Claim) (list []ledger.Hint, err error) {
	if claim.Hints > 0 {
		if list, err = c.Ledger.Hints(ctx, claim); err != nil {
			return nil, fmt.Errorf("read where the event may be: %w", err)
		}
	}
	if claim.Bound || len(list) == 0 {
		own := ledger.Hint{Rank: -1, Job: claim.Job, SealedHeaders: claim.SealedHeaders, Source: claim.Source,
			CreatedAt: claim.CreatedAt}
		list = append([]ledger.Hint{own}, list...)
	}
	slices.SortStableFunc(list, func(a, b ledger.Hint) int { // hints that a follower read come first
		return cmp.Compare(min(a.Source.Trust, ledger.TrustOrdinary), min(b.Source.Trust, ledger.TrustOrdinary))
	})
	return list, nil
}

// findAdmitted calls findEvent with the context of pass.AdmitCheck. Check does not use the ledger with that context:
// Postgres may be slow too, and a cancelled statement closes its connection.
func (c *Checker) findAdmitted(ctx context.Context, client Chain, claim *ledger.Claim, pass *admission.Pass,
	hints []ledger.Hint, patient bool, r *Result) (chain.Standing, error) {
	checking, release := pass.AdmitCheck(ctx, claim.Job.ChainID)
	defer release()
	s, err := c.findEvent(checking, client, hints, claim.StartedAt, patient, r)
	if err != nil && checking.Err() != nil && ctx.Err() == nil {
		err = context.Cause(checking)
	}
	return s, err
}

// findEvent asks the chain for the event at each of the hints, in their order, and returns the first event that is in a
// block. It skips hints that an earlier check refuted, unless all are refuted. It appends the ranks of the hints that
// this check refutes to r.Refuted.
//
// If the check refutes all hints, the event may be in another transaction than they name. So findEvent searches the
// chain for the event's key, if the first hint names a transaction. If Herald itself read this hint from the chain
// (ledger.TrustChain), findEvent first searches around the hint's block: a node may have the logs of an old block but
// no index of its transactions. It never searches for a retraction, or for a key that contains the event's transaction
// (job.Job.HasPositionKey).
//
// If no event is in a block, the error is a wait if the event may still appear at a hint, the node's error if the node
// failed, and otherwise the error of refuseEvent. If the event at a hint is no valid job, the reason is invalid_job.
// With patient, findEvent does not refute a hint that arrived less than maxUnseenWait ago and whose event is unseen. It
// waits for the event. now is the time by Postgres' clock, which dates the hints: the clock of this machine may differ
// by more than maxUnseenWait.
func (c *Checker) findEvent(ctx context.Context, client Chain, hints []ledger.Hint, now time.Time, patient bool,
	r *Result) (chain.Standing, error) {
	open := slices.DeleteFunc(slices.Clone(hints), func(h ledger.Hint) bool { return h.Refuted })
	if len(open) == 0 {
		open = hints
	}
	var waits, away, unseen, refused error
	for _, h := range open {
		s, err := client.Check(ctx, h.Job, c.Verify)
		var invalid *job.Refusal
		age := now.Sub(h.CreatedAt)
		outwaited := s.Pending && s.Undated && age >= maxUndatedWait
		switch {
		case errors.As(err, &invalid):
			return s, outcome.Fail(outcome.InvalidJob, "the event on the chain is no valid job: "+invalid.Error())
		case err != nil: // try the other hints: a job may choose a query that this node never answers
			away = cmp.Or(away, err)
		case s.Found && !s.Pending:
			return s, nil
		case s.Found && !outwaited:
			// The transaction may never be mined, so the nodes are asked less and less often.
			pause := findConfirmationPause(max(s.Wait, age/10))
			waits = cmp.Or(waits, outcome.Pause(outcome.NotConfirmed, pause, describeMissing(s)))
		case patient && isUnseen(h.Job, s) && age < maxUnseenWait:
			unseen = cmp.Or(unseen, pauseUnseen(age, describeRefusal(h.Job, s)))
		default:
			r.Refuted, r.unlisted = append(r.Refuted, h.Rank), r.unlisted || s.Unlisted
			refused = cmp.Or(refused, refuseEvent(h.Job, s, outwaited))
		}
	}
	if err := cmp.Or(waits, away); err != nil {
		return chain.Standing{}, err
	}
	if j := open[0].Job; !j.HasPositionKey() && !j.IsRetraction() && j.TransactionHash != (common.Hash{}) {
		searches := []uint64{0} // the newest blocks
		if open[0].Source.Trust == ledger.TrustChain && j.BlockNumber > 0 {
			searches = []uint64{j.BlockNumber, 0}
		}
		j.TransactionHash, j.BlockHash, j.LogIndex = common.Hash{}, common.Hash{}, nil
		for _, block := range searches {
			j.BlockNumber = block
			if s, err := client.Check(ctx, j, c.Verify); err != nil || s.Found && !s.Pending {
				return s, err
			}
		}
	}
	return chain.Standing{}, cmp.Or(unseen, refused)
}

// isUnseen reports whether a node that lags behind the node of the job's sender could have answered s, the result of
// checking the job j. The job names no block, and the node does not know its transaction, or a search up to the node's
// newest block found nothing. Or a sender's retraction names a block that the node has not replaced.
func isUnseen(j job.Job, s chain.Standing) bool {
	return s.Unseen || j.BlockNumber == 0 && s.SearchedTo > 0 ||
		j.IsRetraction() && j.Retracts == "" && s.Disagrees == "blockHash"
}

// pauseUnseen returns the wait for an event that the node does not know, or for a reorg. age is the job's age, and why
// describes the node's answer.
func pauseUnseen(age time.Duration, why string) error {
	pause := max(minUnseenPause, min(age, maxUnseenWait-age)) // doubles the age, or ends the wait
	return outcome.Pause(outcome.NotConfirmed, pause, why+": the node may lag behind")
}

// findConfirmationPause returns how long a delivery waits before it checks its event again: the time until the chain is
// expected to confirm the event (expected), but at least minConfirmationPause and at most maxConfirmationPause.
func findConfirmationPause(expected time.Duration) time.Duration {
	return min(max(expected, minConfirmationPause), maxConfirmationPause)
}
