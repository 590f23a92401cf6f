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
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/servers"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

const (
	// minConfirmationPause and maxConfirmationPause bound the wait for missing blocks.
	minConfirmationPause = 500 * time.Millisecond
	maxConfirmationPause = 5 * time.Minute
	// maxUndatedWait is how long after its acceptance a job may wait for a block above the chain's head, if the head's
	// age does not show whether the node is behind.
	maxUndatedWait = time.Hour
)

// findConfirmationPause returns how long a delivery waits if the missing blocks are expected to take the time missing:
// that time, within minConfirmationPause and maxConfirmationPause.
func findConfirmationPause(missing time.Duration) time.Duration {
	return min(max(missing, minConfirmationPause), maxConfirmationPause)
}

// describeMissing returns, for the operator, why the found event with Standing s is not confirmed yet.
func describeMissing(s chain.Standing) string {
	if s.Unnamed != "" {
		return fmt.Sprintf("the chain's nodes name no %s block, which confirms the event: if they never do, set "+
			"HERALD_CONFIRMATIONS to a duration, and HERALD_VERIFY_EVENT to receipt", s.Unnamed)
	}
	return fmt.Sprintf("the event's block needs %d more blocks on top, about %s", s.ConfirmedIn,
		s.Wait.Round(100*time.Millisecond))
}

// Disabled returns an error that holds the delivery, if the servers file (byFile) or the agent's row (byRow) disables
// the agent. Otherwise it returns nil. `agent probe` calls it too (operator/inspect/probe.go). `agent resolve`, which
// has no store, checks the servers file itself (operator/inspect/resolve.go, Resolution.End).
func Disabled(byFile, byRow bool) error {
	switch {
	case byFile:
		return retry.Fail(reason.AgentDisabled, "the servers file disables the agent (enabled: false); "+
			"its deliveries are released when the file enables it")
	case byRow:
		return retry.Fail(reason.AgentDisabled, "the agent is disabled: `worker agent enable` releases its deliveries")
	}
	return nil
}

// checkDelivery makes all checks that precede the first request to the agent: whether the agent pauses, whether the
// chain has the event, whether an earlier attempt may have called the agent (holdIfUnknown), whether the agent knows
// the feedback, whether it is disabled, and whether it wants the delivery. nil means that the call may be prepared.
func (e *Executor) checkDelivery(ctx context.Context, a *attempt) (err error) {
	e.beginStage(a, "check")
	if a.agentKnown {
		if err = e.checkPause(a); err != nil {
			return err
		}
	}
	err = e.checkEvent(ctx, a)
	if held := a.holdIfUnknown(); held != nil && a.event.gone == nil {
		return held
	}
	if err != nil {
		return err
	}
	if err = e.checkFeedback(ctx, a.claim); err != nil {
		return err
	}
	if err = checkAgent(a.claim, a.server); err != nil {
		return err
	}
	return e.checkWishes(a)
}

// eventCheck is the result of checkEvent.
type eventCheck struct {
	undecided bool        // the event is not found in a block or not confirmed, or a new hint came during the check
	rerouted  bool        // bindEvent changed the agent or the ordering key of the row to that of the event
	refuted   []int       // ranks (store.Hint.Rank) of the hints where the chain has no such event
	gone      *store.Gone // not nil: the chain no longer has the event with which the agent was or may have been called
	detail    string      // result for the trace of the attempt
}

// checkAgent returns an error that holds the delivery if its agent is disabled. It must follow checkEvent: otherwise a
// job with a wrong agent could be held and block the right job for the same event.
func checkAgent(c *store.Claim, server *servers.Server) error {
	return Disabled(disabledByFile(server), !c.Enabled)
}

// disabledByFile reports whether the servers file disables the agent. While it does, enabling the agent's row releases
// no delivery.
func disabledByFile(server *servers.Server) bool { return server != nil && !server.Enabled }

// checkEvent reads the event from the chain and binds the delivery to it: a.claim.Job becomes the event. It returns an
// error unless the event is confirmed and not revoked, and, for a retraction, the feedback is known to have existed.
// Without an RPC URL for the chain, or with HERALD_VERIFY_EVENT=off, it binds the delivery to its job unread. But if
// jobs of the same event differ and there is no RPC URL, it returns chain_unconfigured.
func (e *Executor) checkEvent(ctx context.Context, a *attempt) error {
	c := a.claim
	a.event.detail = "not asked"
	client, ok := e.Chain(c.Job.ChainID)
	switch {
	case !ok && c.Verified && !c.Bound && c.Hints > 0:
		return retry.Fail(reason.ChainUnconfigured, fmt.Sprintf("the jobs of this event differ, and only the chain can "+
			"decide between them: set RPC_URL_%d", c.Job.ChainID))
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
	wasCalled := c.Called && c.Bound
	var failed *retry.Failure
	switch {
	case wasCalled && err != nil && errors.As(err, &failed) && failed.Reason == reason.EventNotFound:
		a.event.gone = &store.Gone{}
		return err
	case err != nil:
		return err
	case wasCalled && !s.Event.SameEvent(c.Job):
		a.event.gone = &store.Gone{Next: s.Event}
		return retry.Fail(reason.EventNotFound, "the chain has another event with this key")
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
		return retry.Fail(reason.Revoked, "the client revoked this feedback before it was delivered")
	case !s.Confirmed:
		a.event.undecided = true
		return retry.Pause(reason.NotConfirmed, findConfirmationPause(s.Wait), describeMissing(s))
	case c.Job.IsRetraction() && (!s.Witnessed || c.Job.Retracts != ""):
		a.event.detail, err = e.confirmRetraction(ctx, c.Job)
		return err
	}
	a.event.detail = "event found and confirmed"
	return nil
}

// listHints returns the jobs that say where the event of a delivery is. The job of the row is one of them, with Rank
// -1, if the row is bound to an event or has no hints. Hints that a follower read from the chain come first; otherwise
// the job of the row comes first, and hints follow by rank.
func (e *Executor) listHints(ctx context.Context, c *store.Claim) (list []store.Hint, err error) {
	if c.Hints > 0 {
		if list, err = e.Ledger.Hints(ctx, c); err != nil {
			return nil, fmt.Errorf("read where the event may be: %w", err)
		}
	}
	if c.Bound || len(list) == 0 {
		own := store.Hint{Rank: -1, Job: c.Job, SealedHeaders: c.SealedHeaders, Source: c.Source, CreatedAt: c.CreatedAt}
		list = append([]store.Hint{own}, list...)
	}
	slices.SortStableFunc(list, func(a, b store.Hint) int { // a follower's hints first
		return cmp.Compare(min(a.Source.Trust, store.TrustOrdinary), min(b.Source.Trust, store.TrustOrdinary))
	})
	return list, nil
}

// findEvent asks the chain for the event at each hint in turn, and returns the first event that is in a block. It skips
// hints that an earlier check refuted, unless all are refuted. If this check refutes every hint, the first of them
// names a transaction, and the key does not contain the position of the event, findEvent searches the chain for the
// key. Without an event in a block, the error is a free wait (the event may still appear at a hint), the error of the
// node, or one that says why the event is refused. The ranks of refuted hints are appended to a.event.refuted.
func (e *Executor) findEvent(ctx context.Context, a *attempt, client Chain, hints []store.Hint) (chain.Standing, error) {
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
			return s, retry.Fail(reason.InvalidJob, "the event on the chain is no valid job: "+invalid.Error())
		case err != nil: // the job chooses the query, and may choose one that this node never answers
			away = cmp.Or(away, err)
		case s.Found && !s.Pending:
			return s, nil
		case s.Found && !outwaited:
			waits = cmp.Or(waits, retry.Pause(reason.NotConfirmed, findConfirmationPause(s.Wait), describeMissing(s)))
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

// refuseEvent returns the error of a delivery whose event the chain does not have. outwaited means that the block of
// the job did not come within maxUndatedWait.
func refuseEvent(j job.Job, s chain.Standing, outwaited bool) error {
	switch {
	case outwaited:
		return retry.Fail(reason.EventNotFound, fmt.Sprintf("the job's block %d is above the chain's newest, which is "+
			"old, and did not come within %s", j.BlockNumber, maxUndatedWait))
	case j.Retracts != "" && (s.Disagrees == "transactionHash" || s.Disagrees == "blockHash"):
		return retry.Fail(reason.MinedAgain, describeRefusal(j, s))
	}
	return retry.Fail(reason.EventNotFound, describeRefusal(j, s))
}

// chooseAction returns a Binding to the event, with the action of one hint. Only hints count that name no transaction
// or the transaction of the event. Of these, the hint with the most trusted source is chosen, or the earliest in hints
// if several are equally trusted. sender is the job of the chosen hint, or the event if there is none. b.Corrected
// lists the fields in which any hint differs from the event.
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

// bindEvent stores b as the job of the delivery and updates the claim, unless the claim is already bound to the same
// event and action. The agent is called only with this job. If b has another agent or ordering key than the job had, or
// if a new hint was stored meanwhile, bindEvent returns a free wait, after which the event is checked again.
func (e *Executor) bindEvent(ctx context.Context, a *attempt, b store.Binding) error {
	c := a.claim
	if c.Bound && b.Job.EventSum() == c.Job.EventSum() && b.Job.ActionSum() == c.Job.ActionSum() && b.Source == c.Source &&
		(b.Corrected == nil || slices.Equal(b.Corrected, c.Corrected)) {
		return nil
	}
	agent, orderKey, corrected := c.Agent(), c.Job.OrderKey(), c.Corrected
	err := e.Ledger.Bind(ctx, c, b)
	if errors.Is(err, store.ErrNewHint) {
		a.event.undecided = true
		return retry.Pause(reason.NotConfirmed, minConfirmationPause, err.Error())
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
		return retry.Pause(reason.NotConfirmed, minConfirmationPause, "the event is of another agent than the job said")
	}
	return nil
}

// resealHeaders replaces b.SealedHeaders, which are sealed for the agent in the job of the sender, by the same headers
// sealed for the agent of the event. It does nothing if both agents are the same.
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

// checkFeedback returns an error that skips a revocation or response whose feedback ended without a call, because the
// agent does not know that feedback. It returns nil if the feedback may have reached the agent or still may: it has not
// ended, Herald has no delivery of it, all its jobs were false (event_not_found), or retention deleted its attempts,
// one of which may have been a call. Retractions are not checked here.
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
	case !d.Status.Final(), d.Status == store.Delivered, d.Reason == reason.EventNotFound, len(d.History) == 0 && d.Attempts > 0,
		slices.ContainsFunc(d.History, mayHaveReachedAgent):
		return nil
	}
	return retry.Fail(reason.NeverDelivered, fmt.Sprintf("feedback %d, which this is about, ended without a call: it is %s (%s)",
		c.Job.FeedbackIndex, d.Status, d.Reason))
}

// describeRefusal returns, for the operator, why the event of job j is refused, from the Standing s.
func describeRefusal(j job.Job, s chain.Standing) string {
	switch {
	case s.Unlisted && s.Disagrees == "identityRegistry":
		return fmt.Sprintf("the identity registry that the emitting contract reports is not among those of chain %d: if "+
			"its agents are to be called, list it in IDENTITY_REGISTRY_%[1]d", j.ChainID)
	case s.Unlisted:
		variable := map[string]string{"reputationRegistry": "REPUTATION", "validationRegistry": "VALIDATION"}[s.Disagrees]
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

// describeRetractionRefusal returns, for the operator, why a retraction is refused. field is the field of the job that
// the chain contradicts (chain.Standing.Disagrees).
func describeRetractionRefusal(j job.Job, field string) string {
	switch field {
	case "blockHash":
		return fmt.Sprintf("block %s, which the retraction says a reorg removed, is on the chain", j.BlockHash)
	case "transactionHash":
		return fmt.Sprintf("feedback %d is on the chain: its transaction was mined again in another block",
			j.FeedbackIndex)
	case "feedbackIndex":
		return fmt.Sprintf("the chain has a feedback %d of this client: name the transactionHash of the one that is gone",
			j.FeedbackIndex)
	case "blockNumber":
		return "the retraction's blockNumber is missing, far above the chain's head, or not that of its block"
	}
	return fmt.Sprintf("the chain differs from the retraction in %s", field)
}

// runningPause is how long a retraction waits while the delivery of its feedback runs. Whether the agent was called is
// known only when that attempt has an outcome.
const runningPause = 5 * time.Second

// mayHaveReachedAgent reports whether the attempt may have called the agent: it ended in the stage call, or it has no
// outcome because it still runs or its worker died, perhaps during the call.
func mayHaveReachedAgent(t store.Attempt) bool { return t.Stage == "call" || t.Outcome == "" }

// confirmRetraction accepts a retraction only if Herald may have called the agent with the feedback, and returns the
// detail of the check for display. It is needed if the retraction names its delivery, or if the node does not have the
// removed block, so that it cannot show that the feedback ever existed. If the delivery of the feedback runs, the error
// is a free wait. If it never reached the agent, the error ends the retraction.
func (e *Executor) confirmRetraction(ctx context.Context, j job.Job) (string, error) {
	d, err := e.loadRetracted(ctx, j)
	switch {
	case errors.Is(err, store.ErrNotFound):
	case err != nil:
		return "", fmt.Errorf("looking for the feedback that is retracted: %w", err)
	case d.Status == store.Running:
		return "", retry.Pause(reason.BehindEarlier, runningPause, "the feedback that it takes back is being delivered")
	case d.Status == store.Delivered || slices.ContainsFunc(d.History, mayHaveReachedAgent):
		return "the feedback that the agent received is no longer on the chain", nil
	}
	if err == nil && j.Retracts != "" {
		return "", retry.Fail(reason.NeverDelivered, fmt.Sprintf("feedback %d, which it takes back, was never sent to the agent", j.FeedbackIndex))
	}
	return "", retry.Fail(reason.EventNotFound, fmt.Sprintf("nothing shows that feedback %d ever was: "+
		"the node does not have it in block %s, and Herald never sent it to the agent", j.FeedbackIndex, j.BlockHash))
}

// loadRetracted loads the feedback delivery that a retraction withdraws. If the retraction names a delivery id, it loads
// that delivery. Otherwise it loads the delivery with the feedback's key, whose transaction must be the retraction's
// transactionHash. The error is store.ErrNotFound if there is no such delivery.
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
