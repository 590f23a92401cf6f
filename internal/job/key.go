package job

import (
	"fmt"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// Key is the delivery's business key (DESIGN §3), empty for AgentUpdated:
//
//	eip155:<chainId>:<reputationRegistry>/<agentId>/<client>/<feedbackIndex>#<type>
//	…/<feedbackIndex>/<responder>/<transaction>/<logIndex>#ResponseAppended
//	eip155:<chainId>:<validationRegistry>/<requestHash>/<transaction>/<logIndex>#ValidationResponse
//	…/<feedbackIndex>#Retraction@<blockHash>
//
// Addresses and hashes are lower-case.
func (j Job) Key() string {
	switch j.Kind {
	case KindAgentUpdated:
		return ""
	case KindValidationResponse:
		return fmt.Sprintf("eip155:%d:%s/%s/%s/%s#%s", j.ChainID, lowerHex(j.ValidationRegistry), j.RequestHash.Hex(),
			j.TransactionHash.Hex(), j.formatLogIndex(), j.Kind)
	case KindResponseAppended:
		return fmt.Sprintf("%s/%d/%s/%s/%s#%s", j.pairKey(), j.FeedbackIndex, lowerHex(j.Responder),
			j.TransactionHash.Hex(), j.formatLogIndex(), j.Kind)
	case KindFeedbackRevoked:
		if j.IsRetraction() {
			return fmt.Sprintf("%s/%d#Retraction@%s", j.pairKey(), j.FeedbackIndex, j.BlockHash.Hex())
		}
	}
	return fmt.Sprintf("%s/%d#%s", j.pairKey(), j.FeedbackIndex, j.Kind)
}

// OrderKey names the (agent, client) pair within which deliveries keep their order; OrderSeq is the place in it.
func (j Job) OrderKey() string {
	if j.Kind == KindValidationResponse {
		return fmt.Sprintf("eip155:%d:%s/%s/%s", j.ChainID, lowerHex(j.ValidationRegistry), j.formatAgentID(),
			lowerHex(j.ValidatorAddress))
	}
	return j.pairKey()
}

// OrderSeq is the feedback's index; validations, which have none, go by block. A retraction goes before the feedback that
// took the index of the one that it takes back.
func (j Job) OrderSeq() uint64 {
	switch {
	case j.Kind == KindValidationResponse:
		return j.BlockNumber
	case j.IsRetraction() && j.FeedbackIndex > 0:
		return j.FeedbackIndex - 1
	}
	return j.FeedbackIndex
}

// IsRetraction reports whether the job takes back feedback that a reorg removed.
func (j Job) IsRetraction() bool { return j.Kind == KindFeedbackRevoked && j.Reason == RevokedByReorg }

func (j Job) pairKey() string {
	return fmt.Sprintf("eip155:%d:%s/%s/%s", j.ChainID, lowerHex(j.ReputationRegistry), j.formatAgentID(),
		lowerHex(j.ClientAddress))
}

func (j Job) formatLogIndex() string {
	if j.LogIndex == nil {
		return "-"
	}
	return fmt.Sprint(*j.LogIndex)
}

// IDOf is the delivery id of a key: UUIDv5 in the URL name space (RFC 9562).
func IDOf(key string) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceURL, []byte(key)) }

// ID is the delivery id of the job.
func (j Job) ID() uuid.UUID { return IDOf(j.Key()) }

// AgentRegistry is the agent's registry as ERC-8004 writes it: eip155:<chainId>:<identityRegistry>.
func (j Job) AgentRegistry() string {
	return fmt.Sprintf("eip155:%d:%s", j.ChainID, j.IdentityRegistry.Hex())
}

// Conflict compares the event itself with that of a known job of the same key: not block, transaction, time, action or
// meta, which may differ after a reorg or between indexers. Nor the identity registry: no event says it, it follows
// from the registry that emitted the event, which is in the key. It names the first field that differs.
func (j Job) Conflict(known Job) (field string, conflict bool) {
	other := known.contentFields()
	for i, f := range j.contentFields() {
		if f.value != other[i].value {
			return f.name, true
		}
	}
	return "", false
}

type contentField struct {
	name  string
	value any // comparable
}

// contentFields is what the event itself says, in one order for all jobs.
func (j Job) contentFields() []contentField {
	value := ""
	if j.Value != nil {
		value = j.Value.String()
	}
	return []contentField{
		{"agentId", j.formatAgentID()},
		{"value", value},
		{"valueDecimals", j.ValueDecimals},
		{"tag1", j.Tag1},
		{"tag2", j.Tag2},
		{"endpoint", j.Endpoint},
		{"feedbackURI", j.FeedbackURI},
		{"feedbackHash", j.FeedbackHash},
		{"reason", j.Reason},
		{"responseURI", j.ResponseURI},
		{"responseHash", j.ResponseHash},
		{"validatorAddress", j.ValidatorAddress},
		{"response", j.Response},
		{"tag", j.Tag},
	}
}

// Retraction is the job that takes a feedback back after its block vanished in a reorg. Its position is the vanished
// one; how to deliver it is the default. id is the feedback's delivery.
func (j Job) Retraction(id uuid.UUID) Job {
	return Job{Kind: KindFeedbackRevoked, Reason: RevokedByReorg, Retracts: id.String(), ChainID: j.ChainID,
		IdentityRegistry: j.IdentityRegistry, ReputationRegistry: j.ReputationRegistry, AgentID: j.AgentID,
		ClientAddress: j.ClientAddress, FeedbackIndex: j.FeedbackIndex, BlockNumber: j.BlockNumber,
		BlockHash: j.BlockHash, TransactionHash: j.TransactionHash, LogIndex: j.LogIndex, Timestamp: j.Timestamp,
		Action: defaultAction(KindFeedbackRevoked)}
}

func (j Job) formatAgentID() string {
	if j.AgentID == nil {
		return "0"
	}
	return j.AgentID.String()
}

func lowerHex(a common.Address) string { return strings.ToLower(a.Hex()) }
