package job

import (
	"encoding/json"
	"math/big"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/ethereum/go-ethereum/common"
)

// Kind is the type of a job.
type Kind string

// The kinds of jobs. A job of KindAgentUpdated does not become a delivery. It raises the agent's epoch, so that workers
// no longer use cached data about the agent's endpoint.
const (
	KindNewFeedback        Kind = "NewFeedback"
	KindFeedbackRevoked    Kind = "FeedbackRevoked"
	KindResponseAppended   Kind = "ResponseAppended"
	KindValidationResponse Kind = "ValidationResponse"
	KindAgentUpdated       Kind = "AgentUpdated"
)

// DeliveredKinds returns the kinds of jobs that become deliveries.
func DeliveredKinds() []Kind {
	return []Kind{KindNewFeedback, KindFeedbackRevoked, KindResponseAppended, KindValidationResponse}
}

// TaskTypes returns all kinds. A task in asynq has the kind of its job as its type.
func TaskTypes() []string {
	return []string{string(KindNewFeedback), string(KindFeedbackRevoked), string(KindResponseAppended),
		string(KindValidationResponse), string(KindAgentUpdated)}
}

// Values of Job.Reason for a FeedbackRevoked.
const (
	RevokedByClient = "client" // a revocation: the client withdrew the feedback
	RevokedByReorg  = "reorg"  // a retraction: a reorg removed the feedback from the chain
)

// Job describes one event to deliver. It is the same for jobs in Herald's form and in the old backend's, and for events
// read from a chain. Fields that its kind does not use are zero, except the registries.
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

	Reason   string // FeedbackRevoked: RevokedByClient or RevokedByReorg
	Retracts string // id of the delivery of the removed feedback, in a job that the method Retraction returned

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
	Meta      json.RawMessage // any object of the sender, stored with the job; Herald does not interpret it
	Sanitized []string        // paths of strings in which NUL or invalid UTF-8 was replaced; at most 32
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

// Endpoint is an MCP server that the job's sender names, to be called instead of the server that the agent registered.
// It is used only if Action.ResolveEndpoint is false.
type Endpoint struct {
	Transport string                   `json:"transport"` // http, sse, stdio
	URL       string                   `json:"url,omitempty"`
	Headers   map[string]secret.Secret `json:"-"` // encrypted at intake
	Command   string                   `json:"command,omitempty"`
	Args      []string                 `json:"args,omitempty"`
}
