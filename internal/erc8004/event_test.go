package erc8004

import (
	"bytes"
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
)

func TestTopicsAreTheHashesOfTheirSignatures(t *testing.T) {
	t.Parallel()
	seen := map[common.Hash]bool{}
	for _, f := range forms {
		if got := crypto.Keccak256Hash([]byte(f.signature)); got != f.topic {
			t.Errorf("%s has topic %s, the table says %s", f.signature, got, f.topic)
		}
		if !strings.HasPrefix(strings.ToLower(f.signature), strings.ToLower(string(f.kind))+"(") {
			t.Errorf("%s is listed as %s", f.signature, f.kind)
		}
		if seen[f.topic] {
			t.Errorf("%s is listed twice", f.signature)
		}
		seen[f.topic] = true
	}
	heraldtest.Equal(t, "forms of NewFeedback", len(Topics(NewFeedback)), 8)
	if n := len(Topics()); n != len(forms) {
		t.Errorf("Topics() has %d entries, want %d", n, len(forms))
	}
}

// goldenLog is a NewFeedback log, written word by word without an encoder.
func goldenLog() types.Log {
	text := func(s string) []byte {
		out := common.BigToHash(big.NewInt(int64(len(s)))).Bytes()
		return append(out, common.RightPadBytes([]byte(s), (len(s)+31)/32*32)...)
	}
	var data []byte
	for _, head := range []string{"01", strings.Repeat("ff", 31) + "e0", "01", "0100", "0140", "0180", "01c0", "00"} {
		data = append(data, common.HexToHash(head).Bytes()...)
	}
	for _, s := range []string{"tradingYield", "month", "https://agent.example/mcp", "ipfs://bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"} {
		data = append(data, text(s)...)
	}
	return types.Log{
		Address: common.HexToAddress("0x8004BAa17C55a88189AE136b182e5fdA19dE9b63"),
		Topics: []common.Hash{
			common.HexToHash("0x6a4a61743519c9d648a14e6493f47dbe3ff1aa29e7785c96c8326a205e58febc"),
			common.HexToHash("0x16"),
			common.HexToHash("0x1111111111111111111111111111111111111111"),
			common.HexToHash("0x532c37807a6c4887defbd0686431b1c90a5f64c1a637d58a2874ea9bf9b04f40"),
		},
		Data: data, BlockNumber: 7, Index: 3,
	}
}

func TestDecodeGoldenVector(t *testing.T) {
	t.Parallel()
	got, err := Decode(goldenLog())
	heraldtest.Must(t, err)
	want := Event{
		Kind: NewFeedback, Variant: "2026-01-23",
		Address: common.HexToAddress("0x8004BAa17C55a88189AE136b182e5fdA19dE9b63"), BlockNumber: 7, LogIndex: 3,
		AgentID: big.NewInt(22), Client: common.HexToAddress("0x1111111111111111111111111111111111111111"),
		FeedbackIndex: 1, HasIndex: true, Value: big.NewInt(-32), ValueDecimals: 1,
		Tag1: "tradingYield", Tag2: "month", Endpoint: "https://agent.example/mcp",
		Tag1Hash:    common.HexToHash("0x532c37807a6c4887defbd0686431b1c90a5f64c1a637d58a2874ea9bf9b04f40"),
		FeedbackURI: "ipfs://bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku",
	}
	heraldtest.Equal(t, "the decoded event", got, want)
	heraldtest.Equal(t, "the topic of tag1", got.Tag1Hash, crypto.Keccak256Hash([]byte(got.Tag1)))
}

// encodeLog encodes values by a signature with go-ethereum's encoder. indexed lists the positions of the indexed
// parameters.
func encodeLog(t *testing.T, signature string, indexed []int, values []any) types.Log {
	t.Helper()
	_, list, _ := strings.Cut(strings.TrimSuffix(signature, ")"), "(")
	l := types.Log{Topics: []common.Hash{crypto.Keccak256Hash([]byte(signature))}}
	var args abi.Arguments
	var rest []any
	for i, name := range strings.Split(list, ",") {
		typ, err := abi.NewType(name, "", nil)
		heraldtest.Must(t, err)
		isIndexed := false
		for _, j := range indexed {
			isIndexed = isIndexed || i == j
		}
		if !isIndexed {
			args, rest = append(args, abi.Argument{Type: typ}), append(rest, values[i])
			continue
		}
		topics, err := abi.MakeTopics([]any{values[i]})
		heraldtest.Must(t, err)
		l.Topics = append(l.Topics, topics[0][0])
	}
	data, err := args.Pack(rest...)
	heraldtest.Must(t, err)
	l.Data = data
	return l
}

func TestDecodeEveryForm(t *testing.T) {
	t.Parallel()
	id, _ := new(big.Int).SetString("115792089237316195423570985008687907853269984665640564039457584007913129639935", 10) // 2^256-1
	client, other := common.HexToAddress("0xC1"), common.HexToAddress("0xC2")
	hash := common.HexToHash("0xabcd")
	tag32 := func(s string) (w [32]byte) { copy(w[:], s); return w }
	lost := crypto.Keccak256Hash([]byte("t1"))
	score := big.NewInt(77)
	value, _ := new(big.Int).SetString("-100000000000000000000000000000000000000", 10)

	feedback := func(variant string, change func(*Event)) Event {
		e := Event{Kind: NewFeedback, Variant: variant, AgentID: id, Client: client, FeedbackIndex: 9, HasIndex: true, Value: value, ValueDecimals: 18,
			Tag1: "t1", Tag2: "t2\x00\xff", Tag1Hash: lost, Endpoint: "e", FeedbackURI: "u", FeedbackHash: hash}
		if change != nil {
			change(&e)
		}
		return e
	}
	scored := func(e *Event) { e.Value, e.ValueDecimals, e.LegacyScore = score, 0, true }
	tests := []struct {
		signature string
		indexed   []int
		values    []any
		want      Event
	}{
		{"NewFeedback(uint256,address,uint64,int128,uint8,string,string,string,string,string,bytes32)", []int{0, 1, 5},
			[]any{id, client, uint64(9), value, uint8(18), "t1", "t1", "t2\x00\xff", "e", "u", hash}, feedback("2026-01-23", nil)},
		{"NewFeedback(uint256,address,uint64,int256,uint8,string,string,string,string,string,bytes32)", []int{0, 1, 5},
			[]any{id, client, uint64(9), value, uint8(18), "t1", "t1", "t2\x00\xff", "e", "u", hash}, feedback("2026-01-19", nil)},
		{"NewFeedback(uint256,address,uint64,uint256,uint8,string,string,string,string,string,bytes32)", []int{0, 1, 5},
			[]any{id, client, uint64(9), score, uint8(2), "t1", "t1", "t2\x00\xff", "e", "u", hash},
			feedback("2026-01-18", func(e *Event) { e.Value, e.ValueDecimals = score, 2 })},
		{"NewFeedback(uint256,address,uint64,uint8,string,string,string,string,string,bytes32)", []int{0, 1, 4},
			[]any{id, client, uint64(9), uint8(77), "t1", "t1", "t2\x00\xff", "e", "u", hash}, feedback("2026-01-11", scored)},
		{"NewFeedback(uint256,address,uint64,uint8,string,string,string,string,bytes32)", []int{0, 1, 4},
			[]any{id, client, uint64(9), uint8(77), "t1", "t2\x00\xff", "e", "u", hash},
			feedback("2026-01-07", func(e *Event) { scored(e); e.Tag1, e.Tag1Lost = "", true })},
		{"NewFeedback(uint256,address,uint8,string,string,string,string,bytes32)", []int{0, 1, 3},
			[]any{id, client, uint8(77), "t1", "t2\x00\xff", "e", "u", hash},
			feedback("2025-12-18", func(e *Event) { scored(e); e.Tag1, e.Tag1Lost, e.FeedbackIndex, e.HasIndex = "", true, 0, false })},
		{"NewFeedback(uint256,address,uint8,string,string,string,bytes32)", []int{0, 1, 3},
			[]any{id, client, uint8(77), "", "t2\x00\xff", "u", hash},
			feedback("2025-11-12", func(e *Event) {
				scored(e)
				e.Tag1, e.Tag1Hash, e.FeedbackIndex, e.HasIndex, e.Endpoint = "", crypto.Keccak256Hash(nil), 0, false, ""
			})},
		{"NewFeedback(uint256,address,uint8,bytes32,bytes32,string,bytes32)", []int{0, 1, 3},
			[]any{id, client, uint8(77), tag32("t1"), tag32("\xff"), "u", hash},
			feedback("2025-10-08", func(e *Event) {
				scored(e)
				e.Tag1Hash, e.FeedbackIndex, e.HasIndex, e.Endpoint = common.Hash{}, 0, false, ""
				e.Tag2 = "0xff" + strings.Repeat("00", 31)
			})},
		{"FeedbackRevoked(uint256,address,uint64)", []int{0, 1, 2}, []any{id, client, uint64(9)},
			Event{Kind: FeedbackRevoked, Variant: "2025-10-08", AgentID: id, Client: client, FeedbackIndex: 9, HasIndex: true}},
		{"ResponseAppended(uint256,address,uint64,address,string,bytes32)", []int{0, 1, 3}, []any{id, client, uint64(9), other, "r", hash},
			Event{Kind: ResponseAppended, Variant: "2025-10-09", AgentID: id, Client: client, FeedbackIndex: 9, HasIndex: true, Responder: other, ResponseURI: "r", ResponseHash: hash}},
		{"ResponseAppended(uint256,address,uint64,address,string)", []int{0, 1, 3}, []any{id, client, uint64(9), other, "r"},
			Event{Kind: ResponseAppended, Variant: "2025-10-08", AgentID: id, Client: client, FeedbackIndex: 9, HasIndex: true, Responder: other, ResponseURI: "r"}},
		{"ValidationRequest(address,uint256,string,bytes32)", []int{0, 1, 3}, []any{client, id, "q", hash},
			Event{Kind: ValidationRequest, Variant: "2025-10-08", AgentID: id, Validator: client, RequestURI: "q", RequestHash: hash}},
		{"ValidationResponse(address,uint256,bytes32,uint8,string,bytes32,string)", []int{0, 1, 2}, []any{client, id, hash, uint8(255), "r", hash, "tag"},
			Event{Kind: ValidationResponse, Variant: "2025-11-12", AgentID: id, Validator: client, RequestHash: hash, Response: 255, ResponseURI: "r", ResponseHash: hash, Tag: "tag"}},
		{"ValidationResponse(address,uint256,bytes32,uint8,string,bytes32,bytes32)", []int{0, 1, 2}, []any{client, id, hash, uint8(1), "r", hash, tag32("tag")},
			Event{Kind: ValidationResponse, Variant: "2025-10-14", AgentID: id, Validator: client, RequestHash: hash, Response: 1, ResponseURI: "r", ResponseHash: hash, Tag: "tag"}},
		{"ValidationResponse(address,uint256,bytes32,uint8,string,bytes32)", []int{0, 1, 2}, []any{client, id, hash, uint8(1), "r", tag32("tag")},
			Event{Kind: ValidationResponse, Variant: "2025-10-08", AgentID: id, Validator: client, RequestHash: hash, Response: 1, ResponseURI: "r", Tag: "tag"}},
		{"Registered(uint256,string,address)", []int{0, 2}, []any{id, "u", other}, Event{Kind: Registered, Variant: "2025-10-08", AgentID: id, URI: "u", Account: other}},
		{"URIUpdated(uint256,string,address)", []int{0, 2}, []any{id, "u", other}, Event{Kind: URIUpdated, Variant: "2026-01-07", AgentID: id, URI: "u", Account: other}},
		{"UriUpdated(uint256,string,address)", []int{0, 2}, []any{id, "u", other}, Event{Kind: URIUpdated, Variant: "2025-10-13", AgentID: id, URI: "u", Account: other}},
		{"MetadataSet(uint256,string,string,bytes)", []int{0, 1}, []any{id, "k", "k", []byte{1, 2}},
			Event{Kind: MetadataSet, Variant: "2025-10-08", AgentID: id, MetadataKey: "k", MetadataValue: []byte{1, 2}}},
		{"MetadataSet(uint256,string,string,string)", []int{0, 1}, []any{id, "k", "k", "v"},
			Event{Kind: MetadataSet, Variant: "2025-11-12", AgentID: id, MetadataKey: "k", MetadataValue: []byte("v")}},
		{"MetadataUpdate(uint256)", nil, []any{id}, Event{Kind: MetadataUpdate, Variant: "2025-10-08", AgentID: id}},
		{"BatchMetadataUpdate(uint256,uint256)", nil, []any{score, id}, Event{Kind: BatchMetadataUpdate, Variant: "2025-10-08", AgentID: score, LastID: id}},
		{"Transfer(address,address,uint256)", []int{0, 1, 2}, []any{client, other, id}, Event{Kind: Transfer, Variant: "2025-10-08", From: client, To: other, AgentID: id}},
	}
	tested := map[common.Hash]bool{}
	for _, test := range tests {
		l := encodeLog(t, test.signature, test.indexed, test.values)
		tested[l.Topics[0]] = true
		got, err := Decode(l)
		if err != nil {
			t.Errorf("%s: %v", test.signature, err)
			continue
		}
		heraldtest.Equal(t, "the decoded "+test.signature, got, test.want)
		// A log that is cut short anywhere is malformed.
		for n := range len(l.Data) - 31 {
			short := l
			short.Data = l.Data[:n]
			if _, err := Decode(short); !errors.As(err, new(*MalformedError)) {
				t.Errorf("%s with %d of %d bytes: %v", test.signature, n, len(l.Data), err)
				break
			}
		}
		fewer := l
		fewer.Topics = l.Topics[:len(l.Topics)-1]
		if len(fewer.Topics) > 0 {
			if _, err := Decode(fewer); !errors.As(err, new(*MalformedError)) {
				t.Errorf("%s with a topic less: %v", test.signature, err)
			}
		}
	}
	heraldtest.Equal(t, "forms tested", len(tested), len(forms))
}

func TestDecodeRefusesForeignAndDirtyLogs(t *testing.T) {
	t.Parallel()
	var unknown *NotKnownError
	if _, err := Decode(types.Log{}); !errors.As(err, &unknown) {
		t.Errorf("anonymous log: %v", err)
	}
	if _, err := Decode(types.Log{Topics: []common.Hash{{1}}}); !errors.As(err, &unknown) || unknown.Topic != (common.Hash{1}) {
		t.Errorf("foreign topic: %v", err)
	}
	dirty := goldenLog()
	dirty.Topics[2][0] = 1
	if _, err := Decode(dirty); !errors.As(err, new(*MalformedError)) {
		t.Errorf("address with upper bits: %v", err)
	}
	far := goldenLog()
	far.Data[3*32+24] = 0xff // this makes the offset of tag1 nearly 2^64
	if _, err := Decode(far); !errors.As(err, new(*MalformedError)) {
		t.Errorf("offset out of the data: %v", err)
	}
	large := goldenLog()
	large.Data = append(large.Data, make([]byte, MaxData)...)
	if _, err := Decode(large); !errors.As(err, new(*MalformedError)) {
		t.Errorf("data over the bound: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	golden := goldenLog()
	f.Add(uint8(0), bytes.Join([][]byte{golden.Topics[1][:], golden.Topics[2][:], golden.Topics[3][:]}, nil), golden.Data)
	for i := range forms {
		f.Add(uint8(i), make([]byte, 96), make([]byte, 512))
	}
	f.Fuzz(func(t *testing.T, which uint8, topics, data []byte) {
		all := forms
		l := types.Log{Topics: []common.Hash{all[int(which)%len(all)].topic}, Data: data}
		for len(topics) >= 32 && len(l.Topics) < 6 {
			l.Topics, topics = append(l.Topics, common.Hash(topics[:32])), topics[32:]
		}
		e, err := Decode(l)
		if err != nil {
			return
		}
		if e.AgentID == nil || e.AgentID.Sign() < 0 || e.AgentID.BitLen() > 256 {
			t.Fatalf("agent id %v", e.AgentID)
		}
		if e.Kind == NewFeedback && (e.Value == nil || e.Value.BitLen() > 255) {
			t.Fatalf("value %v", e.Value)
		}
	})
}
