package event

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// CheckFeedback returns an error that skips a revocation or a response (never_delivered) if the delivery of its
// feedback ended without a call: the agent does not know that feedback. It does not check retractions.
//
// It returns nil if the feedback may have reached the agent, or still may. This is so in the following cases:
//   - Herald has no delivery of the feedback, or that delivery is open or delivered.
//   - All jobs of the feedback were false (event_not_found).
//   - One of its attempts may have called the agent, or retention deleted the attempts.
func (c *Checker) CheckFeedback(ctx context.Context, claim *ledger.Claim) error {
	if claim.Job.Kind != job.KindResponseAppended &&
		(claim.Job.Kind != job.KindFeedbackRevoked || claim.Job.IsRetraction()) {
		return nil
	}
	feedback := claim.Job
	feedback.Kind = job.KindNewFeedback
	d, err := c.Ledger.DeliveryByKey(ctx, feedback.Key())
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("looking for the feedback that this is about: %w", err)
	case !d.Status.Final(), d.Status == outcome.Delivered, d.Reason == outcome.EventNotFound,
		len(d.History) == 0 && d.Attempts > 0, slices.ContainsFunc(d.History, mayHaveReachedAgent):
		return nil
	}
	return outcome.Fail(outcome.NeverDelivered, fmt.Sprintf("feedback %d, which this is about, ended without "+
		"a call: it is %s (%s)", claim.Job.FeedbackIndex, d.Status, d.Reason))
}

// runningPause is the free wait of a retraction while the delivery of its feedback is running. Only the outcome of that
// attempt shows whether the agent was called.
const runningPause = 5 * time.Second

// mayHaveReachedAgent reports whether attempt t may have called the agent: it ended in the stage call, or it has no
// outcome, because it is running or its worker died.
func mayHaveReachedAgent(t ledger.Attempt) bool { return t.Stage == "call" || t.Outcome == "" }

// confirmRetraction looks for the delivery of the feedback that the claimed retraction withdraws. If Herald may have
// called the agent with this feedback, confirmRetraction stores the delivery's id in claim.Job.Retracts. The agent
// finds the feedback only by this id, and a sender's retraction does not contain it. The result is a phrase for
// display. witnessed is chain.Standing.Witnessed.
//
// While the delivery of the feedback is running, the error is a free wait (behind_earlier). If the agent was not
// called, the error ends a retraction that names the delivery (never_delivered), and one that is not witnessed
// (event_not_found).
func (c *Checker) confirmRetraction(ctx context.Context, claim *ledger.Claim, witnessed bool) (string, error) {
	j := claim.Job
	d, err := c.loadRetracted(ctx, j)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
	case err != nil:
		return "", fmt.Errorf("looking for the feedback that is retracted: %w", err)
	case d.Status == outcome.Running:
		return "", outcome.Pause(outcome.BehindEarlier, runningPause,
			"the feedback that it takes back is being delivered")
	case d.Status == outcome.Delivered || slices.ContainsFunc(d.History, mayHaveReachedAgent):
		claim.Job.Retracts = d.ID.String()
		return "the feedback that the agent received is no longer on the chain", nil
	}
	switch {
	case err == nil && j.Retracts != "":
		return "", outcome.Fail(outcome.NeverDelivered, fmt.Sprintf("feedback %d, which it takes back, "+
			"was never sent to the agent", j.FeedbackIndex))
	case witnessed:
		return "event found and confirmed", nil
	}
	return "", outcome.Fail(outcome.EventNotFound, fmt.Sprintf("nothing shows that feedback %d ever was: "+
		"the node does not have it in block %s, and Herald never sent it to the agent", j.FeedbackIndex, j.BlockHash))
}

// loadRetracted loads the delivery of the feedback that the retraction j withdraws. If j names a delivery id, it loads
// that delivery. Otherwise it loads the delivery with the feedback's key; if j has a transactionHash, the delivery's
// job must have the same one. The error is ledger.ErrNotFound if there is no such delivery.
func (c *Checker) loadRetracted(ctx context.Context, j job.Job) (ledger.Delivery, error) {
	if id, err := uuid.Parse(j.Retracts); err == nil {
		return c.Ledger.Delivery(ctx, id)
	}
	feedback := j
	feedback.Kind, feedback.Reason = job.KindNewFeedback, ""
	d, err := c.Ledger.DeliveryByKey(ctx, feedback.Key())
	if err != nil || j.TransactionHash == (common.Hash{}) {
		return d, err
	}
	var known job.Job
	if json.Unmarshal(d.Job, &known) == nil && known.TransactionHash != j.TransactionHash {
		return d, ledger.ErrNotFound
	}
	return d, nil
}
