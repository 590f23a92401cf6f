package chaintrial

import (
	"fmt"
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// registry is the registry that emits a form.
type registry int

const (
	identity registry = iota
	reputation
	validation
	registries // the number of registries
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

// Feedback is an event of the current reputation registry, with 0 decimals and without tag2.
type Feedback struct {
	Agent              uint64
	Client             common.Address
	Index              uint64
	Value              int64
	Tag, Endpoint, URI string
	Hash               common.Hash
}

// Encode returns the event's log.
func (f Feedback) Encode() (Log, error) {
	values := map[string]any{"agentId": new(big.Int).SetUint64(f.Agent), "client": f.Client, "index": f.Index,
		"value": big.NewInt(f.Value), "decimals": uint8(0), "tag1": f.Tag, "tag2": "", "endpoint": f.Endpoint,
		"uri": f.URI, "hash": f.Hash}
	return forms[0].encode(func(name, _ string) any { return values[name] })
}

// has reports whether the form has a parameter with this name.
func (f form) has(name string) bool { return strings.Contains(" "+f.params, " "+name+":") }

// signature returns the text whose hash is the first topic.
func (f form) signature() string {
	var types []string
	for p := range strings.FieldsSeq(f.params) {
		_, t, _ := strings.Cut(p, ":")
		types = append(types, strings.TrimSuffix(t, "!"))
	}
	return f.name + "(" + strings.Join(types, ",") + ")"
}

// encode encodes the form's log. It calls value with the name and type of each parameter, which returns a Go value.
func (f form) encode(value func(name, of string) any) (Log, error) {
	log := Log{Topics: []common.Hash{crypto.Keccak256Hash([]byte(f.signature()))}}
	var arguments abi.Arguments
	var values []any
	for p := range strings.FieldsSeq(f.params) {
		name, of, _ := strings.Cut(p, ":")
		of, isTopic := strings.CutSuffix(of, "!")
		v := value(name, of)
		if text, ok := v.(string); ok && isTopic {
			log.Topics = append(log.Topics, crypto.Keccak256Hash([]byte(text)))
			continue
		}
		t, err := abi.NewType(of, "", nil)
		if err != nil {
			return Log{}, fmt.Errorf("encode %s: %w", f.signature(), err)
		}
		if isTopic {
			word, err := abi.Arguments{{Type: t}}.Pack(v)
			if err != nil {
				return Log{}, fmt.Errorf("encode topic %s of %s: %w", name, f.signature(), err)
			}
			log.Topics = append(log.Topics, common.BytesToHash(word))
			continue
		}
		arguments, values = append(arguments, abi.Argument{Type: t}), append(values, v)
	}
	var err error
	if log.Data, err = arguments.Pack(values...); err != nil {
		return Log{}, fmt.Errorf("encode %s: %w", f.signature(), err)
	}
	return log, nil
}
