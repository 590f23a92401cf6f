package erc8004

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

func facts() FeedbackFacts {
	return FeedbackFacts{
		ChainID: 8453, Identity: common.HexToAddress("0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"), AgentID: big.NewInt(42),
		Client: common.HexToAddress("0x1111111111111111111111111111111111111111"),
		Value:  big.NewInt(9977), ValueDecimals: 2, Tag1: "uptime",
	}
}

func whole(t *testing.T, digits string) *big.Int {
	t.Helper()
	n, ok := new(big.Int).SetString(digits, 10)
	if !ok {
		t.Fatal(digits)
	}
	return n
}

func TestCrossCheck(t *testing.T) {
	t.Parallel()
	huge := "115792089237316195423570985008687907853269984665640564039457584007913129639935"
	wide := func(e *FeedbackFacts) {
		e.AgentID, e.Value, e.ValueDecimals = whole(t, huge), whole(t, "-12345678901234567890123456789012345678"), 18
	}
	score := func(e *FeedbackFacts) { e.Value, e.ValueDecimals = big.NewInt(87), 0 }
	for _, test := range []struct {
		name, file string
		change     func(*FeedbackFacts)
		want       string
	}{
		{"the file of the hash vectors", prettyFile, nil, ""},
		{"with a byte order mark", "\xef\xbb\xbf\n" + prettyFile, nil, ""},
		{"everything is missing", `{}`, nil, ""},
		{"everything is null or empty", `{"agentRegistry":null,"agentId":null,"clientAddress":"","value":null,"valueDecimals":null,"tag1":"","tag2":" ","endpoint":null}`, nil, ""},
		{"everything is wrong", `{"tag2":"b","endpoint":"https://b","tag1":"a","valueDecimals":3,"value":1,"clientAddress":"0x2222222222222222222222222222222222222222","agentId":7,"agentRegistry":"eip155:1:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`,
			func(e *FeedbackFacts) { e.Endpoint = "https://a" }, "agentRegistry agentId clientAddress value valueDecimals tag1 tag2 endpoint"},
		{"of other types", `{"agentRegistry":{},"agentId":[42],"clientAddress":1,"value":true,"valueDecimals":{"a":2},"tag1":7,"tag2":[],"endpoint":false}`,
			func(e *FeedbackFacts) { e.Endpoint = "https://a" }, "agentRegistry agentId clientAddress value valueDecimals tag1 tag2 endpoint"},

		{"no JSON", `value: 1`, nil, ""},
		{"no object", `[{"value":1}]`, nil, ""},
		{"a string", `"value"`, nil, ""},
		{"empty", ``, nil, ""},
		{"two documents", `{"value":1}{"value":2}`, nil, ""},
		{"too deep", `{"value":1,"x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, nil, ""},
		{"names in another case", `{"AgentId":7,"VALUE":1}`, nil, "agentId value"},

		{"registry in any case", `{"agentRegistry":" EIP155:8453:0X8004a169fb4a3325136eb29fa0ceb6d2e539a432 "}`, nil, ""},
		{"registry alone", `{"agentRegistry":"0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`, nil, ""},
		{"registry of another namespace", `{"agentRegistry":"solana:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"}`, nil, "agentRegistry"},
		{"placeholder", `{"agentRegistry":"eip155:8453:{identityRegistry}"}`, nil, "agentRegistry"},

		{"id as a string", `{"agentId":"42"}`, nil, ""},
		{"id with its chain", `{"agentId":"8453:42"}`, nil, ""},
		{"id with its namespace", `{"agentId":"eip155:8453:42"}`, nil, ""},
		{"id with its registry", `{"agentId":"eip155:8453:0x8004a169fb4a3325136eb29fa0ceb6d2e539a432:42"}`, nil, ""},
		{"id of another chain", `{"agentId":"1:42"}`, nil, "agentId"},
		{"id of another registry", `{"agentId":"eip155:8453:0x1111111111111111111111111111111111111111:42"}`, nil, "agentId"},
		{"id as other writers write numbers", `{"agentId":4.2e1}`, nil, ""},
		{"id with a fraction", `{"agentId":42.5}`, nil, "agentId"},
		{"id in hex", `{"agentId":"0x2a"}`, nil, "agentId"},
		{"wide numbers", `{"agentId":` + huge + `,"value":-12345678901234567890123456789012345678,"valueDecimals":"18"}`, wide, ""},
		{"wide numbers in strings", `{"agentId":"` + huge + `","value":"-12345678901234567890.123456789012345678"}`, wide, ""},
		{"wide numbers that a double has rounded", `{"agentId":1.157920892373162e77,"value":-12345678901234567000000000000000000000}`, wide, "agentId value"},
		{"the last digit", `{"agentId":"` + huge[:77] + `4","value":-12345678901234567890123456789012345679}`, wide, "agentId value"},
		{"numbers that would fill the memory", `{"agentId":1e999999999,"value":1e-999999999,"valueDecimals":1e100}`, nil, "agentId value valueDecimals"},

		{"client as CAIP-10", `{"clientAddress":"eip155:8453:0x1111111111111111111111111111111111111111"}`, nil, ""},
		{"client alone", `{"clientAddress":"0X1111111111111111111111111111111111111111"}`, nil, ""},
		{"client on another chain", `{"clientAddress":"eip155:1:0x1111111111111111111111111111111111111111"}`, nil, "clientAddress"},
		{"client that is no address", `{"clientAddress":"vitalik.eth"}`, nil, "clientAddress"},
		{"submitted for somebody else", `{"proofOfParticipation":{"reviewerAddress":"eip155:8453:0x2222222222222222222222222222222222222222"},"clientAddress":"0x1111111111111111111111111111111111111111"}`, nil, ""},
		{"a reviewer is not the submitter", `{"proofOfParticipation":{"reviewerAddress":"0x2222222222222222222222222222222222222222"},"clientAddress":"0x2222222222222222222222222222222222222222"}`, nil, "clientAddress"},

		{"value as a string", `{"value":"9977","valueDecimals":"2"}`, nil, ""},
		{"value alone", `{"value":9977}`, nil, ""},
		{"the decimal itself", `{"value":99.77}`, nil, ""},
		{"the decimal itself beside its decimals", `{"value":99.77,"valueDecimals":2}`, nil, ""},
		{"the decimal itself with none", `{"value":99.77,"valueDecimals":0}`, nil, ""},
		{"the decimal in another spelling", `{"value":"9.9770e1"}`, nil, ""},
		{"the same decimal otherwise", `{"value":99770,"valueDecimals":3}`, nil, ""},
		{"another decimal", `{"value":99.7,"valueDecimals":2}`, nil, "value"},
		{"other decimals", `{"value":9977,"valueDecimals":1}`, nil, "valueDecimals"},
		{"decimals that are none", `{"value":9977,"valueDecimals":-2}`, nil, "valueDecimals"},
		{"a number that is none", `{"value":"1/2","valueDecimals":"0x2"}`, nil, "value valueDecimals"},
		{"a whole decimal", `{"value":100,"valueDecimals":2}`, func(e *FeedbackFacts) { e.Value = big.NewInt(10000) }, ""},
		{"zero", `{"value":-0.0}`, func(e *FeedbackFacts) { e.Value = new(big.Int) }, ""},
		{"the other sign", `{"value":-9977}`, nil, "value"},

		{"an old file", `{"score":87,"feedbackAuth":"0x","skill":"math"}`, score, ""},
		{"an old file with another score", `{"score":"88"}`, score, "score"},
		{"a score of a value with decimals", `{"score":99.77}`, nil, ""},
		{"a score rounded up", `{"score":100}`, nil, ""},
		{"a score rounded down", `{"score":99}`, nil, ""},
		{"a score rounded too far", `{"score":101}`, nil, "score"},
		{"a score that is no whole number", `{"score":99.5}`, nil, "score"},
		{"a score beside a value", `{"value":9977,"score":1}`, nil, ""},

		{"a tag that the event lacks", `{"tag1":"uptime","tag2":"weekly"}`, nil, "tag2"},
		{"a tag in another case", `{"tag1":"Uptime"}`, nil, "tag1"},
		{"a tag with space around it", `{"tag1":"uptime "}`, func(e *FeedbackFacts) { e.Tag1 = "\tuptime" }, ""},
		{"a tag that had to be repaired", `{"tag1":"a\u0000b\ud800\ud800c"}`, func(e *FeedbackFacts) { e.Tag1 = "a\uFFFDb\uFFFDc" }, ""},
		{"a tag with the chain's own bytes", `{"tag1":"a\uFFFDb"}`, func(e *FeedbackFacts) { e.Tag1 = "a\xff\xfeb" }, ""},
		{"an endpoint that the event lacks", `{"endpoint":"https://a.example/"}`, nil, ""},
		{"an endpoint's scheme", `{"endpoint":" HTTPS://a.example/mcp"}`, func(e *FeedbackFacts) { e.Endpoint = "https://a.example/mcp " }, ""},
		{"another endpoint", `{"endpoint":"https://b.example/mcp"}`, func(e *FeedbackFacts) { e.Endpoint = "https://a.example/mcp" }, "endpoint"},
	} {
		e := facts()
		if test.change != nil {
			test.change(&e)
		}
		heraldtest.Equal(t, test.name, strings.Join(CrossCheck([]byte(test.file), e), " "), test.want)
	}
}

// TestCrossCheckWithoutNumbers: unknown facts are not compared.
func TestCrossCheckWithoutNumbers(t *testing.T) {
	t.Parallel()
	if got := CrossCheck([]byte(`{"agentId":7,"value":1,"valueDecimals":9,"score":2}`), FeedbackFacts{}); got != nil {
		t.Errorf("%q", got)
	}
}

func FuzzCrossCheck(f *testing.F) {
	names := []string{"agentRegistry", "agentId", "clientAddress", "value", "score", "valueDecimals", "tag1", "tag2", "endpoint"}
	for _, seed := range []string{
		prettyFile, `{"agentId":"eip155:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432:42","value":"1e99","valueDecimals":1e2}`,
		`{"score":99,"proofOfParticipation":{"reviewerAddress":"0x"},"endpoint":"HTTPS:","tag1":"\ud800\u0000"}`, `{"Value":-0.0,"value":null,"clientAddress":"::"}`, "[", "",
	} {
		f.Add([]byte(seed), int64(9977), uint8(2), "uptime", "https://a")
	}
	f.Fuzz(func(t *testing.T, file []byte, value int64, decimals uint8, tag, endpoint string) {
		e := facts()
		e.Value, e.ValueDecimals, e.Tag1, e.Endpoint = big.NewInt(value), decimals, tag, endpoint
		at := -1
		for _, name := range CrossCheck(file, e) {
			next := slices.Index(names, name)
			if next <= at {
				t.Fatalf("%q is out of order, or no field", name)
			}
			at = next
		}
		// A file that repeats the event's values agrees with the event.
		same, err := json.Marshal(map[string]any{"agentId": e.AgentID, "clientAddress": e.Client.Hex(), "value": e.Value, "valueDecimals": decimals, "tag1": tag, "endpoint": endpoint})
		heraldtest.Must(t, err)
		if got := CrossCheck(same, e); got != nil {
			t.Fatalf("%s differs from itself in %q", same, got)
		}
	})
}
