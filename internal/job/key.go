package job

import (
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/google/uuid"
)

// Key returns the delivery's business key, which is empty for AgentUpdated:
//
//	eip155:<chainId>:<reputationRegistry>/<agentId>/<client>/<feedbackIndex>#<type>
//	…/<feedbackIndex>/<responder>/<transaction>/<logIndex>#ResponseAppended
//	eip155:<chainId>:<validationRegistry>/<requestHash>/<transaction>/<logIndex>#ValidationResponse
//	…/<feedbackIndex>#Retraction@<blockHash>
//
// Addresses and hashes are in lower case.
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

// OrderKey returns the ordering key: the chain, the registry, the agent and the client, or the validator of a
// validation. Deliveries with one ordering key are sent in the order of OrderSeq.
func (j Job) OrderKey() string {
	if j.Kind == KindValidationResponse {
		return fmt.Sprintf("eip155:%d:%s/%s/%s", j.ChainID, lowerHex(j.ValidationRegistry), j.formatAgentID(),
			lowerHex(j.ValidatorAddress))
	}
	return j.pairKey()
}

// OrderSeq returns the feedback's index, or the block number of a validation, which has no index. For a retraction it
// is one less than the index, so that the retraction precedes new feedback that gets the same index.
func (j Job) OrderSeq() uint64 {
	switch {
	case j.Kind == KindValidationResponse:
		return j.BlockNumber
	case j.IsRetraction() && j.FeedbackIndex > 0:
		return j.FeedbackIndex - 1
	}
	return j.FeedbackIndex
}

// IsRetraction reports whether the job retracts feedback whose block a reorg removed from the chain.
func (j Job) IsRetraction() bool { return j.Kind == KindFeedbackRevoked && j.Reason == RevokedByReorg }

// pairKey returns the part of a key that identifies the agent and the client in one reputation registry.
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

// IDOf returns the delivery id of a key: a UUIDv5 in the URL name space (RFC 9562).
func IDOf(key string) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceURL, []byte(key)) }

// ID returns the delivery id of the job.
func (j Job) ID() uuid.UUID { return IDOf(j.Key()) }

// AgentRegistry returns the agent's registry in ERC-8004's form: eip155:<chainId>:<identityRegistry>.
func (j Job) AgentRegistry() string {
	return fmt.Sprintf("eip155:%d:%s", j.ChainID, j.IdentityRegistry.Hex())
}

// HasPositionKey reports whether the key contains the event's transaction and log index.
func (j Job) HasPositionKey() bool {
	return j.Kind == KindResponseAppended || j.Kind == KindValidationResponse
}

// Conflict compares the event's content with that of a known job with the same key. It returns the first field that
// differs. Block, transaction, timestamp, action and meta are not compared, because they may differ after a reorg or
// between senders. The identity registry is not compared either: no event contains it, and it follows from the
// emitting registry, which is part of the key.
func (j Job) Conflict(known Job) (field string, conflict bool) {
	if differ := j.diffContent(known); len(differ) > 0 {
		return differ[0], true
	}
	return "", false
}

// diffContent returns the names of the content fields in which two jobs differ.
func (j Job) diffContent(other Job) (fields []string) {
	others := other.contentFields()
	for i, f := range j.contentFields() {
		if f.value != others[i].value {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// Differences returns the names of j's fields that differ from the event as it was read from the chain. Fields of the
// position that j does not set are no differences.
func (j Job) Differences(read Job) []string {
	fields := j.diffContent(read)
	for _, f := range []struct {
		name    string
		differs bool
	}{
		{"identityRegistry", j.IdentityRegistry != (common.Address{}) && j.IdentityRegistry != read.IdentityRegistry},
		{"blockNumber", j.BlockNumber != 0 && j.BlockNumber != read.BlockNumber},
		{"blockHash", j.BlockHash != (common.Hash{}) && j.BlockHash != read.BlockHash},
		{"transactionHash", j.TransactionHash != (common.Hash{}) && j.TransactionHash != read.TransactionHash},
		{"logIndex", j.LogIndex != nil && read.LogIndex != nil && *j.LogIndex != *read.LogIndex},
		{"timestamp", j.Timestamp != 0 && read.Timestamp != 0 && j.Timestamp != read.Timestamp},
	} {
		if f.differs {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// SameEvent reports whether two jobs with the same key, both read from the chain, are the same event: transaction and
// content are the same. Its block and log index may differ after a reorg. The logs of an older form lack tag1, so a
// missing tag1 is no difference.
func (j Job) SameEvent(other Job) bool {
	if j.Tag1 == "" || other.Tag1 == "" {
		j.Tag1, other.Tag1 = "", ""
	}
	return j.TransactionHash == other.TransactionHash && len(j.diffContent(other)) == 0
}

// NamesEvent reports whether j, which anybody may have sent, names no other event than one that was read from the chain:
// the content is the same, and so is the transaction if j names one.
func (j Job) NamesEvent(read Job) bool {
	return (j.TransactionHash == (common.Hash{}) || j.TransactionHash == read.TransactionHash) && len(j.diffContent(read)) == 0
}

// contentField is one field of an event's content.
type contentField struct {
	name  string
	value any // comparable
}

// contentFields returns the content of the event, in the same order for all jobs.
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

// Retraction returns the job that retracts feedback j after a reorg removed its block. id is the delivery of the
// feedback. The job has the position of the removed block and the default action.
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

// lowerHex returns a in lower case. It avoids Address.Hex, which hashes the address for the checksum in its letters.
func lowerHex(a common.Address) string { return hexutil.Encode(a[:]) }
