package event

import (
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/ethereum/go-ethereum/common"
)

// describeMissing returns a text for the operator: why an event is not confirmed yet. s is the result of checking the
// event on the chain.
func describeMissing(s chain.Standing) string {
	if s.Unnamed != "" {
		return fmt.Sprintf("the chain's nodes name no %s block, which confirms the event: if they never do, set "+
			"HERALD_CONFIRMATIONS to a duration, and HERALD_VERIFY_EVENT to receipt", s.Unnamed)
	}
	if s.Revoking {
		return "the client revoked this feedback, in a block that is not confirmed yet"
	}
	return fmt.Sprintf("the event's block needs %s on top, about %s",
		text.Count(s.ConfirmedIn, "more block", "more blocks"), s.Wait.Round(100*time.Millisecond))
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
