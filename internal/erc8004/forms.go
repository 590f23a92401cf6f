package erc8004

import (
	"bytes"
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// form is one ABI form of an event. A form has the fields whose names in eventFields are in indexed and data, in the
// order of the ABI. The fields in indexed are in the log's topics after the first, those in data in the log's data.
type form struct {
	topic         common.Hash // the first topic: the hash of signature
	kind          Kind
	since         string // Event.Variant
	signature     string
	indexed, data string // names of eventFields, separated by spaces
}

// forms contains all forms of all events. It contains each topic as a literal, and a test compares it with the hash of
// the signature, so that neither can be mistyped.
var forms = []form{
	{common.HexToHash("0x6a4a61743519c9d648a14e6493f47dbe3ff1aa29e7785c96c8326a205e58febc"), NewFeedback,
		"2026-01-23", "NewFeedback(uint256,address,uint64,int128,uint8,string,string,string,string,string,bytes32)",
		"agentId client tag1Hash", "feedbackIndex value valueDecimals tag1 tag2 endpoint feedbackURI feedbackHash"},
	{common.HexToHash("0x413f2d30fdbc0b49e55537333a7c6287556f671f40c7e2dc00fc7ca1ced350da"), NewFeedback,
		"2026-01-19", "NewFeedback(uint256,address,uint64,int256,uint8,string,string,string,string,string,bytes32)",
		"agentId client tag1Hash", "feedbackIndex value valueDecimals tag1 tag2 endpoint feedbackURI feedbackHash"},
	{common.HexToHash("0xa96589249279e205e9aa2d2299594d8c5c745cf90e49514145db5dbdea256240"), NewFeedback,
		"2026-01-18", "NewFeedback(uint256,address,uint64,uint256,uint8,string,string,string,string,string,bytes32)",
		"agentId client tag1Hash", "feedbackIndex unsignedValue valueDecimals tag1 tag2 endpoint feedbackURI " +
			"feedbackHash"},
	{common.HexToHash("0x31f01d2aa5cdbe0619011211e9ffc39d678bc82e46d60c35953396ae61e896d8"), NewFeedback,
		"2026-01-11", "NewFeedback(uint256,address,uint64,uint8,string,string,string,string,string,bytes32)",
		"agentId client tag1Hash", "feedbackIndex score tag1 tag2 endpoint feedbackURI feedbackHash"},
	{common.HexToHash("0x801d7d4264128f6f43835850f1fabb91902c3543c3738f1f62fbf7e9fd80531d"), NewFeedback,
		"2026-01-07", "NewFeedback(uint256,address,uint64,uint8,string,string,string,string,bytes32)",
		"agentId client lostTag1", "feedbackIndex score tag2 endpoint feedbackURI feedbackHash"},
	{common.HexToHash("0x425311b4692766f8739eaeea31a86b5756c7c315d17abc22bc9e67628405d6a7"), NewFeedback,
		"2025-12-18", "NewFeedback(uint256,address,uint8,string,string,string,string,bytes32)",
		"agentId client lostTag1", "score tag2 endpoint feedbackURI feedbackHash"},
	{common.HexToHash("0x744ec89483257dd170f417f1c3aef90840a2d763449395ba4f09e37f78a0c98b"), NewFeedback,
		"2025-11-12", "NewFeedback(uint256,address,uint8,string,string,string,bytes32)",
		"agentId client lostTag1", "score tag2 feedbackURI feedbackHash"},
	{common.HexToHash("0x54b3254e4cc01969e70376d20390cc2f6af90539d9adaa78a53ebcda17f78154"), NewFeedback,
		"2025-10-08", "NewFeedback(uint256,address,uint8,bytes32,bytes32,string,bytes32)",
		"agentId client tag1Bytes32", "score tag2Bytes32 feedbackURI feedbackHash"},
	{common.HexToHash("0x25156fd3288212246d8b008d5921fde376c71ed14ac2e072a506eb06fde6d09d"), FeedbackRevoked,
		"2025-10-08", "FeedbackRevoked(uint256,address,uint64)",
		"agentId client feedbackIndex", ""},
	{common.HexToHash("0xb1c6be0b5b8aef6539e2fac0fd131a2faa7b49edf8e505b5eb0ad487d56051d4"), ResponseAppended,
		"2025-10-09", "ResponseAppended(uint256,address,uint64,address,string,bytes32)",
		"agentId client responder", "feedbackIndex responseURI responseHash"},
	{common.HexToHash("0x91a4f57c12b47a488ba7365f0e60d24a1348fc94afddf6c60e0e22b018365408"), ResponseAppended,
		"2025-10-08", "ResponseAppended(uint256,address,uint64,address,string)",
		"agentId client responder", "feedbackIndex responseURI"},
	{common.HexToHash("0x530436c3634a98e1e626b0898be2f1e9980cc1bd2a78c07a0aba52d0a48a5059"), ValidationRequest,
		"2025-10-08", "ValidationRequest(address,uint256,string,bytes32)",
		"validator agentId requestHash", "requestURI"},
	{common.HexToHash("0xafddf629e874ccc3963b6a888c477bd464a6c8525024fc88759ea3b2326349ae"), ValidationResponse,
		"2025-11-12", "ValidationResponse(address,uint256,bytes32,uint8,string,bytes32,string)",
		"validator agentId requestHash", "response responseURI responseHash tag"},
	{common.HexToHash("0xf224d3d5ad74301be48e4d51ca5f1b24c7946875887327585becc59165297dcf"), ValidationResponse,
		"2025-10-14", "ValidationResponse(address,uint256,bytes32,uint8,string,bytes32,bytes32)",
		"validator agentId requestHash", "response responseURI responseHash tagBytes32"},
	{common.HexToHash("0xcc61e07d65464186112fdaddb4b11ccef1928644b11f17e2864b38b451195671"), ValidationResponse,
		"2025-10-08", "ValidationResponse(address,uint256,bytes32,uint8,string,bytes32)",
		"validator agentId requestHash", "response responseURI tagBytes32"},
	{common.HexToHash("0xca52e62c367d81bb2e328eb795f7c7ba24afb478408a26c0e201d155c449bc4a"), Registered, "2025-10-08",
		"Registered(uint256,string,address)",
		"agentId account", "uri"},
	{common.HexToHash("0x3a2c7fffc2cba7582c690e3b82c453ea02a308326a98a3ad7576c606336409fb"), URIUpdated, "2026-01-07",
		"URIUpdated(uint256,string,address)",
		"agentId account", "uri"},
	{common.HexToHash("0xb41beef75d9f8d55b985319b459e96f82453580af381391f1ad531eb8f8b5a3a"), URIUpdated, "2025-10-13",
		"UriUpdated(uint256,string,address)",
		"agentId account", "uri"},
	{common.HexToHash("0x2c149ed548c6d2993cd73efe187df6eccabe4538091b33adbd25fafdb8a1468b"), MetadataSet,
		"2025-10-08", "MetadataSet(uint256,string,string,bytes)",
		"agentId indexedKey", "metadataKey metadataValue"},
	{common.HexToHash("0x2dbec70f51f7b79cc6a9d4ea913abc7d680b523e0763e3ad622612950757609c"), MetadataSet,
		"2025-11-12", "MetadataSet(uint256,string,string,string)",
		"agentId indexedKey", "metadataKey metadataValue"},
	{common.HexToHash("0xf8e1a15aba9398e019f0b49df1a4fde98ee17ae345cb5f6b5e2c27f5033e8ce7"), MetadataUpdate,
		"2025-10-08", "MetadataUpdate(uint256)",
		"", "agentId"},
	{common.HexToHash("0x6bd5c950a8d8df17f772f5af37cb3655737899cbf903264b9795592da439661c"), BatchMetadataUpdate,
		"2025-10-08", "BatchMetadataUpdate(uint256,uint256)",
		"", "agentId lastId"},
	// An ERC-20 Transfer has the same topic but one indexed parameter less, so Decode rejects it by the number of
	// topics.
	{common.HexToHash("0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"), Transfer, "2025-10-08",
		"Transfer(address,address,uint256)",
		"from to agentId", ""},
}

// findForm returns the form with this first topic.
func findForm(topic common.Hash) (form, bool) {
	for _, f := range forms {
		if f.topic == topic {
			return f, true
		}
	}
	return form{}, false
}

// readFields decodes data and sets the fields of e that names lists. data is the concatenated topics of the indexed
// fields, or the log's data.
func readFields(e *Event, names string, data []byte) error {
	list := strings.Fields(names)
	of := make([]abi.Type, len(list))
	for i, name := range list {
		of[i] = eventFields[name].of
	}
	values, err := unpackValues(data, of...)
	if err != nil {
		return err
	}
	for i, name := range list {
		eventFields[name].set(e, values[i])
	}
	return nil
}

// eventFields contains the fields of all forms by name: the ABI type, and the function that sets the decoded value in
// an Event.
var eventFields = map[string]struct {
	of  abi.Type
	set func(e *Event, v any)
}{
	"agentId":   {uint256Type, func(e *Event, v any) { e.AgentID = v.(*big.Int) }},
	"lastId":    {uint256Type, func(e *Event, v any) { e.LastID = v.(*big.Int) }},
	"client":    {addressType, func(e *Event, v any) { e.Client = v.(common.Address) }},
	"responder": {addressType, func(e *Event, v any) { e.Responder = v.(common.Address) }},
	"validator": {addressType, func(e *Event, v any) { e.Validator = v.(common.Address) }},
	"account":   {addressType, func(e *Event, v any) { e.Account = v.(common.Address) }},
	"from":      {addressType, func(e *Event, v any) { e.From = v.(common.Address) }},
	"to":        {addressType, func(e *Event, v any) { e.To = v.(common.Address) }},

	"feedbackIndex": {uint64Type, func(e *Event, v any) { e.FeedbackIndex, e.HasIndex = v.(uint64), true }},
	"value":         {int256Type, func(e *Event, v any) { e.Value = v.(*big.Int) }},
	"unsignedValue": {uint256Type, func(e *Event, v any) { e.Value = v.(*big.Int) }},
	"score":         {uint8Type, func(e *Event, v any) { e.Value, e.LegacyScore = big.NewInt(int64(v.(uint8))), true }},
	"valueDecimals": {uint8Type, func(e *Event, v any) { e.ValueDecimals = v.(uint8) }},
	"tag1Hash":      {hashType, func(e *Event, v any) { e.Tag1Hash = v.(common.Hash) }},
	// The hash of tag1 in a form whose data does not repeat tag1. From the hash of the empty string, tag1 is known.
	"lostTag1": {hashType, func(e *Event, v any) {
		e.Tag1Hash = v.(common.Hash)
		e.Tag1Lost = e.Tag1Hash != types.EmptyCodeHash // keccak256 of no bytes
	}},
	"tag1":        {stringType, func(e *Event, v any) { e.Tag1 = v.(string) }},
	"tag2":        {stringType, func(e *Event, v any) { e.Tag2 = v.(string) }},
	"tag":         {stringType, func(e *Event, v any) { e.Tag = v.(string) }},
	"tag1Bytes32": {hashType, func(e *Event, v any) { e.Tag1 = formatTag32(v.(common.Hash)) }},
	"tag2Bytes32": {hashType, func(e *Event, v any) { e.Tag2 = formatTag32(v.(common.Hash)) }},
	"tagBytes32":  {hashType, func(e *Event, v any) { e.Tag = formatTag32(v.(common.Hash)) }},

	"endpoint":      {stringType, func(e *Event, v any) { e.Endpoint = v.(string) }},
	"feedbackURI":   {stringType, func(e *Event, v any) { e.FeedbackURI = v.(string) }},
	"feedbackHash":  {hashType, func(e *Event, v any) { e.FeedbackHash = v.(common.Hash) }},
	"requestURI":    {stringType, func(e *Event, v any) { e.RequestURI = v.(string) }},
	"requestHash":   {hashType, func(e *Event, v any) { e.RequestHash = v.(common.Hash) }},
	"response":      {uint8Type, func(e *Event, v any) { e.Response = v.(uint8) }},
	"responseURI":   {stringType, func(e *Event, v any) { e.ResponseURI = v.(string) }},
	"responseHash":  {hashType, func(e *Event, v any) { e.ResponseHash = v.(common.Hash) }},
	"uri":           {stringType, func(e *Event, v any) { e.URI = v.(string) }},
	"indexedKey":    {hashType, func(*Event, any) {}},
	"metadataKey":   {stringType, func(e *Event, v any) { e.MetadataKey = v.(string) }},
	"metadataValue": {bytesType, func(e *Event, v any) { e.MetadataValue = bytes.Clone(v.([]byte)) }},
}
