package job

import (
	"encoding/json"
	"math/big"

	"github.com/agentherald/herald/internal/secret"
	"github.com/ethereum/go-ethereum/common"
)

// Kind is the type of a job.
type Kind string

// The kinds. AgentUpdated raises an agent's epoch and is not delivered.
const (
	KindNewFeedback        Kind = "NewFeedback"
	KindFeedbackRevoked    Kind = "FeedbackRevoked"
	KindResponseAppended   Kind = "ResponseAppended"
	KindValidationResponse Kind = "ValidationResponse"
	KindAgentUpdated       Kind = "AgentUpdated"
)

// TaskTypes returns the kinds as asynq task types.
func TaskTypes() []string {
	return []string{string(KindNewFeedback), string(KindFeedbackRevoked), string(KindResponseAppended),
		string(KindValidationResponse), string(KindAgentUpdated)}
}

// Reasons of a FeedbackRevoked.
const (
	RevokedByClient = "client"
	RevokedByReorg  = "reorg"
)

// Job is one event to deliver, in normal form. Fields that a kind does not use are zero.
type Job struct {
	Kind               Kind
	ChainID            uint64
	ReputationRegistry common.Address
	IdentityRegistry   common.Address
	ValidationRegistry common.Address
	AgentID            *big.Int // 0 ≤ id < 2^256

	ClientAddress common.Address
	FeedbackIndex uint64   // 1-based per (agent, client)
	Value         *big.Int // int128, |value| ≤ 1e38; the rating is Value / 10^ValueDecimals
	ValueDecimals uint8    // 0 to 18
	LegacyScore   bool     // the job contained the older `score`, 0 to 100, instead of value
	Tag1, Tag2    string
	Endpoint      string // the endpoint that the client rated; untrusted text, never called
	FeedbackURI   string
	FeedbackHash  common.Hash // keccak256 of the file; zero if the job contains none

	Reason   string // FeedbackRevoked: client or reorg
	Retracts string // FeedbackRevoked by a reorg, made by Herald: id of the delivery that it retracts

	Responder    common.Address
	ResponseURI  string
	ResponseHash common.Hash

	ValidatorAddress common.Address
	RequestHash      common.Hash
	Response         uint8 // 0 to 100
	Tag              string

	BlockNumber     uint64
	BlockHash       common.Hash
	TransactionHash common.Hash // zero if the job contains none
	LogIndex        *uint       // nil if the job contains none
	Timestamp       int64       // unix seconds of the block

	Action    Action
	Meta      json.RawMessage // stored for the sender; Herald does not interpret it
	Sanitized []string        // paths of strings that were repaired to be storable; at most 32
}

// Action describes how to deliver a job.
type Action struct {
	ToolName           string          `json:"toolName,omitempty"` // empty only for AgentUpdated
	ResolveEndpoint    bool            `json:"resolveEndpoint"`
	Endpoint           *Endpoint       `json:"endpoint"`
	IncludeFileContent bool            `json:"includeFileContent"`
	VerifyFileHash     bool            `json:"verifyFileHash"`
	PayloadTemplate    json.RawMessage `json:"payloadTemplate"`
	TimeoutMs          int             `json:"timeoutMs,omitempty"` // 0 means the configured call timeout
}

// Endpoint is an MCP server that the job's sender names. It is used only if Action.ResolveEndpoint is false.
type Endpoint struct {
	Transport string                   `json:"transport"` // http, sse, stdio
	URL       string                   `json:"url,omitempty"`
	Headers   map[string]secret.Secret `json:"-"` // encrypted at intake
	Command   string                   `json:"command,omitempty"`
	Args      []string                 `json:"args,omitempty"`
}
