package erc8004

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// Kind is the name of an event. Events of different ABI forms have the same Kind.
type Kind string

// The kinds of events that Decode supports. UriUpdated of 2025 is decoded as URIUpdated.
const (
	NewFeedback         Kind = "NewFeedback"
	FeedbackRevoked     Kind = "FeedbackRevoked"
	ResponseAppended    Kind = "ResponseAppended"
	ValidationRequest   Kind = "ValidationRequest"
	ValidationResponse  Kind = "ValidationResponse"
	Registered          Kind = "Registered"
	URIUpdated          Kind = "URIUpdated"
	MetadataSet         Kind = "MetadataSet"
	MetadataUpdate      Kind = "MetadataUpdate"      // ERC-4906
	BatchMetadataUpdate Kind = "BatchMetadataUpdate" // ERC-4906
	Transfer            Kind = "Transfer"            // ERC-721
)

// Event is a log of a registry in normal form: independent of its ABI form. Kind determines which fields are set.
// Strings are as in the log: they may contain NUL and invalid UTF-8, and have at most MaxData bytes.
type Event struct {
	Kind Kind
	// Variant identifies the ABI form by the day on which the contracts or the text of ERC-8004 introduced it, such as
	// "2026-01-23" for the current NewFeedback. It is only for display.
	Variant string

	Address     common.Address // the contract that emitted the log
	BlockNumber uint64
	BlockHash   common.Hash
	TxHash      common.Hash
	LogIndex    uint // within the block
	Removed     bool // the node reported that a reorg removed the log

	AgentID *big.Int // never nil; for BatchMetadataUpdate, the first id
	LastID  *big.Int // BatchMetadataUpdate: the last id

	Client        common.Address // NewFeedback, FeedbackRevoked, ResponseAppended
	FeedbackIndex uint64         // 0 if HasIndex is false
	HasIndex      bool           // false for the forms of NewFeedback without an index
	Value         *big.Int       // NewFeedback; |Value| < 2^255, the registry allows 1e38
	ValueDecimals uint8
	LegacyScore   bool // Value is a score, 0 to 100: the form has `uint8 score`
	Tag1, Tag2    string
	Tag1Lost      bool // tag1 is not empty, but the log contains only its hash, Tag1Hash
	Tag1Hash      common.Hash
	Endpoint      string
	FeedbackURI   string
	FeedbackHash  common.Hash

	Responder    common.Address // ResponseAppended
	ResponseURI  string         // ResponseAppended, ValidationResponse
	ResponseHash common.Hash    // zero if the log contains none

	Validator   common.Address // ValidationRequest, ValidationResponse
	RequestURI  string
	RequestHash common.Hash
	Response    uint8 // 0..100 by the contract, 0..255 by its type
	Tag         string

	URI           string         // Registered, URIUpdated
	Account       common.Address // Registered: the owner; URIUpdated: the account that changed the URI
	From, To      common.Address // Transfer
	MetadataKey   string         // MetadataSet
	MetadataValue []byte
}

// NotKnownError is the error of Decode for a log that is not an event of ERC-8004. It may be a valid event of another
// standard.
type NotKnownError struct {
	Topic common.Hash // zero if the log has no topics
}

func (e *NotKnownError) Error() string {
	if e.Topic == (common.Hash{}) {
		return "the log is anonymous, not an event of ERC-8004"
	}
	return fmt.Sprintf("topic %s is not an event of ERC-8004", e.Topic)
}

// MalformedError is the error of Decode for a log whose first topic is that of a known event, but whose other topics or
// data cannot be decoded.
type MalformedError struct {
	Signature string
	Err       error
}

func (e *MalformedError) Error() string { return fmt.Sprintf("decoding %s: %v", e.Signature, e.Err) }
func (e *MalformedError) Unwrap() error { return e.Err }

var errTopics = errors.New("the number of indexed parameters differs")

// Decode converts a log to an Event. The error is a *NotKnownError or a *MalformedError. Decode does not check which
// contract emitted the log. Any contract can emit the same events, so the caller must compare Event.Address with the
// addresses of the registries.
func Decode(l types.Log) (Event, error) {
	if len(l.Topics) == 0 {
		return Event{}, &NotKnownError{}
	}
	f, ok := findForm(l.Topics[0])
	if !ok {
		return Event{}, &NotKnownError{Topic: l.Topics[0]}
	}
	e := Event{
		Kind: f.kind, Variant: f.since,
		Address: l.Address, BlockNumber: l.BlockNumber, BlockHash: l.BlockHash, TxHash: l.TxHash, LogIndex: l.Index,
		Removed: l.Removed,
	}
	if len(l.Topics) != 1+len(strings.Fields(f.indexed)) {
		return Event{}, &MalformedError{Signature: f.signature, Err: errTopics}
	}
	var indexed []byte // decoded like the words of the data
	for _, t := range l.Topics[1:] {
		indexed = append(indexed, t[:]...)
	}
	err := errors.Join(readFields(&e, f.indexed, indexed), readFields(&e, f.data, l.Data))
	if err == nil && e.Value != nil && e.Value.BitLen() > 255 {
		err = fmt.Errorf("value: %w", errRange)
	}
	if err != nil {
		return Event{}, &MalformedError{Signature: f.signature, Err: err}
	}
	return e, nil
}

// Topics returns the first topics of all forms of the given kinds of events, or of all kinds if none is given.
func Topics(kinds ...Kind) []common.Hash {
	var out []common.Hash
	for _, f := range forms {
		if len(kinds) == 0 || slices.Contains(kinds, f.kind) {
			out = append(out, f.topic)
		}
	}
	return out
}
