package job

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// generator generates jobs of all kinds, in both forms and in all spellings, from a seed.
type generator struct{ *rand.Rand }

const (
	zeroAddress = "0x0000000000000000000000000000000000000000"
	zeroHash    = "0x0000000000000000000000000000000000000000000000000000000000000000"
	mixedHex    = "0x8004A169FB4a3325136EB29fA0ceB6D2e539a432" // with a correct checksum
)

// mainnetRegistries yields the registry fields and their mainnet addresses in a fixed order.
func mainnetRegistries() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		_ = yield("identityRegistry", mixedHex) && yield("reputationRegistry",
			"0x8004BAa17C55a88189AE136b182e5fdA19dE9b63") &&
			yield("validationRegistry", "0x8004Cc8439f36fd5F9F049D9fF86523Df6dAAB58")
	}
}

// raw returns s as literal JSON, for numbers in spellings that Go would not write.
func raw(s string) json.RawMessage { return json.RawMessage(s) }

// strange returns the values that replace a valid one in neighbours.
func strange() []any {
	values := []any{nil, "", "x", " ", "0", "-0", "-1", "1", "007", "19", "100", "101", "999", "99999999999999", "18446744073709551615", "1e2", "1.0", true, false,
		"client", "reorg", "mcp", "stdio", "http", "sse", "ws", "streamable-http", "https://a.example/", "HTTPS://a:1?x", "https://", "ftp://a.example/",
		"https://u:p@a.example/", "agent.receive", "agent.receiveX", "agent/receive_1", "receiveFeedback", "receiveFunds", "agent.receive{", "NewFeedback", "AgentUpdated",
		"ResponseAppended", "NewFeedback ", clientHex, strings.ToUpper(clientHex), "0X1111111111111111111111111111111111111111", clientHex + "1",
		zeroAddress, mixedHex, hashHex, zeroHash, hashHex + "0", "0x" + strings.Repeat("g", 64), "8453-1-2", "reputation-8453-" + hashHex + "-3",
		"reputation-8453-" + zeroHash + "-3", "reputation-8453-" + hashHex + "-1234567890", "é\n", strings.Repeat("0", 401), strings.Repeat("0", 399) + "1",
		strings.Repeat("9", 39), "1" + strings.Repeat("0", 38), "-1" + strings.Repeat("0", 38), "agent.receive" + strings.Repeat("x", 120),
		"https://a.example/" + strings.Repeat("x", 4090), strings.Repeat("x", 5000), strings.Repeat("x", 8190), strings.Repeat("x", 8200),
		map[string]any{}, map[string]any{"a": "b"}, map[string]any{"a b": "c"}, map[string]any{"x-a": ""}, []any{}, []any{"a"}, []any{1},
		map[string]any{"type": "stdio"}, map[string]any{"url": "https://a.example/"}, map[string]any{"url": "", "command": "npx"},
		map[string]any{"url": "https://a.example/", "command": "npx"}, slices.Repeat([]any{"a"}, 65)}
	many := map[string]any{}
	for i := range 33 {
		many["x-"+strings.Repeat("a", i+1)] = "b"
	}
	values = append(values, many)
	for _, n := range []string{"0", "-0", "1", "-1", "1.0", "1.5", "1e2", "18", "19", "100", "101", "999", "1000", "2147483647", "2147483648", "253402300799",
		"253402300800", "9007199254740991", "9007199254740992", "-9007199254740991", "-9007199254740992"} {
		values = append(values, raw(n))
	}
	return values
}

func pick[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

// number returns one of some integers, as a number or as a string.
func (g *generator) number(of ...string) any {
	n := pick(g, of...)
	if g.IntN(2) == 0 && len(n) < 16 && json.Valid([]byte(n)) {
		return raw(n)
	}
	return n
}

func (g *generator) address() string { return pick(g, clientHex, mixedHex, strings.ToLower(mixedHex)) }

func (g *generator) hash() string { return pick(g, hashHex, blockHex) }

func (g *generator) text() any { return pick[any](g, "", "uptime", "é\u0000", "ipfs://x", nil) }

// some sets a field with a probability of one half.
func (g *generator) some(m map[string]any, name string, value any) {
	if g.IntN(2) == 0 {
		m[name] = value
	}
}

// valid returns a job that Parse accepts. turn selects the kind and the form.
func (g *generator) valid(turn int) map[string]any {
	kinds := []Kind{KindNewFeedback, KindFeedbackRevoked, KindResponseAppended, KindValidationResponse, KindAgentUpdated}
	k := kinds[turn%len(kinds)]
	if turn/len(kinds)%2 == 1 {
		return g.old(k)
	}
	m := map[string]any{"type": string(k), "chainId": g.number("8453", "1", "0008453"), "agentId": g.number("0", "42", "-0", strings.Repeat("7", 77))}
	for name, address := range mainnetRegistries() {
		g.some(m, name, pick(g, address, strings.ToLower(address)))
	}
	g.some(m, "blockNumber", g.number("0", "41700000", "9223372036854775807"))
	g.some(m, "blockHash", pick(g, blockHex, zeroHash))
	g.some(m, "timestamp", g.number("0", "1770000000"))
	g.some(m, "meta", pick[any](g, map[string]any{"any": []any{1, nil, "x"}}, nil))
	g.some(m, "transactionHash", g.hash())
	g.some(m, "logIndex", g.number("0", "3"))
	g.some(m, "action", g.action())
	switch k {
	case KindNewFeedback:
		maps.Copy(m, map[string]any{"clientAddress": g.address(), "feedbackIndex": g.number("1", "18446744073709551615")})
		if g.IntN(3) == 0 {
			m["score"] = g.number("0", "95", "100")
		} else {
			m["value"], m["valueDecimals"] = g.number("-9977", "0", "99999999999999999999999999999999999999"), g.number("0", "2", "18")
		}
		for _, name := range []string{"tag1", "tag2", "endpoint", "feedbackURI"} {
			g.some(m, name, g.text())
		}
		g.some(m, "feedbackHash", pick(g, hashHex, zeroHash))
	case KindFeedbackRevoked:
		maps.Copy(m, map[string]any{"clientAddress": g.address(), "feedbackIndex": g.number("1", "7")})
		if m["reason"] = pick[any](g, "client", "reorg", "", nil); m["reason"] == "reorg" {
			m["blockHash"] = blockHex
		}
	case KindResponseAppended:
		maps.Copy(m, map[string]any{"clientAddress": g.address(), "feedbackIndex": g.number("1", "7"), "responder": g.address(),
			"transactionHash": g.hash(), "logIndex": g.number("0", "2147483647")})
		g.some(m, "responseURI", g.text())
		g.some(m, "responseHash", pick(g, hashHex, zeroHash))
	case KindValidationResponse:
		maps.Copy(m, map[string]any{"validatorAddress": g.address(), "requestHash": g.hash(), "response": g.number("0", "100"),
			"transactionHash": g.hash(), "logIndex": g.number("0", "4")})
		g.some(m, "responseURI", g.text())
		g.some(m, "responseHash", g.hash())
		g.some(m, "tag", g.text())
	}
	return m
}

func (g *generator) action() any {
	if g.IntN(10) == 0 {
		return nil
	}
	m := map[string]any{}
	g.some(m, "toolName", pick[any](g, "agent.receiveFeedback", "agent_receiveX", "agent/receive.y", "receiveResponse", nil))
	g.some(m, "includeFileContent", pick[any](g, true, false, nil))
	g.some(m, "verifyFileHash", pick[any](g, true, false, nil))
	g.some(m, "timeoutMs", g.number("1000", "30000", "18446744073709551615"))
	g.some(m, "payloadTemplate", map[string]any{"a": pick(g, "{{chainId}}", "{{ agent_id }}!", "plain"), "b": []any{1, nil}})
	if named := g.IntN(3); named > 0 {
		m["resolveEndpoint"] = named == 1
		m["endpoint"] = pick(g, g.web(), map[string]any{"transport": "stdio", "command": "npx", "args": []any{"-y", ""}})
	}
	return m
}

func (g *generator) web() map[string]any {
	m := map[string]any{"transport": pick(g, "http", "sse"), "url": pick(g, "https://a.example/mcp?x", "HTTP://127.0.0.1:8080", "https://[::1]:80/")}
	g.some(m, "headers", pick[any](g, map[string]any{"Authorization": "Bearer x", "x_key": " ~"}, nil))
	g.some(m, "command", nil)
	return m
}

// old returns a job in the old backend's form.
func (g *generator) old(k Kind) map[string]any {
	data := map[string]any{"event_type": string(k), "chain_id": g.number("8453", "1"), "agent_id": g.number("0", "42"), "owner": nil}
	g.some(data, "block_number", g.number("0", "41700000"))
	g.some(data, "timestamp", pick[any](g, raw("1770000000"), "", nil))
	id := pick(g, "reputation-8453-"+hashHex+"-3", "8453-41700000-12")
	m := map[string]any{"action_type": "mcp", "event_data": data, "id": "x", "priority": 1, "event_id": id}
	if g.IntN(3) == 0 {
		m["event_id"], data["event_id"] = pick[any](g, nil, "", false), id
	}
	if strings.HasPrefix(id, "8453") || g.IntN(2) == 0 {
		data["transaction_hash"] = g.hash()
	}
	switch k {
	case KindNewFeedback:
		maps.Copy(data, map[string]any{"client_address": g.address(), "feedback_index": g.number("1", "7"), "score": g.number("0", "95"), "tag1": g.text(),
			"tag2": g.text(), "file_uri": g.text(), "file_hash": pick[any](g, hashHex, "", nil)})
	case KindFeedbackRevoked:
		maps.Copy(data, map[string]any{"client_address": g.address(), "feedback_index": g.number("1", "7")})
	case KindResponseAppended:
		maps.Copy(data, map[string]any{"client_address": g.address(), "feedback_index": g.number("1", "7"), "responder": g.address(),
			"response_uri": g.text(), "response_hash": pick[any](g, hashHex, "", nil)})
	case KindValidationResponse:
		maps.Copy(data, map[string]any{"validator_address": g.address(), "request_hash": g.hash(), "response": g.number("0", "100"), "response_uri": g.text(),
			"response_hash": pick[any](g, hashHex, "", nil), "tag": g.text()})
	}
	g.some(m, "config", g.config())
	return m
}

func (g *generator) config() any {
	c := map[string]any{"validate_oasf": true}
	g.some(c, pick(g, "tool_name", "tool"), pick[any](g, "agent.receiveFeedback", "receiveResponse", nil))
	g.some(c, pick(g, "payload_template", "arguments_template"), pick[any](g, map[string]any{"a": "{{chain_id}}"}, nil))
	g.some(c, "include_file_content", pick[any](g, true, false, nil))
	g.some(c, "verify_file_hash", false)
	g.some(c, "timeout_ms", g.number("20000", "300000"))
	object := map[string]any{"type": pick[any](g, "http", "sse", "streamable-http", "https", "", nil), "url": "https://a.example/mcp",
		"headers": pick[any](g, map[string]any{"x-key": "y"}, nil), "args": []any{}}
	stdio := map[string]any{"type": "stdio", "url": "", "command": "npx", "args": []any{"-y"}}
	switch g.IntN(6) {
	case 0:
		c["server_url"] = "https://a.example/mcp"
	case 1:
		c["endpoint"] = "https://a.example/mcp"
	case 2:
		c["endpoint"] = object
	case 3:
		c["endpoint"] = stdio
	case 4:
		c["resolve_endpoint"], c["endpoint"] = pick(g, true, false), pick[any](g, object, stdio, "https://a.example/mcp")
	}
	g.some(c, "auth_token", pick[any](g, "secret", "", nil))
	return c
}

// job returns a line: a valid job with up to two random faults.
func (g *generator) job() []byte {
	m := g.valid(g.IntN(10))
	for range g.IntN(3) {
		at := pick(g, listPositions(m)...)
		switch g.IntN(4) {
		case 0:
			delete(at.in, at.name)
		case 1:
			at.in[pick(g, "unknown", "type", "Value", "score", "reason", "tag", "action_type", "endpoint", "config")] = pick(g, strange()...)
		default:
			at.in[at.name] = pick(g, strange()...)
		}
		if len(m) == 0 {
			break
		}
	}
	return encodeJob(m)
}

// fieldPosition is a field of an object.
type fieldPosition struct {
	in   map[string]any
	name string
}

// listPositions returns the fields of an object and of its nested objects, in a fixed order.
func listPositions(m map[string]any) (places []fieldPosition) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		places = append(places, fieldPosition{m, name})
		if inner, ok := m[name].(map[string]any); ok {
			places = append(places, listPositions(inner)...)
		}
	}
	return places
}

// neighbours returns variants of job number n: without each non-null field, with strange values in place of each field,
// and with one additional field in each object. A field gets all strange values in the first job that has it, and an
// eighth of them in later ones, unless other fields decide which values it may have.
func neighbours(n int, m map[string]any, seen map[string]bool) (lines [][]byte) {
	_, old := m["action_type"]
	for _, at := range listPositions(m) {
		good := at.in[at.name]
		if good == nil {
			continue
		}
		delete(at.in, at.name)
		lines = append(lines, encodeJob(m))
		field := fmt.Sprint(old, at.name)
		if slices.Contains([]string{"event_id", "transaction_hash", "auth_token"}, at.name) {
			field = fmt.Sprint(n, at.name)
		}
		for i, v := range strange() {
			if !seen[field] || (i+n)%8 == 0 {
				at.in[at.name] = v
				lines = append(lines, encodeJob(m))
			}
		}
		seen[field] = true
		at.in[at.name] = good
		at.in["unknown"] = 1
		lines = append(lines, encodeJob(m))
		delete(at.in, "unknown")
	}
	return lines
}

// wholeJobs returns jobs that together contain every field.
func wholeJobs() []string {
	const web = `{"transport":"http","url":"https://a.example/mcp","headers":{"X-Key":"a"},"command":null,"args":null}`
	const all = `"toolName":"agent.receiveX","includeFileContent":true,"verifyFileHash":false,"payloadTemplate":{"a":"b"},"timeoutMs":5000`
	var registries []string
	for name, address := range mainnetRegistries() {
		registries = append(registries, name+`="`+address+`"`)
	}
	oldResponse := []string{`event_type="ResponseAppended"`, `responder="` + clientHex + `"`, `response_uri="x"`, `response_hash="` + hashHex + `"`}
	inEvent := func(changes ...string) string {
		line := oldJob("", append(changes, oldResponse...)...)
		return strings.Replace(line, `"event_id":"reputation-8453-`+hashHex+`-3","action_type"`, `"event_id":"","action_type"`, 1)
	}
	return []string{
		feedback(append(registries, `action={"resolveEndpoint":false,"endpoint":`+web+`,`+all+`}`, `meta={"a":1}`)...),
		feedback("value=", "valueDecimals=", "score=5", `action={"resolveEndpoint":false,"endpoint":{"transport":"stdio","command":"npx","args":["-y"],"url":null,"headers":null}}`),
		`{"type":"FeedbackRevoked","chainId":8453,"agentId":1,"clientAddress":"` + clientHex + `","feedbackIndex":7,"reason":"reorg","blockHash":"` + blockHex + `"}`,
		response(`responseHash="` + hashHex + `"`), validation(`responseURI="x"`, `responseHash="`+hashHex+`"`), `{"type":"AgentUpdated","chainId":8453,"agentId":1}`,
		oldJob(`{"resolve_endpoint":false,"endpoint":{"type":"http","url":"https://a.example/mcp","headers":{"X-Key":"a"},"command":""},"auth_token":"x","tool_name":"agent.receiveX",` +
			`"payload_template":{"a":"b"},"include_file_content":true,"verify_file_hash":true,"timeout_ms":5000}`),
		oldJob(`{"endpoint":{"type":"stdio","command":"npx","args":["-y"]},"tool":"agent.receiveX","arguments_template":{"a":"b"}}`),
		oldJob(`{"server_url":"https://a.example/mcp","auth_token":"x"}`, `event_type="FeedbackRevoked"`),
		oldJob("", oldResponse...), oldJob("", append(oldResponse, "transaction_hash=")...), inEvent("transaction_hash="), inEvent(),
		oldJob("", `event_type="ValidationResponse"`, `validator_address="`+clientHex+`"`, `request_hash="`+blockHex+`"`, `response=88`, `response_uri="x"`, `response_hash="`+hashHex+`"`, `tag="t"`),
	}
}

// contradictoryJobs returns jobs whose fields are valid one by one, but not together.
func contradictoryJobs() []string {
	endpoint := func(e string) string { return feedback(`action={"resolveEndpoint":true,"endpoint":{` + e + `}}`) }
	const web, stdio = `"transport":"sse","url":"https://a.example/mcp"`, `"transport":"stdio","command":"npx"`
	return []string{
		feedback("score=5"), feedback("score=5", "value="), feedback("score=5", "valueDecimals="), feedback("value="), feedback("valueDecimals="),
		endpoint(web + `,"command":"npx"`), endpoint(web + `,"args":[]`), endpoint(stdio + `,"url":"https://a.example/mcp"`), endpoint(stdio + `,"headers":{}`),
		feedback(`action={"endpoint":{` + web + `}}`), feedback(`action={"resolveEndpoint":false}`), feedback(`reason="client"`), feedback(`tag="x"`),
		oldJob(`{"resolve_endpoint":false}`), oldJob(`{"endpoint":{"url":"https://a.example/mcp","command":"npx"}}`), oldJob(`{"endpoint":{"url":"","command":"npx","args":5}}`),
		oldJob(`{"endpoint":{"type":"","url":"https://a.example/mcp","command":"npx"}}`), feedback(`action={"resolveEndpoint":true,"endpoint":"x"}`),
	}
}

// decodeJob decodes a job and keeps the spelling of its numbers.
func decodeJob(t testing.TB, line string) map[string]any {
	t.Helper()
	var m map[string]any
	dec := json.NewDecoder(strings.NewReader(line))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	mustParse(t, line)
	return m
}

func encodeJob(m map[string]any) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err) // the generator makes only values that have a JSON form
	}
	return b
}
