package delivery

import (
	"bytes"
	"encoding/json"
	"math/big"
	"testing"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/ethereum/go-ethereum/common"
)

// FuzzFeedbackFile: for any feedback file, the agent gets valid JSON from which it can restore the exact bytes, and the
// comparison with the event terminates.
func FuzzFeedbackFile(f *testing.F) {
	for _, file := range []string{
		`{"agentRegistry":"eip155:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432","agentId":42,"clientAddress":"eip155:8453:0x1111111111111111111111111111111111111111",
			"createdAt":"2026-11-21T12:00:00Z","value":9977,"valueDecimals":2,"tag1":"uptime","mcp":{"tool":"get_price"},"text":"café"}`,
		`{"agentId":"8453:42","value":"99.77","score":1e2,"tag1":null}`,
		`{"value":1e-400,"valueDecimals":1e400,"agentId":1e999999999}`,
		`{"a":{"a":{"a":[[[]]]}}}`, "\xef\xbb\xbf{}", "{}\x00", "\xff", "<html>", "", "null", "[1]", `"text"`, " {} \n",
	} {
		f.Add([]byte(file), "application/json")
	}
	event := erc8004.FeedbackFacts{ChainID: 8453, Identity: common.HexToAddress("0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"), AgentID: big.NewInt(42),
		Client: common.HexToAddress("0x1111111111111111111111111111111111111111"), Value: big.NewInt(9977), ValueDecimals: 2, Tag1: "uptime"}
	f.Fuzz(func(t *testing.T, file []byte, mediaType string) {
		got := agentContent(ipfs.Document{Bytes: file, MediaType: mediaType})
		if !json.Valid(got) || !utf8.Valid(got) {
			t.Fatalf("%q is no JSON", got)
		}
		if !bytes.Equal(got, file) {
			var wrapped struct {
				Raw       []byte
				MediaType *string
			}
			if err := json.Unmarshal(got, &wrapped); err != nil || !bytes.Equal(wrapped.Raw, file) || wrapped.MediaType == nil {
				t.Fatalf("%q became %q (%v)", file, got, err)
			}
		}
		if differing := erc8004.CrossCheck(file, event); len(differing) > 8 {
			t.Fatalf("%q", differing)
		}
	})
}
