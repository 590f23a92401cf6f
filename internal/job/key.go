package job

import (
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/google/uuid"
)

// Key returns the key of the job's event, which is also the key of its delivery. It is empty for AgentUpdated, which
// has no delivery. The first form is for NewFeedback and FeedbackRevoked, and the last one for a retraction:
//
//	eip155:<chainId>:<reputationRegistry>/<agentId>/<client>/<feedbackIndex>#<type>
//	…/<feedbackIndex>/<responder>/<transaction>/<logIndex>#ResponseAppended
//	eip155:<chainId>:<validationRegistry>/<requestHash>/<transaction>/<logIndex>#ValidationResponse
//	…/<feedbackIndex>#Retraction@<blockHash>
//
// … abbreviates the beginning of the first form. Addresses and hashes are in lower case.
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

// OrderKey returns the ordering key. It consists of the chain, the registry, the agent, and the client or, for a
// validation, the validator. Deliveries with the same ordering key are called in the order of OrderSeq.
func (j Job) OrderKey() string {
	if j.Kind == KindValidationResponse {
		return fmt.Sprintf("eip155:%d:%s/%s/%s", j.ChainID, lowerHex(j.ValidationRegistry), j.formatAgentID(),
			lowerHex(j.ValidatorAddress))
	}
	return j.pairKey()
}

// OrderSeq returns the job's number in the order of its ordering key: the feedback index. A validation has no index, so
// its number is the block number. The number of a retraction is one less than the index, so that the retraction is
// delivered before new feedback that gets the same index after the reorg.
func (j Job) OrderSeq() uint64 {
	switch {
	case j.Kind == KindValidationResponse:
		return j.BlockNumber
	case j.IsRetraction() && j.FeedbackIndex > 0:
		return j.FeedbackIndex - 1
	}
	return j.FeedbackIndex
}

// IsRetraction reports whether the job is a retraction: it informs the agent that a reorg removed feedback.
func (j Job) IsRetraction() bool { return j.Kind == KindFeedbackRevoked && j.Reason == RevokedByReorg }

// pairKey returns the part of a key that identifies a client and an agent in one reputation registry.
func (j Job) pairKey() string {
	return fmt.Sprintf("eip155:%d:%s/%s/%s", j.ChainID, lowerHex(j.ReputationRegistry), j.formatAgentID(),
		lowerHex(j.ClientAddress))
}

// formatLogIndex returns the log index in decimal, or "-" if the job has none.
func (j Job) formatLogIndex() string {
	if j.LogIndex == nil {
		return "-"
	}
	return fmt.Sprint(*j.LogIndex)
}

// IDOf returns the id of the delivery with this key: a UUIDv5 in the URL name space (RFC 9562).
func IDOf(key string) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceURL, []byte(key)) }

// ID returns the id of the job's delivery.
func (j Job) ID() uuid.UUID { return IDOf(j.Key()) }

// AgentRegistry returns the agent's identity registry in the form of ERC-8004: eip155:<chainId>:<identityRegistry>.
func (j Job) AgentRegistry() string {
	return fmt.Sprintf("eip155:%d:%s", j.ChainID, j.IdentityRegistry.Hex())
}

// HasPositionKey reports whether the job's key contains the event's position, its transaction and log index.
func (j Job) HasPositionKey() bool {
	return j.Kind == KindResponseAppended || j.Kind == KindValidationResponse
}

// Conflict compares the content of the job's event with that of known, another job with the same key. If they differ,
// it returns the name of the first different field, and true.
//
// It does not compare block, transaction, timestamp, action and meta, which may differ after a reorg or between
// senders. It does not compare the identity registry, because the registry in the key determines it.
func (j Job) Conflict(known Job) (field string, conflict bool) {
	if differ := j.diffContent(known); len(differ) > 0 {
		return differ[0], true
	}
	return "", false
}

// ContentValue returns the value of the content field with this name (a result of the method Conflict), or "" for any
// other name.
func (j Job) ContentValue(field string) string {
	for _, f := range j.contentFields() {
		if f.name == field {
			return fmt.Sprint(f.value)
		}
	}
	return ""
}

// diffContent returns the names of the fields of contentFields in which two jobs differ.
func (j Job) diffContent(other Job) (fields []string) {
	others := other.contentFields()
	for i, f := range j.contentFields() {
		if f.value != others[i].value {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// Differences returns the names of the fields in which j differs from read, which is the same event as the chain has
// it. It compares the content, the position, the timestamp and the identity registry, but no field that j leaves out.
func (j Job) Differences(read Job) (fields []string) {
	others := read.contentFields()
	for i, f := range j.contentFields() {
		omitted := f.value == "" || f.value == (common.Hash{}) || f.value == (common.Address{})
		if !omitted && f.value != others[i].value {
			fields = append(fields, f.name)
		}
	}
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

// SameEvent reports whether j and other, two jobs with the same key, describe the same event: their transaction and
// content are equal. The block and log index are not compared, because a reorg may change them. An empty tag1 equals
// any tag1, because some old ABI forms of the event do not contain it. No transaction equals any, because senders may
// omit it.
func (j Job) SameEvent(other Job) bool {
	if j.Tag1 == "" || other.Tag1 == "" {
		j.Tag1, other.Tag1 = "", ""
	}
	none := common.Hash{}
	return (j.TransactionHash == other.TransactionHash || j.TransactionHash == none || other.TransactionHash == none) &&
		len(j.diffContent(other)) == 0
}

// NamesEvent reports whether j, a job of any sender, describes the same event as read, a job that was read from the
// chain. It compares the content, and the transaction unless j has none.
func (j Job) NamesEvent(read Job) bool {
	return (j.TransactionHash == (common.Hash{}) || j.TransactionHash == read.TransactionHash) &&
		len(j.diffContent(read)) == 0
}

// contentField is the name and value of one field of an event's content.
type contentField struct {
	name  string
	value any // comparable
}

// contentFields returns the content of the event: the agent's id, and the fields that neither the key nor the position
// contains. The result has the same names in the same order for jobs of all kinds.
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

// Retraction returns the job that informs the agent that a reorg removed the feedback j. id is that of the feedback's
// delivery. The job has the position of the removed block and the default action.
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

// lowerHex returns an address as hex in lower case. Address.Hex would also compute the checksum (EIP-55), for which it
// computes a hash.
func lowerHex(a common.Address) string { return hexutil.Encode(a[:]) }
