package job

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"
)

// stored is the JSON form in which Postgres stores a Job. It has the field names of docs/reference/jobs.md and omits
// empty fields. agentId, value and integers above maxExact are decimal strings, and addresses have checksums. Parse
// accepts this form, except for the fields sanitized and retracts.
type stored struct {
	Type               Kind            `json:"type"`
	ChainID            wide            `json:"chainId"`
	ReputationRegistry string          `json:"reputationRegistry,omitempty"`
	IdentityRegistry   string          `json:"identityRegistry,omitempty"`
	ValidationRegistry string          `json:"validationRegistry,omitempty"`
	AgentID            string          `json:"agentId"`
	ClientAddress      string          `json:"clientAddress,omitempty"`
	FeedbackIndex      wide            `json:"feedbackIndex,omitempty"`
	Value              string          `json:"value,omitempty"`
	ValueDecimals      *uint8          `json:"valueDecimals,omitempty"`
	Score              string          `json:"score,omitempty"`
	Tag1               string          `json:"tag1,omitempty"`
	Tag2               string          `json:"tag2,omitempty"`
	Endpoint           string          `json:"endpoint,omitempty"`
	FeedbackURI        string          `json:"feedbackURI,omitempty"`
	FeedbackHash       string          `json:"feedbackHash,omitempty"`
	Reason             string          `json:"reason,omitempty"`
	Retracts           string          `json:"retracts,omitempty"`
	Responder          string          `json:"responder,omitempty"`
	ResponseURI        string          `json:"responseURI,omitempty"`
	ResponseHash       string          `json:"responseHash,omitempty"`
	ValidatorAddress   string          `json:"validatorAddress,omitempty"`
	RequestHash        string          `json:"requestHash,omitempty"`
	Response           *uint8          `json:"response,omitempty"`
	Tag                string          `json:"tag,omitempty"`
	BlockNumber        wide            `json:"blockNumber,omitempty"`
	BlockHash          string          `json:"blockHash,omitempty"`
	TransactionHash    string          `json:"transactionHash,omitempty"`
	LogIndex           *uint           `json:"logIndex,omitempty"`
	Timestamp          int64           `json:"timestamp,omitempty"`
	Action             Action          `json:"action"`
	Meta               json.RawMessage `json:"meta,omitempty"`
	Sanitized          []string        `json:"sanitized,omitempty"`
}

// MarshalJSON returns the job in the form of stored. It omits the headers of the endpoint, which are secret.
func (j Job) MarshalJSON() ([]byte, error) {
	s := stored{Type: j.Kind, ChainID: wide(j.ChainID), Tag1: j.Tag1, Tag2: j.Tag2, Endpoint: j.Endpoint,
		FeedbackURI: j.FeedbackURI, Reason: j.Reason, Retracts: j.Retracts, ResponseURI: j.ResponseURI, Tag: j.Tag,
		LogIndex: j.LogIndex, Timestamp: j.Timestamp, Action: j.Action, Meta: j.Meta, Sanitized: j.Sanitized,
		ReputationRegistry: formatAddress(j.ReputationRegistry), IdentityRegistry: formatAddress(j.IdentityRegistry),
		ValidationRegistry: formatAddress(j.ValidationRegistry), ClientAddress: formatAddress(j.ClientAddress),
		Responder: formatAddress(j.Responder), ValidatorAddress: formatAddress(j.ValidatorAddress),
		FeedbackHash: formatHash(j.FeedbackHash), ResponseHash: formatHash(j.ResponseHash),
		RequestHash: formatHash(j.RequestHash), BlockHash: formatHash(j.BlockHash),
		TransactionHash: formatHash(j.TransactionHash), AgentID: j.formatAgentID(),
		FeedbackIndex: wide(j.FeedbackIndex), BlockNumber: wide(j.BlockNumber)}
	switch {
	case j.Value == nil:
	case j.LegacyScore:
		s.Score = j.Value.String()
	default:
		s.Value, s.ValueDecimals = j.Value.String(), &j.ValueDecimals
	}
	if j.Kind == KindValidationResponse {
		s.Response = &j.Response
	}
	return json.Marshal(s)
}

// UnmarshalJSON decodes the output of MarshalJSON. It does not validate the job again: it returns an error only for
// fields that it cannot decode.
func (j *Job) UnmarshalJSON(raw []byte) error {
	var s stored
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("read a stored job: %w", err)
	}
	*j = Job{Kind: s.Type, ChainID: uint64(s.ChainID), Tag1: s.Tag1, Tag2: s.Tag2, Endpoint: s.Endpoint,
		FeedbackURI: s.FeedbackURI, Reason: s.Reason, Retracts: s.Retracts, FeedbackIndex: uint64(s.FeedbackIndex),
		BlockNumber: uint64(s.BlockNumber), LegacyScore: s.Score != "", ResponseURI: s.ResponseURI, Tag: s.Tag,
		LogIndex: s.LogIndex, Timestamp: s.Timestamp, Action: s.Action, Meta: s.Meta, Sanitized: s.Sanitized,
		ReputationRegistry: common.HexToAddress(s.ReputationRegistry),
		IdentityRegistry:   common.HexToAddress(s.IdentityRegistry),
		ValidationRegistry: common.HexToAddress(s.ValidationRegistry),
		ClientAddress:      common.HexToAddress(s.ClientAddress), Responder: common.HexToAddress(s.Responder),
		ValidatorAddress: common.HexToAddress(s.ValidatorAddress), FeedbackHash: common.HexToHash(s.FeedbackHash),
		ResponseHash: common.HexToHash(s.ResponseHash), RequestHash: common.HexToHash(s.RequestHash),
		BlockHash: common.HexToHash(s.BlockHash), TransactionHash: common.HexToHash(s.TransactionHash)}
	var ok bool
	if j.AgentID, ok = new(big.Int).SetString(s.AgentID, 10); !ok {
		return fmt.Errorf("read a stored job: agentId %q is not a decimal number", s.AgentID)
	}
	if v := cmp.Or(s.Value, s.Score); v != "" {
		if j.Value, ok = new(big.Int).SetString(v, 10); !ok {
			return fmt.Errorf("read a stored job: value %q is not a decimal number", v)
		}
	}
	if s.ValueDecimals != nil {
		j.ValueDecimals = *s.ValueDecimals
	}
	if s.Response != nil {
		j.Response = *s.Response
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

func formatAddress(a common.Address) string {
	if a == (common.Address{}) {
		return ""
	}
	return a.Hex()
}

func formatHash(h common.Hash) string {
	if h == (common.Hash{}) {
		return ""
	}
	return h.Hex()
}

// wide is an integer that is a JSON number up to maxExact, and a decimal string above it.
type wide uint64

func (w wide) MarshalJSON() ([]byte, error) {
	if w <= maxExact {
		return strconv.AppendUint(nil, uint64(w), 10), nil
	}
	return strconv.AppendQuote(nil, strconv.FormatUint(uint64(w), 10)), nil
}

func (w *wide) UnmarshalJSON(raw []byte) error {
	n, err := strconv.ParseUint(strings.Trim(string(raw), `"`), 10, 64)
	*w = wide(n)
	return err
}
