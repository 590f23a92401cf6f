package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
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
)

// findConfirmationPause returns how long a delivery waits before it checks its event again: the time until the chain is
// expected to confirm the event (expected), but at least minConfirmationPause and at most maxConfirmationPause.
func findConfirmationPause(expected time.Duration) time.Duration {
	return min(max(expected, minConfirmationPause), maxConfirmationPause)
}

// describeMissing returns a text for the operator: why an event is not confirmed yet. s is the result of checking the
// event on the chain.
func describeMissing(s chain.Standing) string {
	if s.Unnamed != "" {
		return fmt.Sprintf("the chain's nodes name no %s block, which confirms the event: if they never do, set "+
			"HERALD_CONFIRMATIONS to a duration, and HERALD_VERIFY_EVENT to receipt", s.Unnamed)
	}
	return fmt.Sprintf("the event's block needs %d more blocks on top, about %s", s.ConfirmedIn,
		s.Wait.Round(100*time.Millisecond))
}

// checkDelivery makes all checks that precede the first request to the agent. It returns the error of the first that
// fails, or nil:
//
//   - the chain has the event, confirmed and not revoked (checkEvent).
//   - no earlier attempt has an unknown outcome, or the agent's policy allows a second call (holdIfUnknown).
//   - no filter of the agent's policy skips the event (applyFilters).
//   - the delivery has the turn of its ordering key (checkTurn).
//   - the feedback to which the event refers reached the agent or still may (checkFeedback).
//   - the agent is enabled (outcome.Agent), and its policy does not pause its calls (checkPause).
//
// Before checkEvent, the job is only what its sender says. checkEvent replaces it by the event on the chain, so it
// comes first: the later checks rely on the job. An error of the second check replaces an error of the first, unless a
// reorg removed the event. So if the agent may have been called, the delivery is held even while no node answers.
func (e *Executor) checkDelivery(ctx context.Context, a *attempt) (err error) {
	e.beginStage(a, "check")
	err = e.checkEvent(ctx, a)
	if held := a.holdIfUnknown(); held != nil && a.event.gone == nil {
		return held
	}
	if err != nil {
		return err
	}
	if err = e.applyFilters(a); err != nil {
		return err
	}
	if err = checkTurn(a); err != nil {
		return err
	}
	if err = e.checkFeedback(ctx, a.claim); err != nil {
		return err
	}
	err = outcome.Agent{FileDisables: a.server.Disables(), Disabled: a.policy.Disables(),
		RowDisables: !a.claim.Enabled}.Judge()
	if err != nil {
		return err
	}
	return e.checkPause(a)
}

// checkPause returns a free wait (throttled) while the agent's policy pauses its calls. The wait is at most
// maxTaskWait, because a changed policy may end the pause earlier.
func (e *Executor) checkPause(a *attempt) error {
	left := a.policy.PauseUntil.Sub(e.Now())
	if left <= 0 {
		return nil
	}
	return outcome.Pause(outcome.Throttled, min(left, maxTaskWait),
		"the agent's policy pauses its calls until "+a.policy.PauseUntil.Format(time.RFC3339))
}

// applyFilters returns an error that skips the delivery (filtered) if a filter of the agent's policy skips the event.
// It returns nil for a replay, because an operator asked for it, and if the agent was or may have been called.
func (e *Executor) applyFilters(a *attempt) error {
	if a.claim.Replay || a.claim.Called {
		return nil
	}
	d, why := a.levels.SkipJob(a.claim.Job)
	if why != "" {
		e.Metrics.CountFiltered(d)
	}
	return outcome.Agent{Filter: why}.Judge()
}

// eventCheck contains the results of checkEvent and checkTurn, except their errors.
type eventCheck struct {
	undecided bool        // the event is in no block or not confirmed, or a new hint arrived during the check
	noTurn    bool        // the event is confirmed, but the delivery does not have the turn
	rerouted  bool        // the event has another agent or ordering key than the row had, so the row was changed
	refuted   []int       // ranks (store.Hint.Rank) of the hints that the check refuted
	gone      *store.Gone // not nil: the chain no longer has the event, and the delivery must not get another one
	detail    string      // for display: the result of the check as a phrase
}

// checkEvent reads the delivery's event from the chain and replaces a.claim.Job by it (bindEvent). It returns nil if
// the event is confirmed and not revoked. Some retractions must also pass confirmRetraction.
//
// If the chain has no RPC URL, or with HERALD_VERIFY_EVENT=off, no event is read, and the delivery is bound to its own
// job. If there is no RPC URL and several jobs of the event contradict each other, the error has the reason
// chain_unconfigured.
func (e *Executor) checkEvent(ctx context.Context, a *attempt) error {
	c := a.claim
	a.event.detail = "not asked"
	client, ok := e.Chain(c.Job.ChainID)
	switch {
	case !ok && c.Verified && !c.Bound && c.Hints > 0:
		return outcome.Fail(outcome.ChainUnconfigured, fmt.Sprintf("the jobs of this event differ, and only the "+
			"chain can decide between them: set RPC_URL_%d", c.Job.ChainID))
	case (!ok || e.Verify == chain.VerifyOff) && c.Verified && !c.Bound:
		return e.bindEvent(ctx, a, store.Binding{Job: c.Job, SealedHeaders: c.SealedHeaders, Source: c.Source})
	case !ok || e.Verify == chain.VerifyOff:
		return nil
	}

	hints, err := e.listHints(ctx, c)
	if err != nil {
		return err
	}
	s, err := e.findEvent(ctx, a, client, hints)
	a.event.undecided = s.Event == nil
	// The agent may know the event, or the other event with its key has a delivery of its own.
	keepsEvent := c.Called && c.Bound || c.HasLostKey()
	var failed *outcome.Failure
	switch {
	case keepsEvent && err != nil && errors.As(err, &failed) && failed.Reason == outcome.EventNotFound:
		a.event.gone = &store.Gone{}
		return err
	case err != nil:
		return err
	case keepsEvent && !s.Event.SameEvent(c.Job):
		a.event.gone = &store.Gone{Next: s.Event}
		return outcome.Fail(outcome.EventNotFound, "the chain has another event with this key")
	}
	b, sender := chooseAction(c, *s.Event, hints)
	if err := e.resealHeaders(&b, sender); err != nil {
		return err
	}
	if err := e.bindEvent(ctx, a, b); err != nil {
		return err
	}
	switch {
	case s.Revoked && c.Job.Kind == job.KindNewFeedback:
		return outcome.Fail(outcome.Revoked, "the client revoked this feedback before it was delivered")
	case !s.Confirmed:
		a.event.undecided = true
		return outcome.Pause(outcome.NotConfirmed, findConfirmationPause(s.Wait), describeMissing(s))
	case c.Job.IsRetraction() && (!s.Witnessed || c.Job.Retracts != ""):
		a.event.detail, err = e.confirmRetraction(ctx, c.Job)
		return err
	}
	a.event.detail = "event found and confirmed"
	return nil
}

// checkTurn returns nil if the delivery has the turn of its ordering key, or needs none (store.Claim.MayCall).
// Otherwise it returns a free wait (behind_earlier).
func checkTurn(a *attempt) error {
	if a.claim.MayCall {
		return nil
	}
	a.event.noTurn = true
	return outcome.Pause(outcome.BehindEarlier, minConfirmationPause,
		"an earlier delivery of this client has not ended: it goes first")
}

// listHints returns the hints of the delivery's event, in the order in which findEvent tries them: first those that
// Herald itself read from the chain (store.TrustChain), then all others. Stored hints of a group are sorted by rank.
// The row's own job (Rank -1) precedes the stored hints of its group. If the row is not bound and has stored hints, its
// own job is omitted, because it is the first stored hint.
func (e *Executor) listHints(ctx context.Context, c *store.Claim) (list []store.Hint, err error) {
	if c.Hints > 0 {
		if list, err = e.Ledger.Hints(ctx, c); err != nil {
			return nil, fmt.Errorf("read where the event may be: %w", err)
		}
	}
	if c.Bound || len(list) == 0 {
		own := store.Hint{Rank: -1, Job: c.Job, SealedHeaders: c.SealedHeaders, Source: c.Source,
			CreatedAt: c.CreatedAt}
		list = append([]store.Hint{own}, list...)
	}
	slices.SortStableFunc(list, func(a, b store.Hint) int { // hints that a follower read come first
		return cmp.Compare(min(a.Source.Trust, store.TrustOrdinary), min(b.Source.Trust, store.TrustOrdinary))
	})
	return list, nil
}

// findEvent asks the chain for the event at each of the hints, in their order, and returns the first event that is in a
// block. It skips hints that an earlier check refuted, unless all are refuted. It appends the ranks of the hints that
// this check refutes to a.event.refuted.
//
// If the check refutes all hints, the event may be in another transaction than they name. So findEvent searches the
// chain for the event's key, if the first hint names a transaction. It never searches for a retraction, or for a key
// that contains the event's transaction (job.Job.HasPositionKey).
//
// If no event is in a block, the error is a wait if the event may still appear at a hint, the node's error if the node
// failed, and otherwise the error of refuseEvent. If the event at a hint is no valid job, the reason is invalid_job.
func (e *Executor) findEvent(ctx context.Context, a *attempt, client Chain,
	hints []store.Hint) (chain.Standing, error) {
	open := slices.DeleteFunc(slices.Clone(hints), func(h store.Hint) bool { return h.Refuted })
	if len(open) == 0 {
		open = hints
	}
	var waits, away, refused error
	for _, h := range open {
		s, err := client.Check(ctx, h.Job, e.Verify)
		var invalid *job.Refusal
		outwaited := s.Pending && s.Undated && time.Since(h.CreatedAt) >= maxUndatedWait
		switch {
		case errors.As(err, &invalid):
			return s, outcome.Fail(outcome.InvalidJob, "the event on the chain is no valid job: "+invalid.Error())
		case err != nil: // try the other hints: a job may choose a query that this node never answers
			away = cmp.Or(away, err)
		case s.Found && !s.Pending:
			return s, nil
		case s.Found && !outwaited:
			waits = cmp.Or(waits, outcome.Pause(outcome.NotConfirmed, findConfirmationPause(s.Wait),
				describeMissing(s)))
		default:
			a.event.refuted = append(a.event.refuted, h.Rank)
			refused = cmp.Or(refused, refuseEvent(h.Job, s, outwaited))
		}
	}
	if err := cmp.Or(waits, away); err != nil {
		return chain.Standing{}, err
	}
	if j := open[0].Job; !j.HasPositionKey() && !j.IsRetraction() && j.TransactionHash != (common.Hash{}) {
		j.TransactionHash, j.BlockHash, j.BlockNumber, j.LogIndex = common.Hash{}, common.Hash{}, 0, nil
		if s, err := client.Check(ctx, j, e.Verify); err != nil || s.Found {
			return s, err
		}
	}
	return chain.Standing{}, refused
}

// refuseEvent returns the error for a job j whose event the chain does not have. The reason is mined_again for a
// retraction that names a delivery (job.Retracts), if the feedback is on the chain again. Otherwise it is
// event_not_found. s is the result of checking j on the chain. outwaited is true if the block that j names did not
// appear within maxUndatedWait.
func refuseEvent(j job.Job, s chain.Standing, outwaited bool) error {
	switch {
	case outwaited:
		return outcome.Fail(outcome.EventNotFound, fmt.Sprintf("the job's block %d is above the chain's newest, "+
			"which is old, and did not come within %s", j.BlockNumber, maxUndatedWait))
	case j.Retracts != "" && (s.Disagrees == "transactionHash" || s.Disagrees == "blockHash"):
		return outcome.Fail(outcome.MinedAgain, describeRefusal(j, s))
	}
	return outcome.Fail(outcome.EventNotFound, describeRefusal(j, s))
}

// chooseAction returns a store.Binding with the event and the action (tool, endpoint, headers, template) of one of the
// hints. A hint qualifies if its job names no transaction or the event's transaction. Of the hints that qualify,
// chooseAction takes the one with the most trusted source, and the first in hints if several are equal. sender is the
// job of that hint, or the event if no hint qualifies.
//
// b.Corrected lists the fields in which the job of a hint differs from the event. The row's own job is not compared if
// it is bound.
func chooseAction(c *store.Claim, event job.Job, hints []store.Hint) (b store.Binding, sender job.Job) {
	b, sender = store.Binding{Job: event, Source: store.Source{Name: store.SourceChain}}, event
	chosen := false
	for _, h := range hints {
		own := h.Rank < 0 && c.Bound
		if !own {
			for _, f := range h.Job.Differences(event) {
				if !slices.Contains(b.Corrected, f) {
					b.Corrected = append(b.Corrected, f)
				}
			}
		}
		isThere := h.Job.TransactionHash == (common.Hash{}) || h.Job.TransactionHash == event.TransactionHash
		if isThere && (!chosen || h.Source.Trust > b.Source.Trust) {
			chosen, sender = true, h.Job
			b.Job.Action, b.Job.Meta, b.SealedHeaders, b.Source = h.Job.Action, h.Job.Meta, h.SealedHeaders, h.Source
			b.Job.Retracts = h.Job.Retracts
		}
	}
	return b, sender
}

// bindEvent stores b as the job of the delivery, which binds the delivery, and updates the claim. The agent is called
// only with this job. If the claim is already bound to the same event and action, bindEvent does nothing.
//
// It returns a free wait (not_confirmed) if b has another agent or ordering key than the claim had, or if a new hint
// arrived during the check. The next attempt checks the event again.
func (e *Executor) bindEvent(ctx context.Context, a *attempt, b store.Binding) error {
	c := a.claim
	if c.Bound && b.Job.EventSum() == c.Job.EventSum() && b.Job.ActionSum() == c.Job.ActionSum() &&
		b.Source == c.Source &&
		(b.Corrected == nil || slices.Equal(b.Corrected, c.Corrected)) {
		return nil
	}
	agent, orderKey, corrected := c.Agent(), c.Job.OrderKey(), c.Corrected
	err := e.Ledger.Bind(ctx, c, b)
	if errors.Is(err, store.ErrNewHint) {
		a.event.undecided = true
		return outcome.Pause(outcome.NotConfirmed, minConfirmationPause, err.Error())
	}
	if err != nil {
		return err
	}
	for _, field := range b.Corrected {
		if !slices.Contains(corrected, field) {
			e.Metrics.corrected.WithLabelValues(field).Inc()
		}
	}
	if c.Agent() != agent || c.Job.OrderKey() != orderKey {
		a.event.rerouted = true
		return outcome.Pause(outcome.NotConfirmed, minConfirmationPause,
			"the event is of another agent than the job said")
	}
	return nil
}

// resealHeaders decrypts b.SealedHeaders and encrypts them again for the agent of the event. sender is the job that
// contained the headers; they were encrypted for sender's agent. If both agents are the same, or there are no headers,
// resealHeaders does nothing.
func (e *Executor) resealHeaders(b *store.Binding, sender job.Job) error {
	if b.SealedHeaders == nil || b.Job.Action.Endpoint == nil {
		return nil
	}
	from, to := sender.HeaderBinding(b.Job.Action.Endpoint.URL), b.Job.HeaderBinding(b.Job.Action.Endpoint.URL)
	if from == to {
		return nil
	}
	plain, err := e.Opener.Open(b.SealedHeaders, from)
	if err == nil {
		b.SealedHeaders, err = e.Sealer.Seal(plain, to)
	}
	if err != nil {
		return fmt.Errorf("seal the job's headers for the event's agent: %w", err)
	}
	return nil
}

// checkFeedback returns an error that skips a revocation or a response (never_delivered) if the delivery of its
// feedback ended without a call: the agent does not know that feedback. It does not check retractions.
//
// It returns nil if the feedback may have reached the agent, or still may. This is so in the following cases:
//   - Herald has no delivery of the feedback, or that delivery is open or delivered.
//   - All jobs of the feedback were false (event_not_found).
//   - One of its attempts may have called the agent, or retention deleted the attempts.
func (e *Executor) checkFeedback(ctx context.Context, c *store.Claim) error {
	if c.Job.Kind != job.KindResponseAppended && (c.Job.Kind != job.KindFeedbackRevoked || c.Job.IsRetraction()) {
		return nil
	}
	feedback := c.Job
	feedback.Kind = job.KindNewFeedback
	d, err := e.Ledger.DeliveryByKey(ctx, feedback.Key())
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("looking for the feedback that this is about: %w", err)
	case !d.Status.Final(), d.Status == store.Delivered, d.Reason == outcome.EventNotFound,
		len(d.History) == 0 && d.Attempts > 0, slices.ContainsFunc(d.History, mayHaveReachedAgent):
		return nil
	}
	return outcome.Fail(outcome.NeverDelivered, fmt.Sprintf("feedback %d, which this is about, ended without "+
		"a call: it is %s (%s)", c.Job.FeedbackIndex, d.Status, d.Reason))
}

// describeRefusal returns a text for the operator: why the event of job j is refused. s is the result of checking j on
// the chain.
func describeRefusal(j job.Job, s chain.Standing) string {
	switch {
	case s.Unlisted && s.Disagrees == "identityRegistry":
		return fmt.Sprintf("the identity registry that the emitting contract reports is not among those of chain %d: "+
			"if its agents are to be called, list it in IDENTITY_REGISTRY_%[1]d", j.ChainID)
	case s.Unlisted:
		variables := map[string]string{"reputationRegistry": "REPUTATION", "validationRegistry": "VALIDATION"}
		variable := variables[s.Disagrees]
		return fmt.Sprintf("the job's %s is not among the registries of chain %d: if its events are to count, "+
			"list it in %s_REGISTRY_%[2]d", s.Disagrees, j.ChainID, variable)
	case j.IsRetraction():
		return describeRetractionRefusal(j, s.Disagrees)
	case s.Disagrees == "":
		return "the chain has no such event"
	case j.TransactionHash != (common.Hash{}) && s.Disagrees == "transactionHash":
		return "the chain has no such transaction, or the transaction has no such event"
	case s.Disagrees != "transactionHash":
		return fmt.Sprintf("the event on the chain differs from the job in %s", s.Disagrees)
	case s.SearchedTo == 0:
		return "the job has no transactionHash, which is needed to find its event: " +
			"HERALD_LOG_RANGE is 0, or the node cannot search its logs, or not in time"
	}
	return fmt.Sprintf("blocks %d to %d have no such event, and the job has no transactionHash, "+
		"which is needed to find it elsewhere", s.SearchedFrom, s.SearchedTo)
}

// describeRetractionRefusal returns a text for the operator: why the retraction j is refused. field is the field of the
// job that the chain contradicts (chain.Standing.Disagrees).
func describeRetractionRefusal(j job.Job, field string) string {
	switch field {
	case "blockHash":
		return fmt.Sprintf("block %s, which the retraction says a reorg removed, is on the chain", j.BlockHash)
	case "transactionHash":
		return fmt.Sprintf("feedback %d is on the chain: its transaction was mined again in another block",
			j.FeedbackIndex)
	case "feedbackIndex":
		return fmt.Sprintf("the chain has a feedback %d of this client: name the transactionHash of the "+
			"one that is gone", j.FeedbackIndex)
	case "blockNumber":
		return "the retraction's blockNumber is missing, far above the chain's head, or not that of its block"
	}
	return fmt.Sprintf("the chain differs from the retraction in %s", field)
}

// runningPause is the free wait of a retraction while the delivery of its feedback is running. Only the outcome of that
// attempt shows whether the agent was called.
const runningPause = 5 * time.Second

// mayHaveReachedAgent reports whether attempt t may have called the agent: it ended in the stage call, or it has no
// outcome, because it is running or its worker died.
func mayHaveReachedAgent(t store.Attempt) bool { return t.Stage == "call" || t.Outcome == "" }

// confirmRetraction returns an error unless Herald may have called the agent with the feedback that the retraction j
// withdraws. Without an error, the result is a phrase for display. Two kinds of retraction need this check. The first
// names a delivery (job.Retracts). For the second, the node does not have the block that the reorg removed, so the
// chain cannot show that the feedback existed.
//
// While the delivery of the feedback is running, the error is a free wait (behind_earlier). If the agent was not
// called, the error ends the retraction: never_delivered if it names the delivery, otherwise event_not_found.
func (e *Executor) confirmRetraction(ctx context.Context, j job.Job) (string, error) {
	d, err := e.loadRetracted(ctx, j)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return "", fmt.Errorf("looking for the feedback that is retracted: %w", err)
	case d.Status == store.Running:
		return "", outcome.Pause(outcome.BehindEarlier, runningPause,
			"the feedback that it takes back is being delivered")
	case d.Status == store.Delivered || slices.ContainsFunc(d.History, mayHaveReachedAgent):
		return "the feedback that the agent received is no longer on the chain", nil
	}
	if err == nil && j.Retracts != "" {
		return "", outcome.Fail(outcome.NeverDelivered, fmt.Sprintf("feedback %d, which it takes back, "+
			"was never sent to the agent", j.FeedbackIndex))
	}
	return "", outcome.Fail(outcome.EventNotFound, fmt.Sprintf("nothing shows that feedback %d ever was: "+
		"the node does not have it in block %s, and Herald never sent it to the agent", j.FeedbackIndex, j.BlockHash))
}

// loadRetracted loads the delivery of the feedback that the retraction j withdraws. If j names a delivery id, it loads
// that delivery. Otherwise it loads the delivery with the feedback's key; if j has a transactionHash, the delivery's
// job must have the same one. The error is store.ErrNotFound if there is no such delivery.
func (e *Executor) loadRetracted(ctx context.Context, j job.Job) (store.Delivery, error) {
	if id, err := uuid.Parse(j.Retracts); err == nil {
		return e.Ledger.Delivery(ctx, id)
	}
	feedback := j
	feedback.Kind, feedback.Reason = job.KindNewFeedback, ""
	d, err := e.Ledger.DeliveryByKey(ctx, feedback.Key())
	if err != nil || j.TransactionHash == (common.Hash{}) {
		return d, err
	}
	var known job.Job
	if json.Unmarshal(d.Job, &known) == nil && known.TransactionHash != j.TransactionHash {
		return d, store.ErrNotFound
	}
	return d, nil
}
