package job

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestDirectCall parses the requests that the old backend's guide shows, and others that its callers may have sent.
func TestDirectCall(t *testing.T) {
	t.Parallel()
	limits := Limits{MaxTimeout: 20 * time.Second, Tools: []string{"agent.updateConfiguration"}}
	for name, c := range map[string]struct{ body, want string }{
		"the Rust worker's": {`{"endpoint":{"url":"https://a/mcp","transport":"http","command":null,"args":null,"headers":{"X-Agent-Token":"s3cret"}},` +
			`"tool_name":"agent.receiveFeedback","arguments":{"score":95,"fileContent":{"a":[1]}},"timeout_ms":30000}`,
			`http https://a/mcp [] map[X-Agent-Token:s3cret] agent.receiveFeedback map[fileContent:map[a:[1]] score:95] 20000`},
		"stdio": {`{"endpoint":{"url":null,"transport":"stdio","command":"/usr/local/bin/agent","args":["--agent-id","42"]},"tool_name":"receiveFeedback","arguments":{}}`,
			`stdio /usr/local/bin/agent [--agent-id 42] map[] receiveFeedback map[] 0`},
		"a URL":           {`{"endpoint":"https://a/mcp","tool_name":"agent.updateConfiguration"}`, `http https://a/mcp [] map[] agent.updateConfiguration map[] 0`},
		"short":           {`{"endpoint":"https://a/mcp","tool_name":"agent.receiveFeedback","timeout_ms":1,"more":true}`, `http https://a/mcp [] map[] agent.receiveFeedback map[] 1`},
		"called type":     {`{"endpoint":{"type":"sse","url":"https://a/sse"},"tool_name":"agent.receiveFeedback"}`, `sse https://a/sse [] map[] agent.receiveFeedback map[] 0`},
		"and null":        {`{"endpoint":{"url":"https://a","command":""},"tool_name":"agent.receiveFeedback","arguments":null,"timeout_ms":null}`, `http https://a [] map[] agent.receiveFeedback map[] 0`},
		"nothing":         {``, `unexpected end of the document`},
		"no object":       {`"x"`, `is not a JSON object`},
		"no endpoint":     {`{"tool_name":"agent.receiveFeedback"}`, `endpoint: is missing`},
		"no tool":         {`{"endpoint":"https://a"}`, `tool_name: is missing`},
		"another tool":    {`{"endpoint":"https://a","tool_name":"delete"}`, `tool_name: is not a tool that may be named here`},
		"own header":      {`{"endpoint":{"url":"https://a","headers":{"Mcp-Session-Id":"1"}},"tool_name":"agent.receiveFeedback"}`, `endpoint.headers.Mcp-Session-Id: cannot be set`},
		"another":         {`{"endpoint":{"transport":"ws","url":"wss://a"},"tool_name":"agent.receiveFeedback"}`, `endpoint.transport: must be http, sse or stdio`},
		"a delivery's id": {`{"endpoint":"https://a","tool_name":"agent.receiveFeedback","arguments":{"score":95,"deliveryId":"6ba7b810-9dad-11d1-80b4-00c04fd430c8"}}`, `arguments.deliveryId: is not for a direct call`},
		"a retraction":    {`{"endpoint":"https://a","tool_name":"agent.receiveRevocation","arguments":{"retracts":"5b0e"}}`, `arguments.retracts: is not for a direct call`},
		"for Go's JSON":   {`{"endpoint":"https://a","tool_name":"agent.receiveRevocation","arguments":{"retractſ":"5b0e"}}`, `arguments.retractſ: is not for a direct call`},
		"in a batch":      {`{"endpoint":"https://a","tool_name":"agent.receiveFeedbackBatch","arguments":{"deliveries":[{"score":1},{"delivery_id":"x"}]}}`, `arguments.deliveries[1].delivery_id: is not for a direct call`},
		"no arguments":    {`{"endpoint":"https://a","tool_name":"agent.receiveFeedback","arguments":[1]}`, `arguments: must be an object`},
		"timeout":         {`{"endpoint":"https://a","tool_name":"agent.receiveFeedback","timeout_ms":0}`, `timeout_ms: must be at least 1`},
		"twice":           {`{"endpoint":"https://a","endpoint":"https://b","tool_name":"agent.receiveFeedback"}`, `endpoint: is given twice`},
		"bomb":            {`{"endpoint":"https://a","tool_name":"agent.receiveFeedback","arguments":{"a":[` + strings.Repeat("0,", 200_000) + `0]}}`, `has more than 100000 values`},
		"long":            {strings.Repeat(" ", MaxCallBytes+1), `is 4194305 bytes long`},
	} {
		call, err := ParseDirectCall([]byte(c.body), limits)
		got := fmt.Sprint(err)
		if err == nil {
			headers := map[string]string{}
			for name, value := range call.Endpoint.Headers {
				headers[name] = value.Reveal()
			}
			e := call.Endpoint
			got = fmt.Sprintf("%s %s%s %v %v %s %v %d", e.Transport, e.URL, e.Command, e.Args, headers, call.Tool, call.Arguments, call.TimeoutMs)
		}
		if err == nil && got != c.want || err != nil && !strings.HasPrefix(got, c.want) && name != "nothing" {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// TestDirectCallOfALongName: a long name above many values costs memory in proportion to its bytes, not to the product
// of its length and the number of values.
func TestDirectCallOfALongName(t *testing.T) { // not parallel: it measures the allocations of the process
	body := []byte(`{"endpoint":"https://a.example","tool_name":"agent.receiveFeedback","arguments":{"` + strings.Repeat("a", 256<<10) + `":[` +
		strings.Repeat("0,", 90_000) + `0]}}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ParseDirectCall(body, Limits{})
	heraldtest.Must(t, err)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 256<<20 {
		t.Errorf("%d bytes are allocated for a request of %d", grown, len(body))
	}
}

// FuzzParseDirectCall: each body results in a call within its bounds or in a refusal.
func FuzzParseDirectCall(f *testing.F) {
	f.Add([]byte(`{"endpoint":{"url":"https://a/mcp","transport":"http","headers":{"X":"y"}},"tool_name":"agent.receiveFeedback","arguments":{"score":95},"timeout_ms":30000}`))
	f.Add([]byte(`{"endpoint":"https://a","tool_name":"agent.receiveFeedback"}`))
	f.Add([]byte("{\"endpoint\":{\"transport\":\"stdio\",\"command\":\"\x00\",\"args\":[\"\xff\"]},\"tool_name\":\"receiveFeedback\"}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := ParseDirectCall(body, Limits{})
		if err != nil {
			if _, ok := err.(*Refusal); !ok {
				t.Errorf("%T: %v", err, err)
			}
			return
		}
		if c.Arguments == nil || c.Tool == "" || c.TimeoutMs < 0 || c.TimeoutMs > 30000 || len(c.Endpoint.Args) > maxArgs ||
			len(c.Endpoint.Headers) > maxHeaders || (c.Endpoint.URL == "") == (c.Endpoint.Command == "") {
			t.Errorf("%+v", c)
		}
	})
}
