package job

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestSumsCoverContent: an attacker could change the event's content or position, or the action, without changing the
// job's key. Each of them has a sum. Neither meta nor the timestamp affects a sum.
func TestSumsCoverContent(t *testing.T) {
	t.Parallel()
	const event = `"type":"NewFeedback","chainId":8453,"agentId":"1","clientAddress":"0x1111111111111111111111111111111111111111","feedbackIndex":7,"score":95`
	parse := func(rest string) Job {
		t.Helper()
		j := mustParse(t, `{`+event+rest+`}`)
		var stored Job // the job as Postgres returns it
		raw, err := json.Marshal(j)
		if err == nil {
			err = json.Unmarshal(raw, &stored)
		}
		if err != nil || stored.ActionSum() != j.ActionSum() || stored.EventSum() != j.EventSum() {
			t.Errorf("%s: storing it changes a sum (%v)", rest, err)
		}
		return j
	}
	own := func(endpoint string) string { return `,"action":{"resolveEndpoint":false,"endpoint":` + endpoint + `}` }
	plain := parse("")
	for _, rest := range []string{`,"meta":{"a":1}`, `,"timestamp":1`, `,"action":{"toolName":"agent.receiveFeedback"}`, `,"action":{"payloadTemplate":null}`} {
		if j := parse(rest); j.ActionSum() != plain.ActionSum() || j.EventSum() != plain.EventSum() {
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
		if actions[j.ActionSum()] = rest; j.EventSum() != plain.EventSum() {
			t.Errorf("%s is taken for another event", rest)
		}
	}
	hash := func(name, digit string) string { return `,"` + name + `":"0x` + strings.Repeat(digit, 64) + `"` }
	foreign := plain
	foreign.IdentityRegistry[0]++
	events := map[Sum]string{plain.EventSum(): "", foreign.EventSum(): "another identity registry"}
	for name, change := range map[string]func(*Job){
		"agentId":          func(j *Job) { j.AgentID = big.NewInt(2) },
		"value":            func(j *Job) { j.Value = big.NewInt(-95) },
		"valueDecimals":    func(j *Job) { j.ValueDecimals++ },
		"tag1":             func(j *Job) { j.Tag1 = `a"|"b` },
		"tag2":             func(j *Job) { j.Tag2 = `a"|"b` },
		"endpoint":         func(j *Job) { j.Endpoint = "b" },
		"feedbackURI":      func(j *Job) { j.FeedbackURI = "b" },
		"feedbackHash":     func(j *Job) { j.FeedbackHash[0]++ },
		"reason":           func(j *Job) { j.Reason = "reorg" },
		"responseURI":      func(j *Job) { j.ResponseURI = "b" },
		"responseHash":     func(j *Job) { j.ResponseHash[0]++ },
		"validatorAddress": func(j *Job) { j.ValidatorAddress[0]++ },
		"response":         func(j *Job) { j.Response++ },
		"tag":              func(j *Job) { j.Tag = "b" },
	} {
		j := plain
		change(&j)
		if field, _ := j.Conflict(plain); field != name || j.EventSum() == plain.EventSum() || !slices.Contains(j.Differences(plain), name) {
			t.Errorf("another %s conflicts by %q and differs in %q", name, field, j.Differences(plain))
		}
		events[j.EventSum()] = name
	}
	heraldtest.Equal(t, "the number of events", len(events), 16)
	for _, rest := range []string{`,"blockNumber":1`, `,"logIndex":0`, `,"logIndex":1`, hash("blockHash", "1"), hash("transactionHash", "1"),
		hash("transactionHash", "2")} {
		j := parse(rest)
		if other, twice := events[j.EventSum()]; twice {
			t.Errorf("%s and %s are taken for the same event", rest, other)
		}
		if events[j.EventSum()] = rest; j.ActionSum() != plain.ActionSum() {
			t.Errorf("%s is taken for another action", rest)
		}
	}
}
