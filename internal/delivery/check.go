package delivery

import (
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

// findConfirmationPause returns the wait for blocks that are expected after missing.
func findConfirmationPause(missing time.Duration) time.Duration {
	return min(max(missing, minConfirmationPause), maxConfirmationPause)
}

// describeMissing returns why an event is not confirmed yet.
func describeMissing(s chain.Standing) string {
	if s.Unnamed != "" {
		return fmt.Sprintf("the chain's nodes name no %s block, which confirms the event: if they never do, set "+
			"HERALD_CONFIRMATIONS to a duration, and HERALD_VERIFY_EVENT to receipt", s.Unnamed)
	}
	return fmt.Sprintf("the event's block needs %d more blocks on top, about %s", s.ConfirmedIn,
		s.Wait.Round(100*time.Millisecond))
}

// Disabled returns an error that holds the delivery, if the servers file or the agent's row disables the agent, or nil.
// `agent probe` calls it too (operator/inspect/probe.go). `agent resolve`, which has no store, checks the servers file
// itself (operator/inspect/resolve.go, Resolution.End).
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

// checkDelivery makes all checks that precede the first request to the agent.
func (e *Executor) checkDelivery(ctx context.Context, a *attempt) (err error) {
	e.beginStage(a, "check")
	if !mayNameAnotherAgent(a.claim) {
		if err = e.checkPause(a); err != nil {
			return err
		}
	}
	a.event, err = e.checkEvent(ctx, a.claim)
	if held := a.holdIfUnknown(); held != nil && !a.event.refuted { // an agent was never called for a refuted event
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
	job      job.Job // with the position and time that the chain confirms
	refuted  bool    // the chain has no such event
	unplaced bool    // the event is not at the job's position, or the node does not answer
	detail   string
}

// checkAgent holds a delivery whose agent is disabled. It must follow checkEvent: otherwise a job with a wrong agent
// could be held and block the right job for the same event.
func checkAgent(c *store.Claim, server *servers.Server) error {
	return Disabled(disabledByFile(server), !c.Enabled)
}

// disabledByFile reports whether the servers file disables the agent. Then enabling the agent's row releases nothing.
func disabledByFile(server *servers.Server) bool { return server != nil && !server.Enabled }

// checkEvent checks on the chain that the event is real, confirmed and not revoked. Without an RPC URL for the chain,
// or with HERALD_VERIFY_EVENT=off, it trusts the job.
func (e *Executor) checkEvent(ctx context.Context, c *store.Claim) (eventCheck, error) {
	checked := eventCheck{job: c.Job, detail: "not asked"}
	client, ok := e.Chain(c.Job.ChainID)
	if !ok || e.Verify == chain.VerifyOff {
		return checked, nil
	}

	s, err := client.Check(ctx, c.Job, e.Verify)
	// The first job of an event may be wrong. If the chain does not show the event at the job's position, another job
	// that was enqueued for the same event replaces it. An unavailable node counts too: the job chooses the query, and
	// may choose one that this node never answers.
	var away *chain.UnavailableError
	outwaited := s.Pending && s.Undated && time.Since(c.CreatedAt) >= maxUndatedWait
	checked.refuted = err == nil && (!s.Found || outwaited)
	checked.unplaced = errors.As(err, &away) || checked.refuted || s.Pending
	switch {
	case err != nil:
		return checked, err
	case !s.Found && c.Job.Retracts != "" && (s.Disagrees == "transactionHash" || s.Disagrees == "blockHash"):
		return checked, retry.Fail(reason.MinedAgain, describeRefusal(c.Job, s))
	case !s.Found:
		return checked, retry.Fail(reason.EventNotFound, describeRefusal(c.Job, s))
	case outwaited:
		return checked, retry.Fail(reason.EventNotFound, fmt.Sprintf("the job's block %d is above the chain's newest, which is "+
			"old, and did not come within %s", c.Job.BlockNumber, maxUndatedWait))
	case s.Revoked && c.Job.Kind == job.KindNewFeedback:
		return checked, retry.Fail(reason.Revoked, "the client revoked this feedback before it was delivered")
	case !s.Confirmed:
		return checked, retry.Pause(reason.NotConfirmed, findConfirmationPause(s.Wait), describeMissing(s))
	case c.Job.IsRetraction() && (!s.Witnessed || c.Job.Retracts != ""):
		checked.detail, err = e.confirmRetraction(ctx, c.Job)
		return checked, err
	}
	checked.detail = "event found and confirmed"
	if s.BlockHash != (common.Hash{}) { // a job may name the right transaction, but a wrong block or time
		checked.job.BlockNumber, checked.job.BlockHash, checked.job.Timestamp = s.BlockNumber, s.BlockHash, s.Timestamp
	}
	return checked, nil
}

// checkFeedback skips a revocation or response whose feedback ended without a call, because the agent does not know the
// feedback. It does not skip if Herald has no such feedback, which is older than Herald then, or if retention deleted
// the feedback's attempts, which may have included a call.
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
	case !d.Status.Final(), d.Status == store.Delivered, len(d.History) == 0 && d.Attempts > 0,
		slices.ContainsFunc(d.History, mayHaveReachedAgent):
		return nil
	}
	return retry.Fail(reason.NeverDelivered, fmt.Sprintf("feedback %d, which this is about, ended without a call: it is %s (%s)",
		c.Job.FeedbackIndex, d.Status, d.Reason))
}

// mayNameAnotherAgent reports whether an unchecked job may name a wrong agent, because its key does not contain the
// agent. The job with the right agent must not wait behind it, for example while the wrong agent has no free slot.
func mayNameAnotherAgent(c *store.Claim) bool {
	return c.Job.Kind == job.KindValidationResponse && c.Budget == 1
}

// describeRefusal returns why an event is refused.
func describeRefusal(j job.Job, s chain.Standing) string {
	switch {
	case s.Unlisted:
		variable := map[string]string{"identityRegistry": "IDENTITY", "reputationRegistry": "REPUTATION",
			"validationRegistry": "VALIDATION"}[s.Disagrees]
		return fmt.Sprintf("the job's %s is not among the registries of chain %d: if its events are to count, "+
			"list it in %s_REGISTRY_%[2]d", s.Disagrees, j.ChainID, variable)
	case j.IsRetraction():
		return describeRetractionRefusal(j, s.Disagrees)
	case s.Disagrees == "":
		return "the chain has no such event"
	case j.TransactionHash != (common.Hash{}) || s.Disagrees != "transactionHash":
		return fmt.Sprintf("the event on the chain differs from the job in %s", s.Disagrees)
	case s.SearchedTo == 0:
		return "the job has no transactionHash, which is needed to find its event: " +
			"HERALD_LOG_RANGE is 0, or the node cannot search its logs, or not in time"
	}
	return fmt.Sprintf("blocks %d to %d have no such event, and the job has no transactionHash, "+
		"which is needed to find it elsewhere", s.SearchedFrom, s.SearchedTo)
}

// describeRetractionRefusal returns why a retraction is refused, by the field that the chain contradicts.
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

// runningPause is how long a retraction waits while its feedback is being delivered. Only the outcome in the row shows
// whether the agent was called.
const runningPause = 5 * time.Second

// mayHaveReachedAgent reports whether the attempt may have called the agent. If it has no outcome, its worker died,
// perhaps during the call.
func mayHaveReachedAgent(t store.Attempt) bool { return t.Stage == "call" || t.Outcome == "" }

// confirmRetraction decides about a retraction that names its delivery, or whose block the node does not have, as is
// usual for removed blocks. Such a node cannot show that the feedback ever existed. A delivery to the agent shows it.
// If that delivery is running, the retraction waits.
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
