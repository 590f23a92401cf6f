package job

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

const (
	mixed = "0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"
	hash4 = "0x4444444444444444444444444444444444444444444444444444444444444444"
)

// TestKey: the expected keys and ids are literals, because existing database rows contain them.
func TestKey(t *testing.T) {
	t.Parallel()
	revoked := map[string]any{"type": "FeedbackRevoked", "chainId": 8453, "agentId": 42, "clientAddress": mixed, "feedbackIndex": 7}
	for name, c := range map[string]struct{ line, key, id, order string }{
		"feedback": {feedback(`clientAddress="` + mixed + `"`),
			"eip155:8453:0x8004baa17c55a88189ae136b182e5fda19de9b63/42/0x8004a169fb4a3325136eb29fa0ceb6d2e539a432/7#NewFeedback",
			"e69d230c-55a9-5414-94d9-dfba7aeb59d0",
			"eip155:8453:0x8004baa17c55a88189ae136b182e5fda19de9b63/42/0x8004a169fb4a3325136eb29fa0ceb6d2e539a432"},
		"agent 0, testnet": {feedback(`agentId=0`, `chainId=84532`, `clientAddress="`+mixed+`"`),
			"eip155:84532:0x8004b663056a597dffe9eccc1965a193b7388713/0/0x8004a169fb4a3325136eb29fa0ceb6d2e539a432/7#NewFeedback", "",
			"eip155:84532:0x8004b663056a597dffe9eccc1965a193b7388713/0/0x8004a169fb4a3325136eb29fa0ceb6d2e539a432"},
		"revocation": {change(revoked, nil),
			"eip155:8453:0x8004baa17c55a88189ae136b182e5fda19de9b63/42/0x8004a169fb4a3325136eb29fa0ceb6d2e539a432/7#FeedbackRevoked", "",
			"eip155:8453:0x8004baa17c55a88189ae136b182e5fda19de9b63/42/0x8004a169fb4a3325136eb29fa0ceb6d2e539a432"},
		"retraction": {change(revoked, []string{`reason="reorg"`, `blockHash="` + hash4 + `"`}),
			"eip155:8453:0x8004baa17c55a88189ae136b182e5fda19de9b63/42/0x8004a169fb4a3325136eb29fa0ceb6d2e539a432/7#Retraction@" + hash4, "",
			"eip155:8453:0x8004baa17c55a88189ae136b182e5fda19de9b63/42/0x8004a169fb4a3325136eb29fa0ceb6d2e539a432"},
		"response": {response(`responder="`+mixed+`"`, `transactionHash="`+hash4+`"`),
			"eip155:8453:0x8004baa17c55a88189ae136b182e5fda19de9b63/42/" + clientHex + "/7/0x8004a169fb4a3325136eb29fa0ceb6d2e539a432/" + hash4 + "/4#ResponseAppended", "",
			"eip155:8453:0x8004baa17c55a88189ae136b182e5fda19de9b63/42/" + clientHex},
		"validation": {validation(`transactionHash="` + hash4 + `"`),
			"eip155:8453:0x8004cc8439f36fd5f9f049d9ff86523df6daab58/" + blockHex + "/" + hash4 + "/0#ValidationResponse", "",
			"eip155:8453:0x8004cc8439f36fd5f9f049d9ff86523df6daab58/42/" + clientHex},
		"agent updated": {`{"type":"AgentUpdated","chainId":1,"agentId":0}`, "", "", "eip155:1:0x0000000000000000000000000000000000000000/0/0x0000000000000000000000000000000000000000"},
	} {
		j := mustParse(t, c.line)
		heraldtest.Equal(t, fmt.Sprintf("%s: key", name), j.Key(), c.key)
		if c.id != "" && j.ID().String() != c.id {
			t.Errorf("%s: id %s", name, j.ID())
		}
		heraldtest.Equal(t, fmt.Sprintf("%s: order key", name), j.OrderKey(), c.order)
	}
	// Another implementation computed this: python3 -c 'import uuid; print(uuid.uuid5(uuid.NAMESPACE_URL,
	// "https://example.com/"))'
	heraldtest.Equal(t, "IDOf", IDOf("https://example.com/").String(), "dd2c1780-811a-5296-81c5-178a0ef488bc")
}

func TestOrderSeq(t *testing.T) {
	t.Parallel()
	heraldtest.Equal(t, "feedback", mustParse(t, feedback()).OrderSeq(), 7)
	heraldtest.Equal(t, "validation", mustParse(t, validation(`blockNumber=12`)).OrderSeq(), 12)
}

func TestRetraction(t *testing.T) {
	t.Parallel()
	j := mustParse(t, feedback())
	r := j.Retraction(j.ID())
	want := mustParse(t, change(map[string]any{"type": "FeedbackRevoked", "chainId": 8453, "agentId": 42, "clientAddress": clientHex,
		"feedbackIndex": 7, "reason": "reorg", "blockHash": blockHex}, nil))
	if r.Key() != want.Key() || r.Action.ToolName != want.Action.ToolName || r.OrderKey() != j.OrderKey() {
		t.Errorf("got %+v", r)
	}
	if field, conflict := r.Conflict(want); conflict {
		t.Errorf("differs in %s", field)
	}
}

func TestAgentRegistry(t *testing.T) {
	t.Parallel()
	heraldtest.Equal(t, "agent registry", mustParse(t, feedback()).AgentRegistry(), "eip155:8453:"+mixed)
}

func TestConflict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ a, b, field string }{
		"same": {feedback(), feedback(), ""},
		"elsewhere": {feedback("chainId=11155111"), feedback("chainId=11155111", "blockNumber=1", `blockHash="`+hash4+`"`,
			"timestamp=5", "logIndex=9",
			`transactionHash="`+hash4+`"`, `action={"timeoutMs":1000}`, `meta={"a":1}`,
			`identityRegistry="0x8004a6090Cd10A7288092483047B097295Fb8847"`), ""},
		"score and its value":  {feedback(`value=95`, `valueDecimals=0`), feedback("value=", "valueDecimals=", "score=95"), ""},
		"tag1 omitted":         {feedback(), feedback(`tag1=""`), "tag1"},
		"feedbackURI omitted":  {feedback(), feedback(`feedbackURI=""`), "feedbackURI"},
		"feedbackHash omitted": {feedback(), feedback(`feedbackHash=`), "feedbackHash"},
		"tag omitted":          {validation(), validation(`tag=""`), "tag"},
	} {
		a, b := mustParse(t, c.a), mustParse(t, c.b)
		if field, conflict := a.Conflict(b); field != c.field || conflict != (c.field != "") {
			t.Errorf("%s: %q, %v", name, field, conflict)
		}
		_, omitted := strings.CutSuffix(name, " omitted")
		if d := b.Differences(a); slices.Contains(d, c.field) == (omitted || c.field == "") {
			t.Errorf("%s: b differs in %q", name, d)
		}
	}
}
