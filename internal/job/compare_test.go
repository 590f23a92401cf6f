package job

import (
	"encoding/json"
	"testing"
)

// What an attacker could change of a job without changing its event is its position or its action; meta is neither.
func TestSums(t *testing.T) {
	t.Parallel()
	const event = `"type":"NewFeedback","chainId":8453,"agentId":"1","clientAddress":"0x1111111111111111111111111111111111111111","feedbackIndex":7,"score":95`
	parse := func(rest string) Job {
		t.Helper()
		j, err := Parse([]byte(`{`+event+rest+`}`), Limits{})
		if err != nil {
			t.Fatal(rest, err)
		}
		var stored Job // as it comes out of Postgres
		raw, err := json.Marshal(j)
		if err == nil {
			err = json.Unmarshal(raw, &stored)
		}
		if err != nil || stored.ActionSum() != j.ActionSum() || stored.PositionSum() != j.PositionSum() {
			t.Errorf("%s: storing it changes a sum (%v)", rest, err)
		}
		return j
	}
	own := func(endpoint string) string { return `,"action":{"resolveEndpoint":false,"endpoint":` + endpoint + `}` }
	plain := parse("")
	for _, rest := range []string{`,"meta":{"a":1}`, `,"action":{"toolName":"agent.receiveFeedback"}`, `,"action":{"payloadTemplate":null}`} {
		if j := parse(rest); j.ActionSum() != plain.ActionSum() || j.PositionSum() != plain.PositionSum() {
			t.Errorf("%s differs", rest)
		}
	}
	actions := map[Sum]string{plain.ActionSum(): ""}
	for _, rest := range []string{`,"action":{"toolName":"agent_receiveFeedback"}`, `,"action":{"includeFileContent":false}`, `,"action":{"verifyFileHash":false}`,
		`,"action":{"timeoutMs":1000}`, `,"action":{"payloadTemplate":{}}`, `,"action":{"payloadTemplate":{"a":1}}`, `,"action":{"payloadTemplate":{"a":"1"}}`,
		`,"action":{"payloadTemplate":{"a":1.5}}`, `,"action":{"payloadTemplate":{"a":[1.5]}}`, `,"action":{"payloadTemplate":{"a":null}}`,
		own(`{"transport":"http","url":"https://a.example/"}`), own(`{"transport":"sse","url":"https://a.example/"}`),
		own(`{"transport":"http","url":"https://b.example/"}`), own(`{"transport":"stdio","command":"a"}`),
		own(`{"transport":"stdio","command":"a","args":["b","c"]}`), own(`{"transport":"stdio","command":"a","args":["b c"]}`)} {
		j := parse(rest)
		if other, twice := actions[j.ActionSum()]; twice {
			t.Errorf("%s and %s are taken for the same action", rest, other)
		}
		if actions[j.ActionSum()] = rest; j.PositionSum() != plain.PositionSum() {
			t.Errorf("%s is taken for another position", rest)
		}
	}
	hash := func(name, digit string) string {
		out := ""
		for range 64 {
			out += digit
		}
		return `,"` + name + `":"0x` + out + `"`
	}
	foreign := plain
	foreign.IdentityRegistry[0]++
	positions := map[Sum]string{plain.PositionSum(): "", foreign.PositionSum(): "another identity registry"}
	if len(positions) != 2 {
		t.Error("another identity registry is the same position")
	}
	for _, rest := range []string{`,"blockNumber":1`, `,"timestamp":1`, `,"logIndex":0`, `,"logIndex":1`, hash("blockHash", "1"), hash("transactionHash", "1"),
		hash("transactionHash", "2")} {
		j := parse(rest)
		if other, twice := positions[j.PositionSum()]; twice {
			t.Errorf("%s and %s are taken for the same position", rest, other)
		}
		if positions[j.PositionSum()] = rest; j.ActionSum() != plain.ActionSum() {
			t.Errorf("%s is taken for another action", rest)
		}
	}
}
