package job

import (
	"encoding/json"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestArgumentsFeedback(t *testing.T) {
	t.Parallel()
	j := mustParse(t, feedback())
	got := j.Arguments(File{Content: json.RawMessage(`{"a":1}`), Source: "cid", Verification: "raw"}, "the-id")
	want := map[string]any{
		"score": Decimal{big.NewInt(9977), 2}, "value": "9977", "valueDecimals": json.Number("2"), "tag1": "uptime", "tag2": "",
		"clientAddress": clientHex, "feedbackIndex": json.Number("7"), "fileUri": j.FeedbackURI, "fileHash": hashHex,
		"fileContent": json.RawMessage(`{"a":1}`), "fileVerification": "raw", "fileSource": "cid", "blockNumber": json.Number("41700000"),
		"timestamp": json.Number("1770000000"), "agentId": "42", "agentRegistry": "eip155:8453:" + mixed, "chainId": json.Number("8453"),
		"transactionHash": hashHex, "logIndex": json.Number("3"), "endpoint": "https://agent.example/mcp", "deliveryId": "the-id",
	}
	heraldtest.Equal(t, "the list of arguments", got, want)
}

func TestArgumentsOfKinds(t *testing.T) {
	t.Parallel()
	revoked := change(map[string]any{"type": "FeedbackRevoked", "chainId": 1, "agentId": 0, "clientAddress": clientHex, "feedbackIndex": "18446744073709551615"}, nil)
	for _, c := range []struct {
		line string
		want map[string]any
	}{
		{revoked, map[string]any{"reason": "client", "feedbackIndex": "18446744073709551615", "agentId": "0", "blockNumber": nil,
			"timestamp": nil, "logIndex": nil, "transactionHash": nil}},
		{response(), map[string]any{"responder": clientHex, "responseUri": "https://a/b", "responseHash": nil, "fileContent": nil}},
		{validation(), map[string]any{"validatorAddress": clientHex, "response": json.Number("100"), "tag": "t", "responseUri": nil,
			"requestHash": blockHex, "fileVerification": nil, "logIndex": json.Number("0")}},
	} {
		j := mustParse(t, c.line)
		got := j.Arguments(File{}, "the-id")
		names := ArgumentNames(j.Kind)
		if len(got) != len(names) || got["deliveryId"] != "the-id" {
			t.Errorf("%s: %v", j.Kind, got)
		}
		for _, name := range names {
			if _, ok := got[name]; !ok {
				t.Errorf("%s: no %s", j.Kind, name)
			}
		}
		for name, w := range c.want {
			if v, ok := got[name]; !ok || !reflect.DeepEqual(v, w) {
				t.Errorf("%s: %s is %#v, want %#v", j.Kind, name, v, w)
			}
		}
	}
	if ArgumentNames(KindAgentUpdated) != nil {
		t.Error("AgentUpdated is not delivered")
	}
}

func TestDecimal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d    Decimal
		want string
	}{
		{Decimal{big.NewInt(9977), 2}, "99.77"}, {Decimal{big.NewInt(-32), 1}, "-3.2"}, {Decimal{big.NewInt(10000), 2}, "100"},
		{Decimal{big.NewInt(1), 18}, "0.000000000000000001"}, {Decimal{big.NewInt(0), 3}, "0"}, {Decimal{big.NewInt(-5), 0}, "-5"},
		{Decimal{big.NewInt(1500), 3}, "1.5"}, {Decimal{}, "0"},
	} {
		if raw, err := json.Marshal(c.d); c.d.String() != c.want || string(raw) != c.want || err != nil {
			t.Errorf("got %s, %s, %v, want %s", c.d, raw, err, c.want)
		}
	}
}

func TestRenderTemplate(t *testing.T) {
	t.Parallel()
	file := File{Content: json.RawMessage(`{"text":"{{score}}"}`), Source: "cid", Verification: "raw"}
	for name, c := range map[string]struct{ template, want string }{
		"own types":        {`{"a":"{{score}}","b":"{{feedbackIndex}}","c":"{{ value }}","d":"{{tag2}}"}`, `{"a":99.77,"b":7,"c":"9977","d":""}`},
		"snake case":       {`{"a":"{{feedback_index}}","b":"{{client_address}}","c":"{{file_uri}}"}`, `{"a":7,"b":"` + clientHex + `","c":"ipfs://x"}`},
		"in text":          {`{"a":"score {{score}} of {{ tag1 }}/{{tag2}}!","b":" {{score}}"}`, `{"a":"score 99.77 of uptime/!","b":" 99.77"}`},
		"file":             {`{"a":"{{verified_file_content}}","b":"{{fileContent}}","c":"<{{file_content}}>"}`, `{"a":{"text":"{{score}}"},"b":{"text":"{{score}}"},"c":"<{\"text\":\"{{score}}\"}>"}`},
		"null":             {`{"a":"{{transactionHash}}","b":"tx: {{transaction_hash}}"}`, `{"a":null,"b":"tx: "}`},
		"nested":           {`{"a":[{"b":["{{tag1}}",1,true,null,"x"]}],"n":1e2}`, `{"a":[{"b":["uptime",1,true,null,"x"]}],"n":1e2}`},
		"keys stay":        {`{"{{nonsense}}":"{{tag1}}"}`, `{"{{nonsense}}":"uptime"}`},
		"own ids":          {`{"a":[{"deliveryId":"{{deliveryId}}","Retracts":"{{ delivery_id }}"}]}`, `{"a":[{"Retracts":"the-id","deliveryId":"the-id"}]}`},
		"no placeholder":   {`{"a":"{{","b":"}}","c":"{score}","d":"{{ {x} }}"}`, `{"a":"{{","b":"}}","c":"{score}","d":"{{ {x} }}"}`},
		"two, no own type": {`{"a":"{{score}}{{score}}"}`, `{"a":"99.7799.77"}`},
		"empty":            {`{}`, `{}`},
		"only once":        {`{"a":"{{endpoint}}","b":"x{{endpoint}}"}`, `{"a":"{{deliveryId}}","b":"x{{deliveryId}}"}`}, // a stranger's text
	} {
		j := mustParse(t, feedback(`feedbackURI="ipfs://x"`, `endpoint="{{deliveryId}}"`, "transactionHash=", `action={"payloadTemplate":`+c.template+`}`))
		got, err := j.RenderTemplate(j.Arguments(file, "the-id"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(got); err != nil || strings.TrimSpace(b.String()) != c.want {
			t.Errorf("%s: got %s (%v), want %s", name, b.String(), err, c.want)
		}
	}
}

func TestRenderBounded(t *testing.T) {
	t.Parallel()
	for _, leaf := range []string{"{{fileContent}}", "x{{fileContent}}"} {
		list := strings.Repeat(`"`+leaf+`",`, 100)
		j := mustParse(t, feedback(`action={"payloadTemplate":{"a":[`+list+`1]}}`))
		args := j.Arguments(File{Content: json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)}, "the-id")
		_, err := j.RenderTemplate(args)
		heraldtest.Fails(t, leaf, err, "renders to more than")
	}
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{`{"a":"{{score}}"}`, `{"a":["x {{ tag1 }} y",{"b":"{{verified_file_content}}"}]}`, `{"{{a}}":"{{nonsense}}"}`, `{"a":"{{{{score}}}}"}`, `{"a":1e5}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, template []byte) {
		j, err := Parse([]byte(feedback(`action={"payloadTemplate":`+string(template)+`}`)), Limits{})
		if err != nil || j.Action.PayloadTemplate == nil {
			return
		}
		// Every accepted template renders to valid JSON.
		got, err := j.RenderTemplate(j.Arguments(File{Content: json.RawMessage(`{"a":1}`)}, "the-id"))
		if err != nil {
			if strings.Contains(err.Error(), "renders to more than") {
				return
			}
			t.Fatalf("%s: %v", template, err)
		}
		if _, err := json.Marshal(got); err != nil {
			t.Fatalf("%s: %v", template, err)
		}
	})
}
