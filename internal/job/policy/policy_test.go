package policy_test

import (
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

const (
	alice = "0x1111111111111111111111111111111111111111"
	bob   = "0x2222222222222222222222222222222222222222"
)

// readFile returns the files that the tests' policies name.
func readFile(name string) ([]byte, error) {
	files := map[string]string{"clients.txt": alice + "\r\n" + bob + "\n", "empty.txt": "\n", "bad.txt": alice + "\n0x12\n"}
	if s, ok := files[name]; ok {
		return []byte(s), nil
	}
	return nil, errors.New("no such file")
}

func mustParse(t *testing.T, document string) policy.Policy {
	t.Helper()
	p, _, err := policy.Parse([]byte(document), policy.Default, readFile)
	if err != nil {
		t.Fatalf("%s: %v", document, err)
	}
	return p
}

// feedback returns a feedback of value 99.77 from alice to agent 42 of chain 8453, after change.
func feedback(change func(*policy.Event)) policy.Event {
	e := policy.Event{Kind: job.KindNewFeedback, Chain: 8453, Agent: "42", Tag1: "uptime", Client: common.HexToAddress(alice),
		Value: big.NewInt(9977), Decimals: 2}
	if change != nil {
		change(&e)
	}
	return e
}

func rated(value string, decimals uint8) policy.Event {
	return feedback(func(e *policy.Event) { e.Value, _ = new(big.Int).SetString(value, 10); e.Decimals = decimals })
}

func tagged(tag1, tag2 string) policy.Event {
	return feedback(func(e *policy.Event) { e.Tag1, e.Tag2 = tag1, tag2 })
}

func TestRules(t *testing.T) {
	t.Parallel()
	const huge = "100000000000000000000000000000000000000" // 1e38
	plain := feedback(nil)
	withFile := feedback(func(e *policy.Event) { e.HasFile = true })
	validation := policy.EventOf(job.Job{Kind: job.KindValidationResponse, ChainID: 8453, AgentID: big.NewInt(42),
		ValidatorAddress: common.HexToAddress(bob), Response: 80, Tag: "audit", ResponseURI: "ipfs://x"})
	revocation := policy.EventOf(job.Job{Kind: job.KindFeedbackRevoked, ChainID: 8453, AgentID: big.NewInt(42),
		ClientAddress: common.HexToAddress(alice), FeedbackIndex: 1})
	response := policy.EventOf(job.Job{Kind: job.KindResponseAppended, ChainID: 8453, AgentID: big.NewInt(42),
		ClientAddress: common.HexToAddress(alice), FeedbackIndex: 1, ResponseURI: "ipfs://x"})
	// The agent gets these tags without the characters that make them look different.
	disguised := policy.EventOf(job.Job{Kind: job.KindNewFeedback, AgentID: big.NewInt(42), Tag1: "up\u202etime", Tag2: "\u2066"})
	disguisedValidation := policy.EventOf(job.Job{Kind: job.KindValidationResponse, AgentID: big.NewInt(42), Tag: "audit\U000e0041"})
	for _, c := range []struct {
		when  string
		skips []policy.Event
		keeps []policy.Event
	}{
		{`{}`, []policy.Event{plain, validation}, []policy.Event{revocation, response}},
		{`{"kind":"NewFeedback"}`, []policy.Event{plain}, []policy.Event{validation, revocation}},
		{`{"kind":["FeedbackRevoked","ValidationResponse"]}`, []policy.Event{validation, revocation}, []policy.Event{plain, response}},
		{`{"kind":["FeedbackRevoked","ResponseAppended"],"client":"` + alice + `"}`, []policy.Event{revocation, response}, []policy.Event{plain}},
		{`{"kind":["FeedbackRevoked","NewFeedback"],"tag1":["","uptime"]}`, []policy.Event{plain}, []policy.Event{revocation}},
		{`{"kind":["ResponseAppended","NewFeedback"],"file":true}`, []policy.Event{withFile}, []policy.Event{response}},
		{`{"chain":8453}`, []policy.Event{plain}, []policy.Event{feedback(func(e *policy.Event) { e.Chain = 1 }), revocation}},
		{`{"chain":[1,"8453"]}`, []policy.Event{plain}, []policy.Event{feedback(func(e *policy.Event) { e.Chain = 10 })}},
		{`{"agent":42}`, []policy.Event{plain, validation}, []policy.Event{feedback(func(e *policy.Event) { e.Agent = "420" })}},
		{`{"agent":["7","8453:42"]}`, []policy.Event{plain}, []policy.Event{feedback(func(e *policy.Event) { e.Chain = 84 })}},
		{`{"agent":"1:42"}`, nil, []policy.Event{plain}},
		{`{"agent":"115792089237316195423570985008687907853269984665640564039457584007913129639935"}`,
			[]policy.Event{feedback(func(e *policy.Event) {
				e.Agent = "115792089237316195423570985008687907853269984665640564039457584007913129639935"
			})}, []policy.Event{plain}},
		{`{"tag1":"uptime"}`, []policy.Event{plain}, []policy.Event{tagged("uptime2", ""), tagged("Uptime", ""), tagged("", "uptime"), revocation}},
		{`{"tag1":"up*"}`, []policy.Event{plain, tagged("up", ""), tagged("up*", "")}, []policy.Event{tagged("u", ""), tagged("", "up")}},
		{`{"tag1":""}`, []policy.Event{tagged("", "x")}, []policy.Event{plain, revocation}},
		{`{"tag1":"*"}`, []policy.Event{plain, tagged("", "")}, []policy.Event{revocation}},
		{`{"tag2":["","a*"]}`, []policy.Event{plain, tagged("x", "ab")}, []policy.Event{tagged("a", "b")}},
		{`{"tag1":"uptime","tag2":""}`, []policy.Event{plain, disguised}, []policy.Event{tagged("up\u200btime", "")}},
		{`{"tag1":"up\u202eti*"}`, []policy.Event{plain, disguised}, nil},
		{`{"tag1":"audit"}`, []policy.Event{disguisedValidation}, nil},
		{`{"tag1":"uptime","tag2":"x"}`, []policy.Event{tagged("uptime", "x")}, []policy.Event{plain, tagged("y", "x")}},
		{`{"tag1":"audit"}`, []policy.Event{validation}, []policy.Event{plain}},
		{`{"client":"` + alice + `"}`, []policy.Event{plain}, []policy.Event{validation, revocation}},
		{`{"client":["` + bob + `"]}`, []policy.Event{validation}, []policy.Event{plain}},
		{`{"client":{"file":"clients.txt"}}`, []policy.Event{plain, validation}, []policy.Event{feedback(func(e *policy.Event) { e.Client[0]++ })}},
		{`{"min":99.77}`, []policy.Event{plain, rated("9978", 2), rated(huge, 18)}, []policy.Event{rated("9976", 2), rated("99769999999999999999", 18), revocation}},
		{`{"max":"99.770"}`, []policy.Event{plain, rated("-1", 0), validation}, []policy.Event{rated("99770000000000000001", 18)}},
		{`{"min":"` + huge + `"}`, []policy.Event{rated(huge, 0)}, []policy.Event{rated("99999999999999999999999999999999999999", 0), rated(huge, 1)}},
		{`{"min":0.000000000000000001,"max":0.000000000000000001}`, []policy.Event{rated("1", 18)}, []policy.Event{rated("0", 18), rated("2", 18)}},
		{`{"min":0,"max":100}`, []policy.Event{rated("0", 3), rated("100", 0)}, []policy.Event{rated("-1", 18), rated("1001", 1)}},
		{`{"max":9007199254740993}`, []policy.Event{rated("9007199254740993", 0)}, []policy.Event{rated("9007199254740994", 0)}},
		{`{"file":true}`, []policy.Event{withFile, validation}, []policy.Event{plain}},
		{`{"file":false}`, []policy.Event{plain}, []policy.Event{withFile, revocation}},
	} {
		l := policy.Levels{Default: mustParse(t, `{"filters":[{"action":"skip","when":`+c.when+`}]}`)}
		for _, e := range c.skips {
			heraldtest.Equal(t, fmt.Sprintf("%s, of %+v", c.when, e), l.Decide(e), policy.Decision{Skip: true, Level: policy.Default, Rule: 1})
		}
		for _, e := range c.keeps {
			heraldtest.Equal(t, fmt.Sprintf("%s, of %+v", c.when, e), l.Decide(e), policy.Decision{})
		}
	}
}

func TestFirstMatchDecides(t *testing.T) {
	t.Parallel()
	l := policy.Levels{Default: mustParse(t, `{"filters":[{"action":"skip","when":{"tag1":"noise"}},
		{"action":"deliver","when":{"client":"`+alice+`"}},{"action":"skip"}]}`)}
	for number, e := range map[int]policy.Event{1: tagged("noise", ""), 2: feedback(nil),
		3: feedback(func(e *policy.Event) { e.Client[0]++ })} {
		if d := l.Decide(e); d.Rule != number || d.Skip != (number != 2) {
			t.Errorf("rule %d: got %+v", number, d)
		}
	}
}

func TestLevelsDecide(t *testing.T) {
	t.Parallel()
	const skip, deliver = `{"filters":[{"action":"skip"}]}`, `{"filters":[{"action":"deliver"}]}`
	for _, c := range []struct {
		standard, operator, own string
		want                    policy.Decision
	}{
		{`{}`, `{}`, `{}`, policy.Decision{}},
		{skip, `{}`, `{}`, policy.Decision{Skip: true, Level: policy.Default, Rule: 1}},
		{skip, deliver, `{}`, policy.Decision{Level: policy.Operator, Rule: 1}},
		{deliver, skip, `{}`, policy.Decision{Skip: true, Level: policy.Operator, Rule: 1}},
		{skip, `{"filters":[{"action":"deliver","when":{"chain":1}}]}`, `{}`, policy.Decision{Skip: true, Level: policy.Default, Rule: 1}},
		{`{}`, `{}`, skip, policy.Decision{Skip: true, Level: policy.Own, Rule: 1}},
		{deliver, deliver, skip, policy.Decision{Skip: true, Level: policy.Own, Rule: 1}},
		{`{}`, `{}`, deliver, policy.Decision{}},
		{skip, `{}`, deliver, policy.Decision{Skip: true, Level: policy.Default, Rule: 1}},
		{`{}`, skip, deliver, policy.Decision{Skip: true, Level: policy.Operator, Rule: 1}},
		{skip, `{}`, skip, policy.Decision{Skip: true, Level: policy.Default, Rule: 1}},
	} {
		l := policy.Levels{Default: mustParse(t, c.standard), Operator: mustParse(t, c.operator), Own: mustParse(t, c.own)}
		heraldtest.Equal(t, fmt.Sprintf("%+v", c), l.Decide(feedback(nil)), c.want)
	}
}

// TestAnyEvent checks which rules skip all events of an agent. A rule with other conditions may deliver one of them.
func TestAnyEvent(t *testing.T) {
	t.Parallel()
	const skip, other, noise, good = `{"action":"skip","when":{"agent":"8453:42"}}`, `{"action":"skip","when":{"agent":"8453:43"}}`,
		`{"action":"skip","when":{"tag1":"noise"}}`, `{"action":"deliver","when":{"tag1":"good","agent":"42"}}`
	for _, c := range []struct {
		operator, own string // filters
		want          policy.Decision
	}{
		{skip, "", policy.Decision{Skip: true, Level: policy.Operator, Rule: 1}},
		{other + "," + noise + `,{"action":"skip"}`, "", policy.Decision{Skip: true, Level: policy.Operator, Rule: 3}},
		{other + "," + noise, "", policy.Decision{}},
		{good + "," + skip, "", policy.Decision{Level: policy.Operator, Rule: 1}},
		{good, `{"action":"skip","when":{"chain":8453}}`, policy.Decision{Skip: true, Level: policy.Own, Rule: 1}},
		{`{"action":"skip","when":{"kind":"FeedbackRevoked"}}`, noise, policy.Decision{}},
	} {
		l := policy.Levels{Operator: mustParse(t, `{"filters":[`+c.operator+`]}`), Own: mustParse(t, `{"filters":[`+c.own+`]}`)}
		heraldtest.Equal(t, fmt.Sprintf("%+v", c), l.Decide(policy.Event{Chain: 8453, Agent: "42"}), c.want)
	}
}

func TestLevelsSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ standard, operator, own, want string }{
		{`{}`, `{}`, `{}`, `{}`},
		{`{"onUnknown":"hold","order":"off","maxPerSecond":5,"batchSize":10}`, `{"onUnknown":"resend","maxPerSecond":9}`, `{}`,
			`{"onUnknown":"resend","order":"off","maxPerSecond":9,"batchSize":10}`},
		{`{"enabled":false}`, `{"enabled":true}`, `{}`, `{"enabled":true}`},
		{`{"enabled":true}`, `{"enabled":false}`, `{"enabled":true}`, `{"enabled":false}`},
		{`{"enabled":true}`, `{}`, `{"enabled":false}`, `{"enabled":false}`},
		{`{}`, `{}`, `{"enabled":true,"maxPerSecond":2,"batchSize":3}`, `{"maxPerSecond":2,"batchSize":3}`},
		{`{"maxPerSecond":1,"batchSize":2}`, `{}`, `{"maxPerSecond":2,"batchSize":1}`, `{"maxPerSecond":1,"batchSize":1}`},
		{`{"pauseUntil":"2030-01-01T00:00:00Z"}`, `{"pauseUntil":"2029-01-01T00:00:00Z"}`, `{"pauseUntil":"2028-01-01T00:00:00Z"}`,
			`{"pauseUntil":"2029-01-01T00:00:00Z"}`},
		{`{}`, `{"pauseUntil":"2029-01-01T00:00:00Z"}`, `{"pauseUntil":"2029-01-01T00:00:00-01:00"}`, `{"pauseUntil":"2029-01-01T01:00:00Z"}`},
	} {
		l := policy.Levels{Default: mustParse(t, c.standard), Operator: mustParse(t, c.operator), Own: mustParse(t, c.own)}
		heraldtest.Equal(t, fmt.Sprintf("%+v", c), l.Settings().String(), c.want)
	}
}

// TestTodaysSettings checks that the settings of an agent's row and of the servers file have a policy. An agent's row
// has onUnknown and order, which the servers file overrides (onUnknown); either of both can disable the agent.
func TestTodaysSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ row, file, want string }{
		{`{"onUnknown":"hold","order":"off"}`, `{}`, `{"onUnknown":"hold","order":"off"}`},
		{`{"onUnknown":"hold","order":"off"}`, `{"onUnknown":"resend"}`, `{"onUnknown":"resend","order":"off"}`},
		{`{}`, `{"enabled":false}`, `{"enabled":false}`},
		{`{"enabled":false}`, `{}`, `{"enabled":false}`},
	} {
		l := policy.Levels{Operator: mustParse(t, c.row).Override(mustParse(t, c.file))}
		heraldtest.Equal(t, fmt.Sprintf("%+v", c), l.Settings().String(), c.want)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	when := func(s string) string { return `{"filters":[{"action":"deliver"},{"action":"skip","when":` + s + `}]}` }
	for _, c := range []struct{ document, path, problem string }{
		{`[]`, "", "must be an object"},
		{`{"enabled":true,"enabled":false}`, "enabled", "is given twice"},
		{`{"enabled":`, "enabled", "is not JSON"},
		{`{"filter":[]}`, "filter", "is unknown: use one of enabled, "},
		{`{"enabled":null}`, "enabled", "must be true or false"},
		{`{"enabled":"true"}`, "enabled", "must be true or false"},
		{`{"onUnknown":"drop"}`, "onUnknown", "must be resend or hold"},
		{`{"order":""}`, "order", "must be strict or off"},
		{`{"maxPerSecond":0}`, "maxPerSecond", "must be a number from 0.01 to 10000"},
		{`{"maxPerSecond":"5"}`, "maxPerSecond", "must be a number"},
		{`{"batchSize":1.5}`, "batchSize", "must be a whole number from 1 to 1000"},
		{`{"batchSize":1001}`, "batchSize", "must be a whole number from 1 to 1000"},
		{`{"pauseUntil":"tomorrow"}`, "pauseUntil", "must be a time such as "},
		{`{"pauseUntil":"9999-12-31T23:59:59-01:00"}`, "pauseUntil", "must be a time such as "},
		{`{"filters":{}}`, "filters", "must be a list of at most 100 rules"},
		{`{"filters":[` + strings.Repeat(`{"action":"skip"},`, 100) + `{"action":"skip"}]}`, "filters", "must be a list of at most 100 rules"},
		{`{"filters":[{"action":"skip","then":1}]}`, "filters[0].then", "is unknown: use one of action, when"},
		{`{"filters":[{"when":{}}]}`, "filters[0]", "has no action"},
		{`{"filters":[{"action":"drop"}]}`, "filters[0].action", "must be one of deliver, skip"},
		{`{"filters":[7]}`, "filters[0]", "must be an object"},
		{when(`{"tag3":"x"}`), "filters[1].when.tag3", "is unknown: use one of kind, "},
		{when(`[]`), "filters[1].when", "must be an object"},
		{when(`{"tag1":[]}`), "filters[1].when.tag1", "is an empty list"},
		{when(`{"tag1":["a",null]}`), "filters[1].when.tag1[1]", "must be a tag"},
		{when(`{"tag2":"a*b"}`), "filters[1].when.tag2", "must be a tag"},
		{when(`{"tag1":"a\u0000"}`), "filters[1].when.tag1", "contains NUL"},
		{when("{\"tag1\":\"\xff\"}"), "filters[1].when.tag1", "is not UTF-8 text"},
		{when(`{"kind":"AgentUpdated"}`), "filters[1].when.kind", "must be one of NewFeedback, "},
		{when(`{"chain":0}`), "filters[1].when.chain", "must be the number of a chain"},
		{when(`{"chain":1.0}`), "filters[1].when.chain", "must be the number of a chain"},
		{when(`{"agent":"8453/42"}`), "filters[1].when.agent", "must be AGENT or CHAIN:AGENT"},
		{when(`{"agent":-1}`), "filters[1].when.agent", "must be AGENT or CHAIN:AGENT"},
		{when(`{"min":"1e3"}`), "filters[1].when.min", "must be a decimal number without an exponent"},
		{when(`{"min":1e999999999}`), "filters[1].when.min", "is a number too long"},
		{when(`{"max":true}`), "filters[1].when.max", "must be a decimal number"},
		{when(`{"file":"yes"}`), "filters[1].when.file", "must be true or false"},
		{when(`{"client":"0x12"}`), "filters[1].when.client", "must be an address"},
		{when(`{"client":["0x8004BAa17C55a88189AE136b182e5fdA19dE9b64"]}`), "filters[1].when.client[0]", "has a wrong checksum"},
		{when(`{"client":{"file":"bad.txt"}}`), "filters[1].when.client", "must be an address: 0x and 40 hex digits (line 2)"},
		{when(`{"client":{"file":"empty.txt"}}`), "filters[1].when.client", "must be an address: 0x and 40 hex digits (line 1)"},
		{when(`{"client":{"file":"none.txt"}}`), "filters[1].when.client.file", "cannot be read: no such file"},
		{when(`{"client":{"path":"clients.txt"}}`), "filters[1].when.client.path", "is unknown: use one of file"},
		{when(`{"client":{}}`), "filters[1].when.client", "must be an address or"},
		{`{"filters":[]` + strings.Repeat(" ", policy.MaxBytes) + `}`, "", "is longer than 16384 bytes"},
		{when(`{"tag1":"` + strings.Repeat("<", 8000) + `"}`), "", "is longer than 16384 bytes in its canonical form"},
	} {
		_, _, err := policy.Parse([]byte(c.document), policy.Operator, readFile)
		if refusal, ok := errors.AsType[*job.Refusal](err); !ok || refusal.Path != c.path || !strings.Contains(refusal.Problem, c.problem) {
			t.Errorf("%.100s: got %v, want %s: %s", c.document, err, c.path, c.problem)
		}
	}
	for _, document := range []string{`{"onUnknown":"hold"}`, `{"order":"off"}`} {
		if _, _, err := policy.Parse([]byte(document), policy.Own, nil); err == nil || !strings.Contains(err.Error(), "is unknown") {
			t.Errorf("the agent's own policy %s: got %v", document, err)
		}
	}
	if _, _, err := policy.Parse([]byte(when(`{"client":{"file":"clients.txt"}}`)), policy.Own, nil); err == nil ||
		err.Error() != "filters[1].when.client: names a file: only the operator's policy file can" {
		t.Errorf("a file where none is allowed: got %v", err)
	}
}

// TestReadFile checks that a policy that names a wrong file, such as a log or a device, is refused before the file fills
// the memory.
func TestReadFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "clients.txt")
	heraldtest.Must(t, os.WriteFile(file, []byte(alice), 0o600))
	if raw, err := policy.ReadFile(file); string(raw) != alice || err != nil {
		t.Errorf("got %q, %v", raw, err)
	}
	heraldtest.Must(t, os.Truncate(file, policy.MaxFileBytes))
	if raw, err := policy.ReadFile(file); len(raw) != policy.MaxFileBytes || err != nil {
		t.Errorf("the longest file: %d bytes, %v", len(raw), err)
	}
	heraldtest.Must(t, os.Truncate(file, policy.MaxFileBytes+1))
	for _, name := range []string{file, "/dev/zero"} {
		document := `{"filters":[{"action":"skip","when":{"client":{"file":"` + name + `"}}}]}`
		_, _, err := policy.Load("/policy.json", []byte(document), policy.ReadFile)
		if err == nil || !strings.Contains(err.Error(), "filters[0].when.client.file: cannot be read: "+name+" is longer than 33554432 bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseWarns(t *testing.T) {
	t.Parallel()
	document := `{"filters":[{"action":"skip","when":{"tag1":"trust","max":10}},{"action":"skip","when":{"min":101}}]}`
	_, warnings, err := policy.Parse([]byte(document), policy.Default, nil)
	if err != nil || len(warnings) != 1 || !strings.HasPrefix(warnings[0], "filters[1].when: compares all tags' values") {
		t.Errorf("got %q, %v", warnings, err)
	}
}

func TestCanonicalForm(t *testing.T) {
	t.Parallel()
	for document, want := range map[string]string{
		` { "filters" : [ ] } `: `{}`,
		`{"order":"off","maxPerSecond":2.50,"pauseUntil":"2030-01-01T01:00:00.000+01:00","enabled":false}`: `{"enabled":false,"order":"off","maxPerSecond":2.5,"pauseUntil":"2030-01-01T00:00:00Z"}`,
		`{"filters":[{"when":{"tag1":["a", "b*"],"min":1.50},"action":"skip"}],"batchSize":7}`:             `{"batchSize":7,"filters":[{"action":"skip","when":{"min":1.50,"tag1":["a","b*"]}}]}`,
	} {
		heraldtest.Equal(t, document, mustParse(t, document).String(), want)
	}
}

// FuzzParse checks that a policy and its canonical form make the same decisions, and that errors can be shown.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{}`, `{"enabled":false,"onUnknown":"hold","order":"off","maxPerSecond":0.5,"batchSize":9,"pauseUntil":"2030-01-01T00:00:00Z"}`,
		`{"filters":[{"action":"skip","when":{"kind":["NewFeedback"],"chain":8453,"agent":["42","1:7"],"tag1":["uptime","miner-*",""]}}]}`,
		`{"filters":[{"action":"deliver","when":{"client":["` + alice + `",{"file":"clients.txt"}]}},{"action":"skip","when":{"min":-1.5,"max":"9977.25","file":false}}]}`,
	} {
		f.Add([]byte(s))
	}
	events := sample(7, 40)
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, warnings, err := policy.Parse(raw, policy.Default, readFile)
		var refusal *job.Refusal
		switch {
		case err != nil:
			if !errors.As(err, &refusal) || refusal.Problem == "" || len(refusal.Error()) > 2000 {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		case len(raw) > policy.MaxBytes || len(p.Filters) > policy.MaxRules || len(warnings) > len(p.Filters):
			t.Fatalf("%q is accepted, with %d warnings", raw, len(warnings))
		}
		again, _, err := policy.Parse([]byte(p.String()), policy.Default, readFile)
		if err != nil || again.String() != p.String() || !reflect.DeepEqual(again.PauseUntil, p.PauseUntil) {
			t.Fatalf("%q: %s becomes %s, %v", raw, p, again, err)
		}
		for _, e := range events {
			a, b := policy.Levels{Default: p}.Decide(e), policy.Levels{Default: again}.Decide(e)
			own := policy.Levels{Default: p, Own: again}.Decide(e)
			if a != b || a != own {
				t.Fatalf("%q decides %+v, %+v and %+v about %+v", raw, a, b, own, e)
			}
		}
	})
}
