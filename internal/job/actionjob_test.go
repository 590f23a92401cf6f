package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// oldJob returns an ActionJob as the old backend enqueued it. changes apply to event_data.
func oldJob(config string, changes ...string) string {
	data := change(map[string]any{
		"event_id": "reputation-8453-" + hashHex + "-3", "chain_id": 8453, "block_number": 41700000, "registry": "reputation",
		"event_type": "NewFeedback", "timestamp": 1770000000, "transaction_hash": hashHex, "agent_id": 42, "owner": nil, "token_uri": nil,
		"client_address": clientHex, "feedback_index": 7, "score": 95, "tag1": "uptime", "tag2": nil, "file_uri": "ipfs://x", "file_hash": hashHex,
		"validator_address": nil, "request_hash": nil, "response": nil, "response_uri": nil, "response_hash": nil, "tag": nil,
	}, changes)
	if config == "" {
		config = "{}"
	}
	return `{"id":"4b0e8ad5-0000-4000-8000-000000000000","trigger_id":"trigger-1","event_id":"reputation-8453-` + hashHex + `-3","action_type":"mcp",` +
		`"priority":1,"config":` + config + `,"event_data":` + data + `,"created_at":"2026-01-11T00:00:00Z"}`
}

func TestActionJob(t *testing.T) {
	t.Parallel()
	j := mustParse(t, oldJob(""))
	// The same event in the present form has the same key.
	ours := mustParse(t, feedback("value=", "valueDecimals=", "score=95", `feedbackURI="ipfs://x"`, "endpoint="))
	if j.Key() != ours.Key() || j.TransactionHash != ours.TransactionHash || *j.LogIndex != 3 || j.Timestamp != ours.Timestamp || j.BlockNumber != ours.BlockNumber {
		t.Errorf("got %+v", j)
	}
	if field, conflict := j.Conflict(ours); conflict {
		t.Errorf("differs in %s", field)
	}
	if string(j.Meta) != `{"jobId":"4b0e8ad5-0000-4000-8000-000000000000","triggerId":"trigger-1","eventId":"reputation-8453-`+hashHex+`-3"}` {
		t.Errorf("meta %s", j.Meta)
	}
	if !j.LegacyScore || !j.Action.ResolveEndpoint || j.Action.ToolName != "agent.receiveFeedback" {
		t.Errorf("action %+v", j.Action)
	}
}

// TestActionJobConfigs: the tool and the endpoint of each form of config, whether the file is included and verified, the
// time limit and the template. An endpoint object has the meaning of the string, and more fields.
func TestActionJobConfigs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ config, want string }{
		"none":                         {`{}`, `agent.receiveFeedback - true true 0 `},
		"design":                       {`{"resolve_endpoint":true,"tool_name":"agent.receiveFeedback","verify_file_hash":false,"include_file_content":false,"validate_oasf":true,"payload_template":{"a":"{{verified_file_content}}"}}`, `agent.receiveFeedback - false false 0 {"a":"{{verified_file_content}}"}`},
		"design, explicit":             {`{"resolve_endpoint":false,"endpoint":"https://a/mcp"}`, `agent.receiveFeedback http https://a/mcp [] map[] true true 0 `},
		"design, both":                 {`{"resolve_endpoint":true,"endpoint":"https://a/mcp"}`, `agent.receiveFeedback - true true 0 `},
		"implemented":                  {`{"server_url":"https://a/mcp","tool_name":"receiveFeedback","arguments_template":{"s":"{{score}}"},"timeout_ms":20000,"auth_token":"s3cret"}`, `receiveFeedback http https://a/mcp [] map[Authorization:Bearer s3cret] true true 20000 {"s":"{{score}}"}`},
		"clamped":                      {`{"timeout_ms":300000}`, `agent.receiveFeedback - true true 30000 `},
		"gateway test":                 {`{"endpoint":"https://a/mcp","tool":"agent_receiveFeedback"}`, `agent_receiveFeedback http https://a/mcp [] map[] true true 0 `},
		"docs site":                    {`{"server_url":"https://a/mcp","resource_type":"x","operation":"y"}`, `agent.receiveFeedback http https://a/mcp [] map[] true true 0 `},
		"token, but nowhere to use it": {`{"auth_token":"s3cret"}`, `agent.receiveFeedback - true true 0 `},
		"http":                         {`{"resolve_endpoint":false,"endpoint":{"type":"http","url":"https://a/mcp"}}`, `agent.receiveFeedback http https://a/mcp [] map[] true true 0 `},
		"without resolve":              {`{"endpoint":{"type":"sse","url":"https://a/sse","headers":null,"command":null,"args":[]}}`, `agent.receiveFeedback sse https://a/sse [] map[] true true 0 `},
		"headers":                      {`{"endpoint":{"type":"http","url":"https://a","headers":{"x-key":"s3cret"}}}`, `agent.receiveFeedback http https://a [] map[X-Key:s3cret] true true 0 `},
		"headers and token":            {`{"endpoint":{"url":"https://a","headers":{"x-key":"s3cret"}},"auth_token":"s3cret2"}`, `agent.receiveFeedback http https://a [] map[Authorization:Bearer s3cret2 X-Key:s3cret] true true 0 `},
		"the guide's":                  {`{"resolve_endpoint":false,"endpoint":{"transport":"http","url":"https://a/mcp","command":null,"args":null,"headers":{"X-Agent-Token":"s3cret"}}}`, `agent.receiveFeedback http https://a/mcp [] map[X-Agent-Token:s3cret] true true 0 `},
		"the guide's stdio":            {`{"resolve_endpoint":false,"endpoint":{"transport":"stdio","url":null,"command":"agent","args":["--agent-id","42"]}}`, `agent.receiveFeedback stdio agent [--agent-id 42] map[] true true 0 `},
		"another name":                 {`{"endpoint":{"type":"streamable-http","url":"https://a"}}`, `agent.receiveFeedback http https://a [] map[] true true 0 `},
		"unknown fields":               {`{"endpoint":{"type":"http","url":"https://a","timeout":5,"command":""}}`, `agent.receiveFeedback http https://a [] map[] true true 0 `},
		"stdio":                        {`{"endpoint":{"type":"stdio","command":"npx","args":["-y","agent"],"headers":{}}}`, `agent.receiveFeedback stdio npx [-y agent] map[] true true 0 `},
		"stdio without type":           {`{"endpoint":{"url":"","command":"npx"}}`, `agent.receiveFeedback stdio npx [] map[] true true 0 `},
		"not used":                     {`{"resolve_endpoint":true,"endpoint":{"type":"http","url":"https://a","headers":{"x-key":"s3cret"}}}`, `agent.receiveFeedback - true true 0 `},
	} {
		j := mustParse(t, oldJob(c.config))
		a, endpoint := j.Action, "-"
		if e := a.Endpoint; e != nil {
			headers := map[string]string{}
			for name, value := range e.Headers {
				headers[name] = value.Reveal()
			}
			endpoint = fmt.Sprintf("%s %s%s %v %v", e.Transport, e.URL, e.Command, e.Args, headers)
		}
		got := fmt.Sprintf("%s %s %v %v %d %s", a.ToolName, endpoint, a.IncludeFileContent, a.VerifyFileHash, a.TimeoutMs, a.PayloadTemplate)
		heraldtest.Equal(t, name, got, c.want)
		heraldtest.Equal(t, name+": the endpoint is resolved", a.ResolveEndpoint, endpoint == "-")
		raw, err := json.Marshal(j)
		heraldtest.Must(t, err)
		heraldtest.Lacks(t, name, string(raw), "s3cret")
	}
}

// TestActionJobGuide parses the actions of the old guide's examples, whose templates use old names.
func TestActionJobGuide(t *testing.T) {
	t.Parallel()
	feedback := mustParse(t, oldJob(`{"resolve_endpoint":true,"tool_name":"agent.receiveFeedback","verify_file_hash":true,"include_file_content":true,
		"validate_oasf":true,"payload_template":{"score":"{{score}}","tag1":"{{tag1}}","tag2":"{{tag2}}","clientAddress":"{{client_address}}",
		"feedbackIndex":"{{feedback_index}}","fileUri":"{{file_uri}}","fileHash":"{{file_hash}}","fileContent":"{{verified_file_content}}",
		"blockNumber":"{{block_number}}","timestamp":"{{timestamp}}","severity":"critical"}}`))
	validation := mustParse(t, oldJob(`{"resolve_endpoint":true,"tool_name":"agent.receiveValidation","verify_file_hash":true,"include_file_content":true,
		"payload_template":{"validatorAddress":"{{validator_address}}","response":"{{response}}","tag":"{{tag}}","responseUri":"{{response_uri}}",
		"fileContent":"{{verified_file_content}}","blockNumber":"{{block_number}}"}}`,
		`event_type="ValidationResponse"`, `registry="validation"`, `validator_address="`+clientHex+`"`, `request_hash="`+blockHex+`"`, `response=88`,
		`response_uri="https://a/r"`, `tag="t"`, `client_address=null`, `feedback_index=null`, `score=null`))
	for _, j := range []Job{feedback, validation} {
		if !j.Action.ResolveEndpoint || j.Action.Endpoint != nil || len(j.Action.PayloadTemplate) == 0 || j.Key() == "" {
			t.Errorf("%+v", j.Action)
		}
	}
	got, err := feedback.RenderTemplate(map[string]any{"score": 95, "clientAddress": clientHex, "feedbackIndex": 7, "fileContent": nil})
	if err != nil || got["severity"] != "critical" || fmt.Sprintf("%v %v %v", got["score"], got["feedbackIndex"], got["clientAddress"]) != "95 7 "+clientHex {
		t.Errorf("%v, %v", got, err)
	}
	// Events of the old backend that lack a needed field are refused with the field's name.
	for field, changes := range map[string][]string{
		"event_data.feedback_index": {`feedback_index=null`}, "event_data.client_address": {`client_address=null`},
		"event_data.agent_id": {`agent_id=null`}, "event_data.chain_id": {`chain_id=null`}, "event_data.event_type": {`event_type=null`},
		"event_data.score": {`score=null`},
	} {
		_, err := Parse([]byte(oldJob("", changes...)), Limits{})
		if refusal, ok := errors.AsType[*Refusal](err); !ok || refusal.Path != field {
			t.Errorf("without %s: %v", field, err)
		}
	}
}

func TestActionJobKinds(t *testing.T) {
	t.Parallel()
	v := mustParse(t, oldJob("", `event_type="ValidationResponse"`, `validator_address="`+clientHex+`"`, `request_hash="`+blockHex+`"`,
		`response=88`, `response_uri="https://a/r"`, `tag="t"`))
	if v.Key() != "eip155:8453:0x8004cc8439f36fd5f9f049d9ff86523df6daab58/"+blockHex+"/"+hashHex+"/3#ValidationResponse" ||
		v.Response != 88 || v.Tag != "t" || v.ResponseURI != "https://a/r" || v.Action.ToolName != "agent.receiveValidation" {
		t.Errorf("got %+v", v)
	}
	r := mustParse(t, oldJob("", `event_type="FeedbackRevoked"`))
	heraldtest.Equal(t, "the kind", r.Kind, KindFeedbackRevoked)
	heraldtest.Equal(t, "the reason", r.Reason, RevokedByClient)
}

// TestActionJobPlace: older ids have no transaction, and a job may lack the field.
func TestActionJobPlace(t *testing.T) {
	t.Parallel()
	withID := func(id string, changes ...string) string {
		return strings.Replace(oldJob("", changes...), `"event_id":"reputation-8453-`+hashHex+`-3","action_type"`, `"event_id":"`+id+`","action_type"`, 1)
	}
	j := mustParse(t, withID("8453-41700000-12"))
	if j.LogIndex == nil || *j.LogIndex != 12 || j.TransactionHash.Hex() != hashHex {
		t.Errorf("got %+v", j)
	}
	j = mustParse(t, withID("reputation-8453-"+hashHex+"-5", "transaction_hash="))
	if j.LogIndex == nil || *j.LogIndex != 5 || j.TransactionHash.Hex() != hashHex {
		t.Errorf("got %+v", j)
	}
	j = mustParse(t, withID("something"))
	if j.LogIndex != nil || j.TransactionHash.Hex() != hashHex {
		t.Errorf("got %+v", j)
	}
}

func TestActionJobRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ line, path, problem string }{
		"telegram":       {strings.Replace(oldJob(""), `"mcp"`, `"telegram"`, 1), "action_type", `"telegram" is not delivered`},
		"no action":      {strings.Replace(oldJob(""), `"action_type":"mcp",`, ``, 1), "action_type", "is missing"},
		"no event":       {`{"action_type":"mcp"}`, "event_data", "is missing"},
		"no kind":        {oldJob("", "event_type="), "event_data.event_type", "is missing"},
		"other kind":     {oldJob("", `event_type="AgentRegistered"`), "event_data.event_type", "must be NewFeedback"},
		"no client":      {oldJob("", "client_address="), "event_data.client_address", "is missing"},
		"no score":       {oldJob("", "score="), "event_data.score", "is missing"},
		"index 0":        {oldJob("", "feedback_index=0"), "event_data.feedback_index", "must be at least 1"},
		"score":          {oldJob("", "score=101"), "event_data.score", "must be at most 100"},
		"endpoint list":  {oldJob(`{"endpoint":["https://a"]}`), "config.endpoint", "must be a string"},
		"endpoint empty": {oldJob(`{"endpoint":{}}`), "config.endpoint.url", "is missing"},
		"endpoint type":  {oldJob(`{"endpoint":{"type":"ws","url":"wss://a"}}`), "config.endpoint.type", "must be http, sse or stdio"},
		"endpoint both":  {oldJob(`{"endpoint":{"url":"https://a","command":"npx"}}`), "config.endpoint.type", "both a url and a command"},
		"endpoint url":   {oldJob(`{"endpoint":{"type":"http","url":"https://u:s3cret@a"}}`), "config.endpoint.url", "user or password"},
		"endpoint stdio": {oldJob(`{"endpoint":{"type":"stdio","url":"https://a"}}`), "config.endpoint.command", "is missing"},
		"endpoint args":  {oldJob(`{"endpoint":{"type":"stdio","command":"npx","args":"-y"}}`), "config.endpoint.args", "list of at most"},
		"header":         {oldJob(`{"endpoint":{"url":"https://a","headers":{"X-Key":"s3cret\n"}}}`), "config.endpoint.headers.X-Key", "printable ASCII"},
		"token twice":    {oldJob(`{"endpoint":{"url":"https://a","headers":{"authorization":"s3cret"}},"auth_token":"s3cret"}`), "config.auth_token", "both give an Authorization header"},
		"no responder":   {oldJob("", `event_type="ResponseAppended"`), "event_data.responder", "is missing"},
		"config":         {oldJob(`[]`), "config", "must be an object"},
		"tool":           {oldJob(`{"tool":"wallet.send"}`), "config.tool", "HERALD_TOOLS"},
		"no endpoint":    {oldJob(`{"resolve_endpoint":false}`), "config.endpoint", "is missing"},
		"server_url":     {oldJob(`{"server_url":"ftp://a"}`), "config.server_url", "http or https"},
		"template":       {oldJob(`{"arguments_template":{"a":"{{owner}}"}}`), "config.arguments_template.a", `no value "owner"`},
		"token newline":  {oldJob(`{"server_url":"https://a","auth_token":"s3cret\n"}`), "config.auth_token", "printable ASCII"},
		"token number":   {oldJob(`{"server_url":"https://a","auth_token":5}`), "config.auth_token", "must be a string"},
		"given twice":    {strings.Replace(oldJob(""), `"priority":1`, `"priority":1,"priority":2`, 1), "priority", "given twice"},
		"event id alone": {strings.ReplaceAll(oldJob("", `event_type="ValidationResponse"`, `validator_address="`+clientHex+`"`, `request_hash="`+blockHex+`"`, `response=1`), "reputation-8453-"+hashHex+"-3", "x"), "event_id", "is missing"},
	} {
		_, err := Parse([]byte(c.line), Limits{})
		if r, ok := errors.AsType[*Refusal](err); !ok || r.Path != c.path || !strings.Contains(r.Problem, c.problem) {
			t.Errorf("%s: got %v, want %s: …%s…", name, err, c.path, c.problem)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: shows a secret", name)
		}
	}
}
