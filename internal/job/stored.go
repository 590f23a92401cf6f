package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"

	"github.com/ethereum/go-ethereum/common"
)

// stored is the JSON of a Job: the contract's names (DESIGN §3), wide integers as decimal strings, addresses checksummed,
// absent what the kind does not have.
type stored struct {
	Type               Kind            `json:"type"`
	ChainID            uint64          `json:"chainId"`
	ReputationRegistry string          `json:"reputationRegistry,omitempty"`
	IdentityRegistry   string          `json:"identityRegistry,omitempty"`
	ValidationRegistry string          `json:"validationRegistry,omitempty"`
	AgentID            string          `json:"agentId"`
	ClientAddress      string          `json:"clientAddress,omitempty"`
	FeedbackIndex      string          `json:"feedbackIndex,omitempty"`
	Value              string          `json:"value,omitempty"`
	ValueDecimals      *uint8          `json:"valueDecimals,omitempty"`
	LegacyScore        bool            `json:"legacyScore,omitempty"`
	Tag1               string          `json:"tag1,omitempty"`
	Tag2               string          `json:"tag2,omitempty"`
	Endpoint           string          `json:"endpoint,omitempty"`
	FeedbackURI        string          `json:"feedbackURI,omitempty"`
	FeedbackHash       string          `json:"feedbackHash,omitempty"`
	Reason             string          `json:"reason,omitempty"`
	Responder          string          `json:"responder,omitempty"`
	ResponseURI        string          `json:"responseURI,omitempty"`
	ResponseHash       string          `json:"responseHash,omitempty"`
	ValidatorAddress   string          `json:"validatorAddress,omitempty"`
	RequestHash        string          `json:"requestHash,omitempty"`
	Response           *uint8          `json:"response,omitempty"`
	Tag                string          `json:"tag,omitempty"`
	BlockNumber        string          `json:"blockNumber,omitempty"`
	BlockHash          string          `json:"blockHash,omitempty"`
	TransactionHash    string          `json:"transactionHash,omitempty"`
	LogIndex           *uint           `json:"logIndex,omitempty"`
	Timestamp          int64           `json:"timestamp,omitempty"`
	Action             Action          `json:"action"`
	Meta               json.RawMessage `json:"meta,omitempty"`
	Sanitized          []string        `json:"sanitized,omitempty"`
}

// MarshalJSON writes the form that is stored. Secret headers are not in it.
func (j Job) MarshalJSON() ([]byte, error) {
	s := stored{Type: j.Kind, ChainID: j.ChainID, Tag1: j.Tag1, Tag2: j.Tag2, Endpoint: j.Endpoint, FeedbackURI: j.FeedbackURI,
		LegacyScore: j.LegacyScore, Reason: j.Reason, ResponseURI: j.ResponseURI, Tag: j.Tag, LogIndex: j.LogIndex,
		Timestamp: j.Timestamp, Action: j.Action, Meta: j.Meta, Sanitized: j.Sanitized,
		ReputationRegistry: address(j.ReputationRegistry), IdentityRegistry: address(j.IdentityRegistry),
		ValidationRegistry: address(j.ValidationRegistry), ClientAddress: address(j.ClientAddress), Responder: address(j.Responder),
		ValidatorAddress: address(j.ValidatorAddress), FeedbackHash: hash(j.FeedbackHash), ResponseHash: hash(j.ResponseHash),
		RequestHash: hash(j.RequestHash), BlockHash: hash(j.BlockHash), TransactionHash: hash(j.TransactionHash),
		AgentID: "0", FeedbackIndex: decimal(j.FeedbackIndex), BlockNumber: decimal(j.BlockNumber)}
	if j.AgentID != nil {
		s.AgentID = j.AgentID.String()
	}
	if j.Value != nil {
		s.Value, s.ValueDecimals = j.Value.String(), &j.ValueDecimals
	}
	if j.Kind == KindValidationResponse {
		s.Response = &j.Response
	}
	return json.Marshal(s)
}

// UnmarshalJSON reads what MarshalJSON wrote. It trusts it: the row was validated on its way in.
func (j *Job) UnmarshalJSON(raw []byte) error {
	var s stored
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("read a stored job: %w", err)
	}
	*j = Job{Kind: s.Type, ChainID: s.ChainID, Tag1: s.Tag1, Tag2: s.Tag2, Endpoint: s.Endpoint, FeedbackURI: s.FeedbackURI,
		LegacyScore: s.LegacyScore, Reason: s.Reason, ResponseURI: s.ResponseURI, Tag: s.Tag, LogIndex: s.LogIndex,
		Timestamp: s.Timestamp, Action: s.Action, Meta: s.Meta, Sanitized: s.Sanitized,
		ReputationRegistry: common.HexToAddress(s.ReputationRegistry), IdentityRegistry: common.HexToAddress(s.IdentityRegistry),
		ValidationRegistry: common.HexToAddress(s.ValidationRegistry), ClientAddress: common.HexToAddress(s.ClientAddress),
		Responder: common.HexToAddress(s.Responder), ValidatorAddress: common.HexToAddress(s.ValidatorAddress),
		FeedbackHash: common.HexToHash(s.FeedbackHash), ResponseHash: common.HexToHash(s.ResponseHash),
		RequestHash: common.HexToHash(s.RequestHash), BlockHash: common.HexToHash(s.BlockHash), TransactionHash: common.HexToHash(s.TransactionHash)}
	var ok bool
	if j.AgentID, ok = new(big.Int).SetString(s.AgentID, 10); !ok {
		return fmt.Errorf("read a stored job: agentId %q is not a decimal number", s.AgentID)
	}
	if s.Value != "" {
		if j.Value, ok = new(big.Int).SetString(s.Value, 10); !ok {
			return fmt.Errorf("read a stored job: value %q is not a decimal number", s.Value)
		}
	}
	if s.ValueDecimals != nil {
		j.ValueDecimals = *s.ValueDecimals
	}
	if s.Response != nil {
		j.Response = *s.Response
	}
	var err1, err2 error
	j.FeedbackIndex, err1 = fromDecimal(s.FeedbackIndex)
	j.BlockNumber, err2 = fromDecimal(s.BlockNumber)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("read a stored job: %w", err)
	}
	if isNull(j.Meta) {
		j.Meta = nil
	}
	if isNull(j.Action.PayloadTemplate) {
		j.Action.PayloadTemplate = nil
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return string(raw) == "null" }

func address(a common.Address) string {
	if a == (common.Address{}) {
		return ""
	}
	return a.Hex()
}

func hash(h common.Hash) string {
	if h == (common.Hash{}) {
		return ""
	}
	return h.Hex()
}

func fromDecimal(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	return strconv.ParseUint(s, 10, 64)
}

func decimal(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}
