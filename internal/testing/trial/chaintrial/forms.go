package chaintrial

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
)

// registry is the registry that emits a form.
type registry int

const (
	identity registry = iota
	reputation
	validation
)

// form is an event as its contract declares it: its name, and its parameters as NAME:TYPE, with ! if they are
// indexed.
type form struct {
	by     registry
	name   string
	params string
}

// forms repeats the declarations, so that the decoder is not tested with its own list.
var forms = []form{
	{reputation, "NewFeedback",
		"agentId:uint256! client:address! index:uint64 value:int128 decimals:uint8 tag1:string! tag1:string " +
			"tag2:string endpoint:string uri:string hash:bytes32"},
	{reputation, "NewFeedback",
		"agentId:uint256! client:address! index:uint64 value:int256 decimals:uint8 tag1:string! tag1:string " +
			"tag2:string endpoint:string uri:string hash:bytes32"},
	{reputation, "NewFeedback",
		"agentId:uint256! client:address! index:uint64 magnitude:uint256 decimals:uint8 tag1:string! " +
			"tag1:string tag2:string endpoint:string uri:string hash:bytes32"},
	{reputation, "NewFeedback",
		"agentId:uint256! client:address! index:uint64 score:uint8 tag1:string! tag1:string tag2:string " +
			"endpoint:string uri:string hash:bytes32"},
	{reputation, "NewFeedback",
		"agentId:uint256! client:address! index:uint64 score:uint8 tag1:string! tag2:string endpoint:string " +
			"uri:string hash:bytes32"},
	{reputation, "NewFeedback",
		"agentId:uint256! client:address! score:uint8 tag1:string! tag2:string endpoint:string uri:string " +
			"hash:bytes32"},
	{reputation, "NewFeedback",
		"agentId:uint256! client:address! score:uint8 tag1:string! tag2:string uri:string hash:bytes32"},
	{reputation, "NewFeedback",
		"agentId:uint256! client:address! score:uint8 tag1:bytes32! tag2:bytes32 uri:string hash:bytes32"},
	{reputation, "FeedbackRevoked", "agentId:uint256! client:address! index:uint64!"},
	{reputation, "ResponseAppended",
		"agentId:uint256! client:address! index:uint64 responder:address! uri:string hash:bytes32"},
	{reputation, "ResponseAppended", "agentId:uint256! client:address! index:uint64 responder:address! uri:string"},
	{validation, "ValidationRequest", "validator:address! agentId:uint256! uri:string request:bytes32!"},
	{validation, "ValidationResponse",
		"validator:address! agentId:uint256! request:bytes32! response:uint8 uri:string hash:bytes32 " +
			"tag:string"},
	{validation, "ValidationResponse",
		"validator:address! agentId:uint256! request:bytes32! response:uint8 uri:string hash:bytes32 " +
			"tag:bytes32"},
	{validation, "ValidationResponse",
		"validator:address! agentId:uint256! request:bytes32! response:uint8 uri:string tag:bytes32"},
	{identity, "Registered", "agentId:uint256! uri:string account:address!"},
	{identity, "URIUpdated", "agentId:uint256! uri:string account:address!"},
	{identity, "UriUpdated", "agentId:uint256! uri:string account:address!"},
	{identity, "MetadataSet", "agentId:uint256! tag1:string! tag1:string metadata:bytes"},
	{identity, "MetadataSet", "agentId:uint256! tag1:string! tag1:string tag2:string"},
	{identity, "MetadataUpdate", "agentId:uint256"},
	{identity, "BatchMetadataUpdate", "agentId:uint256 lastId:uint256"},
	{identity, "Transfer", "from:address! to:address! agentId:uint256!"},
}

// has reports whether the form has a parameter with this name.
func (f form) has(name string) bool { return strings.Contains(" "+f.params, " "+name+":") }

// encode encodes the form's log. It calls value with the name and type of each parameter, which returns a Go value.
func (f form) encode(value func(name, of string) any) (Log, error) {
	var inputs, inData abi.Arguments
	var values, topics []any
	for p := range strings.FieldsSeq(f.params) {
		name, of, _ := strings.Cut(p, ":")
		of, isTopic := strings.CutSuffix(of, "!")
		t, err := abi.NewType(of, "", nil)
		if err != nil {
			return Log{}, fmt.Errorf("encode %s of %s: %w", name, f.name, err)
		}
		inputs = append(inputs, abi.Argument{Type: t})
		if v := value(name, of); isTopic {
			topics = append(topics, v)
		} else {
			inData, values = append(inData, abi.Argument{Type: t}), append(values, v)
		}
	}
	event := abi.NewEvent(f.name, f.name, false, inputs)
	data, dataErr := inData.Pack(values...)
	encoded, err := abi.MakeTopics(append([]any{event.ID}, topics...))
	if err = errors.Join(err, dataErr); err != nil {
		return Log{}, fmt.Errorf("encode %s: %w", event.Sig, err)
	}
	return Log{Topics: encoded[0], Data: data}, nil
}
