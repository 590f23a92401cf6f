package erc8004

import (
	"bytes"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// form is one ABI form of an event. topics counts topic0 too.
type form struct {
	topic     common.Hash
	signature string
	kind      Kind
	since     string
	topics    int
	read      func(e *Event, indexed, data *words)
}

func formOf(topic common.Hash) (form, bool) {
	for _, f := range forms() {
		if f.topic == topic {
			return f, true
		}
	}
	return form{}, false
}

// forms lists every form. The topics are written out, so that a mistyped signature cannot move one: the test computes them
// from the signatures.
func forms() []form {
	return []form{
		{common.HexToHash("0x6a4a61743519c9d648a14e6493f47dbe3ff1aa29e7785c96c8326a205e58febc"),
			"NewFeedback(uint256,address,uint64,int128,uint8,string,string,string,string,string,bytes32)",
			NewFeedback, "2026-01-23", 4, readFeedbackValue},
		{common.HexToHash("0x413f2d30fdbc0b49e55537333a7c6287556f671f40c7e2dc00fc7ca1ced350da"),
			"NewFeedback(uint256,address,uint64,int256,uint8,string,string,string,string,string,bytes32)",
			NewFeedback, "2026-01-19", 4, readFeedbackValue},
		{common.HexToHash("0xa96589249279e205e9aa2d2299594d8c5c745cf90e49514145db5dbdea256240"),
			"NewFeedback(uint256,address,uint64,uint256,uint8,string,string,string,string,string,bytes32)",
			NewFeedback, "2026-01-18", 4, readFeedbackUnsigned},
		{common.HexToHash("0x31f01d2aa5cdbe0619011211e9ffc39d678bc82e46d60c35953396ae61e896d8"),
			"NewFeedback(uint256,address,uint64,uint8,string,string,string,string,string,bytes32)",
			NewFeedback, "2026-01-11", 4, readFeedbackJan11},
		{common.HexToHash("0x801d7d4264128f6f43835850f1fabb91902c3543c3738f1f62fbf7e9fd80531d"),
			"NewFeedback(uint256,address,uint64,uint8,string,string,string,string,bytes32)",
			NewFeedback, "2026-01-07", 4, readFeedbackJan07},
		{common.HexToHash("0x425311b4692766f8739eaeea31a86b5756c7c315d17abc22bc9e67628405d6a7"),
			"NewFeedback(uint256,address,uint8,string,string,string,string,bytes32)",
			NewFeedback, "2025-12-18", 4, readFeedbackDec18},
		{common.HexToHash("0x744ec89483257dd170f417f1c3aef90840a2d763449395ba4f09e37f78a0c98b"),
			"NewFeedback(uint256,address,uint8,string,string,string,bytes32)",
			NewFeedback, "2025-11-12", 4, readFeedbackNov12},
		{common.HexToHash("0x54b3254e4cc01969e70376d20390cc2f6af90539d9adaa78a53ebcda17f78154"),
			"NewFeedback(uint256,address,uint8,bytes32,bytes32,string,bytes32)",
			NewFeedback, "2025-10-08", 4, readFeedbackOct08},
		{common.HexToHash("0x25156fd3288212246d8b008d5921fde376c71ed14ac2e072a506eb06fde6d09d"),
			"FeedbackRevoked(uint256,address,uint64)",
			FeedbackRevoked, "2025-10-08", 4, func(e *Event, indexed, _ *words) {
				readPair(e, indexed)
				e.FeedbackIndex, e.HasIndex = indexed.uint64(2, "feedbackIndex"), true
			}},
		{common.HexToHash("0xb1c6be0b5b8aef6539e2fac0fd131a2faa7b49edf8e505b5eb0ad487d56051d4"),
			"ResponseAppended(uint256,address,uint64,address,string,bytes32)",
			ResponseAppended, "2025-10-09", 4, func(e *Event, indexed, data *words) {
				readAppended(e, indexed, data)
				e.ResponseHash = data.hash(2, "responseHash")
			}},
		{common.HexToHash("0x91a4f57c12b47a488ba7365f0e60d24a1348fc94afddf6c60e0e22b018365408"),
			"ResponseAppended(uint256,address,uint64,address,string)",
			ResponseAppended, "2025-10-08", 4, readAppended},
		{common.HexToHash("0x530436c3634a98e1e626b0898be2f1e9980cc1bd2a78c07a0aba52d0a48a5059"),
			"ValidationRequest(address,uint256,string,bytes32)",
			ValidationRequest, "2025-10-08", 4, func(e *Event, indexed, data *words) {
				readValidation(e, indexed)
				e.RequestURI = data.string(0, "requestURI")
			}},
		{common.HexToHash("0xafddf629e874ccc3963b6a888c477bd464a6c8525024fc88759ea3b2326349ae"),
			"ValidationResponse(address,uint256,bytes32,uint8,string,bytes32,string)",
			ValidationResponse, "2025-11-12", 4, func(e *Event, indexed, data *words) {
				readValidated(e, indexed, data)
				e.ResponseHash, e.Tag = data.hash(2, "responseHash"), data.string(3, "tag")
			}},
		{common.HexToHash("0xf224d3d5ad74301be48e4d51ca5f1b24c7946875887327585becc59165297dcf"),
			"ValidationResponse(address,uint256,bytes32,uint8,string,bytes32,bytes32)",
			ValidationResponse, "2025-10-14", 4, func(e *Event, indexed, data *words) {
				readValidated(e, indexed, data)
				e.ResponseHash, e.Tag = data.hash(2, "responseHash"), data.tag32(3, "tag")
			}},
		{common.HexToHash("0xcc61e07d65464186112fdaddb4b11ccef1928644b11f17e2864b38b451195671"),
			"ValidationResponse(address,uint256,bytes32,uint8,string,bytes32)",
			ValidationResponse, "2025-10-08", 4, func(e *Event, indexed, data *words) {
				readValidated(e, indexed, data)
				e.Tag = data.tag32(2, "tag")
			}},
		{common.HexToHash("0xca52e62c367d81bb2e328eb795f7c7ba24afb478408a26c0e201d155c449bc4a"),
			"Registered(uint256,string,address)",
			Registered, "2025-10-08", 3, readURI},
		{common.HexToHash("0x3a2c7fffc2cba7582c690e3b82c453ea02a308326a98a3ad7576c606336409fb"),
			"URIUpdated(uint256,string,address)",
			URIUpdated, "2026-01-07", 3, readURI},
		{common.HexToHash("0xb41beef75d9f8d55b985319b459e96f82453580af381391f1ad531eb8f8b5a3a"),
			"UriUpdated(uint256,string,address)",
			URIUpdated, "2025-10-13", 3, readURI},
		{common.HexToHash("0x2c149ed548c6d2993cd73efe187df6eccabe4538091b33adbd25fafdb8a1468b"),
			"MetadataSet(uint256,string,string,bytes)",
			MetadataSet, "2025-10-08", 3, readMetadata},
		{common.HexToHash("0x2dbec70f51f7b79cc6a9d4ea913abc7d680b523e0763e3ad622612950757609c"),
			"MetadataSet(uint256,string,string,string)",
			MetadataSet, "2025-11-12", 3, readMetadata},
		{common.HexToHash("0xf8e1a15aba9398e019f0b49df1a4fde98ee17ae345cb5f6b5e2c27f5033e8ce7"),
			"MetadataUpdate(uint256)",
			MetadataUpdate, "2025-10-08", 1, func(e *Event, _, data *words) {
				e.AgentID = data.uint256(0, "tokenId")
			}},
		{common.HexToHash("0x6bd5c950a8d8df17f772f5af37cb3655737899cbf903264b9795592da439661c"),
			"BatchMetadataUpdate(uint256,uint256)",
			BatchMetadataUpdate, "2025-10-08", 1, func(e *Event, _, data *words) {
				e.AgentID, e.LastID = data.uint256(0, "fromTokenId"), data.uint256(1, "toTokenId")
			}},
		{common.HexToHash("0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"),
			"Transfer(address,address,uint256)",
			// An ERC-20 Transfer has the same topic and one indexed parameter less; the count keeps it out.
			Transfer, "2025-10-08", 4, func(e *Event, indexed, _ *words) {
				e.From, e.To = indexed.address(0, "from"), indexed.address(1, "to")
				e.AgentID = indexed.uint256(2, "tokenId")
			}},
	}
}

func readPair(e *Event, indexed *words) {
	e.AgentID = indexed.uint256(0, "agentId")
	e.Client = indexed.address(1, "clientAddress")
}

func readFeedbackValue(e *Event, indexed, data *words) {
	e.Value = data.int256(1, "value")
	readFeedbackCurrent(e, indexed, data)
}

func readFeedbackUnsigned(e *Event, indexed, data *words) {
	e.Value = data.uint256(1, "value")
	if e.Value.BitLen() > 255 {
		data.fail("value", errRange)
	}
	readFeedbackCurrent(e, indexed, data)
}

// readFeedbackCurrent reads what the three forms with a value share.
func readFeedbackCurrent(e *Event, indexed, data *words) {
	readPair(e, indexed)
	e.Tag1Hash = indexed.hash(2, "indexedTag1")
	e.FeedbackIndex, e.HasIndex = data.uint64(0, "feedbackIndex"), true
	e.ValueDecimals = data.uint8(2, "valueDecimals")
	e.Tag1, e.Tag2 = data.string(3, "tag1"), data.string(4, "tag2")
	e.Endpoint, e.FeedbackURI = data.string(5, "endpoint"), data.string(6, "feedbackURI")
	e.FeedbackHash = data.hash(7, "feedbackHash")
}

func readScore(e *Event, indexed, data *words, i int) {
	readPair(e, indexed)
	e.Value, e.LegacyScore = new(big.Int).SetUint64(uint64(data.uint8(i, "score"))), true
}

func readFeedbackJan11(e *Event, indexed, data *words) {
	readScore(e, indexed, data, 1)
	e.Tag1Hash = indexed.hash(2, "indexedTag1")
	e.FeedbackIndex, e.HasIndex = data.uint64(0, "feedbackIndex"), true
	e.Tag1, e.Tag2 = data.string(2, "tag1"), data.string(3, "tag2")
	e.Endpoint, e.FeedbackURI = data.string(4, "endpoint"), data.string(5, "feedbackURI")
	e.FeedbackHash = data.hash(6, "feedbackHash")
}

func readFeedbackJan07(e *Event, indexed, data *words) {
	readScore(e, indexed, data, 1)
	e.loseTag1(indexed)
	e.FeedbackIndex, e.HasIndex = data.uint64(0, "feedbackIndex"), true
	e.Tag2, e.Endpoint, e.FeedbackURI = data.string(2, "tag2"), data.string(3, "endpoint"), data.string(4, "feedbackURI")
	e.FeedbackHash = data.hash(5, "feedbackHash")
}

func readFeedbackDec18(e *Event, indexed, data *words) {
	readScore(e, indexed, data, 0)
	e.loseTag1(indexed)
	e.Tag2, e.Endpoint, e.FeedbackURI = data.string(1, "tag2"), data.string(2, "endpoint"), data.string(3, "feedbackURI")
	e.FeedbackHash = data.hash(4, "feedbackHash")
}

func readFeedbackNov12(e *Event, indexed, data *words) {
	readScore(e, indexed, data, 0)
	e.loseTag1(indexed)
	e.Tag2, e.FeedbackURI = data.string(1, "tag2"), data.string(2, "feedbackURI")
	e.FeedbackHash = data.hash(3, "feedbackHash")
}

func readFeedbackOct08(e *Event, indexed, data *words) {
	readScore(e, indexed, data, 0)
	e.Tag1, e.Tag2 = indexed.tag32(2, "tag1"), data.tag32(1, "tag2")
	e.FeedbackURI, e.FeedbackHash = data.string(2, "feedbackURI"), data.hash(3, "feedbackHash")
}

// loseTag1 keeps the hash of a tag that was indexed and not repeated. The hash of the empty string is no loss.
func (e *Event) loseTag1(indexed *words) {
	e.Tag1Hash = indexed.hash(2, "tag1")
	e.Tag1Lost = e.Tag1Hash != types.EmptyCodeHash // keccak256 of nothing
}

func readAppended(e *Event, indexed, data *words) {
	readPair(e, indexed)
	e.Responder = indexed.address(2, "responder")
	e.FeedbackIndex, e.HasIndex = data.uint64(0, "feedbackIndex"), true
	e.ResponseURI = data.string(1, "responseURI")
}

func readValidation(e *Event, indexed *words) {
	e.Validator, e.AgentID = indexed.address(0, "validatorAddress"), indexed.uint256(1, "agentId")
	e.RequestHash = indexed.hash(2, "requestHash")
}

func readValidated(e *Event, indexed, data *words) {
	readValidation(e, indexed)
	e.Response, e.ResponseURI = data.uint8(0, "response"), data.string(1, "responseURI")
}

func readURI(e *Event, indexed, data *words) {
	e.AgentID, e.Account = indexed.uint256(0, "agentId"), indexed.address(1, "account")
	e.URI = data.string(0, "uri")
}

func readMetadata(e *Event, indexed, data *words) {
	e.AgentID = indexed.uint256(0, "agentId")
	e.MetadataKey, e.MetadataValue = data.string(0, "metadataKey"), bytes.Clone(data.bytes(1, "metadataValue"))
}
