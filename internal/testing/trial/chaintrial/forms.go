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

// Parameters that several forms have.
const (
	pair   = "agentId:uint256! client:address! "
	index  = "index:uint64 "
	tags   = "tag1:string! tag1:string tag2:string "
	hashed = "uri:string hash:bytes32"
	answer = "validator:address! agentId:uint256! request:bytes32! response:uint8 "
	set    = "agentId:uint256! tag1:string! tag1:string "
)

// forms repeats the declarations, so that the decoder is not tested with its own list.
var forms = []form{
	{reputation, "NewFeedback", pair + index + "value:int128 decimals:uint8 " + tags + "endpoint:string " + hashed},
	{reputation, "NewFeedback", pair + index + "value:int256 decimals:uint8 " + tags + "endpoint:string " + hashed},
	{reputation, "NewFeedback", pair + index + "magnitude:uint256 decimals:uint8 " + tags + "endpoint:string " + hashed},
	{reputation, "NewFeedback", pair + index + "score:uint8 " + tags + "endpoint:string " + hashed},
	{reputation, "NewFeedback", pair + index + "score:uint8 tag1:string! tag2:string endpoint:string " + hashed},
	{reputation, "NewFeedback", pair + "score:uint8 tag1:string! tag2:string endpoint:string " + hashed},
	{reputation, "NewFeedback", pair + "score:uint8 tag1:string! tag2:string " + hashed},
	{reputation, "NewFeedback", pair + "score:uint8 tag1:bytes32! tag2:bytes32 " + hashed},
	{reputation, "FeedbackRevoked", pair + "index:uint64!"},
	{reputation, "ResponseAppended", pair + index + "responder:address! " + hashed},
	{reputation, "ResponseAppended", pair + index + "responder:address! uri:string"},
	{validation, "ValidationRequest", "validator:address! agentId:uint256! uri:string request:bytes32!"},
	{validation, "ValidationResponse", answer + hashed + " tag:string"},
	{validation, "ValidationResponse", answer + hashed + " tag:bytes32"},
	{validation, "ValidationResponse", answer + "uri:string tag:bytes32"},
	{identity, "Registered", "agentId:uint256! uri:string account:address!"},
	{identity, "URIUpdated", "agentId:uint256! uri:string account:address!"},
	{identity, "UriUpdated", "agentId:uint256! uri:string account:address!"},
	{identity, "MetadataSet", set + "metadata:bytes"},
	{identity, "MetadataSet", set + "tag2:string"},
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
