package job

import (
	"encoding/json"
	"regexp"

	"github.com/agentherald/herald/internal/secret"
)

// maxOldID bounds each id that is kept in meta, so that three of them fit it however they are escaped.
const maxOldID = 200

// isActionJob recognises the old backend's form by fields that ours never has.
func isActionJob(o *object) bool {
	return o.fields["action_type"] != nil || o.fields["event_data"] != nil || o.fields["trigger_id"] != nil
}

// eventPlace finds the transaction, if it is there, and the log index at the end of the old event ids:
// {registry}-{chainId}-{txHash}-{logIndex} and {chainId}-{blockNumber}-{logIndex}.
var eventPlace = regexp.MustCompile(`^(?:[^-]+-\d+-(0x[0-9a-fA-F]{64})|\d+-\d+)-(\d{1,9})$`)

// actionJob reads the old backend's form (reference erc8004 §5): snake_case, unknown fields ignored, four shapes of config. The
// event is rewritten under our names and read by our rules, so that both forms are checked alike; refusals name the old paths.
func actionJob(root *object, l Limits) (Job, *Refusal) {
	old := &scan{o: root, limits: l}
	data := old.within("event_data")
	switch kind := old.text("action_type", maxText); {
	case old.err != nil:
		return Job{}, old.err
	case !old.has("action_type"):
		return Job{}, refuse("action_type", "is missing")
	case kind != "mcp":
		return Job{}, refuse("action_type", "%s is not delivered by Herald: only mcp is", quote(kind))
	case data == nil:
		return Job{}, refuse("event_data", "is missing or not an object")
	}
	event, names := data.rename(Kind(data.text("event_type", maxText)))
	if m := eventPlace.FindStringSubmatch(eventID(old, data)); m != nil {
		event.put("logIndex", &node{at: "event_id", value: m[2]})
		if m[1] != "" {
			event.put("transactionHash", &node{at: "event_id", value: m[1]})
		}
	}
	j, s, r := readEvent(event, l, names)
	if s == nil {
		return Job{}, r
	}
	action, r := oldAction(old, j.Kind)
	if r != nil {
		return j, r
	}
	j.Action, j.Meta = action, oldMeta(old, data)
	return j, nil
}

// oldEventNames are our names and those of the old event_data. It has no endpoint, no value, no block hash.
func oldEventNames(k Kind) [][2]string {
	names := [][2]string{{"type", "event_type"}, {"chainId", "chain_id"}, {"agentId", "agent_id"}, {"blockNumber", "block_number"},
		{"timestamp", "timestamp"}, {"transactionHash", "transaction_hash"}}
	switch k {
	case KindNewFeedback:
		names = append(names, [][2]string{{"clientAddress", "client_address"}, {"feedbackIndex", "feedback_index"}, {"score", "score"},
			{"tag1", "tag1"}, {"tag2", "tag2"}, {"feedbackURI", "file_uri"}, {"feedbackHash", "file_hash"}}...)
	case KindFeedbackRevoked:
		names = append(names, [][2]string{{"clientAddress", "client_address"}, {"feedbackIndex", "feedback_index"}}...)
	case KindResponseAppended:
		names = append(names, [][2]string{{"clientAddress", "client_address"}, {"feedbackIndex", "feedback_index"},
			{"responder", "responder"}, {"responseURI", "response_uri"}, {"responseHash", "response_hash"}}...)
	case KindValidationResponse:
		names = append(names, [][2]string{{"validatorAddress", "validator_address"}, {"requestHash", "request_hash"},
			{"response", "response"}, {"responseURI", "response_uri"}, {"responseHash", "response_hash"}, {"tag", "tag"}}...)
	}
	return names
}

// rename gives the fields of event_data our names, and the paths for refusals of missing ones. An empty string is absent there.
func (s *scan) rename(k Kind) (*object, map[string]string) {
	o, names := &object{fields: map[string]*node{}}, map[string]string{"logIndex": "event_id", "value": join(s.base, "score")}
	for _, pair := range oldEventNames(k) {
		names[pair[0]] = join(s.base, pair[1])
		if n := s.node(pair[1]); n != nil && n.value != "" {
			o.put(pair[0], n)
		}
	}
	return o, names
}

// within reads a nested object that may have any fields; nil without.
func (s *scan) within(name string) *scan {
	n := s.node(name)
	if n == nil {
		return nil
	}
	o, ok := n.value.(*object)
	if !ok {
		return nil
	}
	return &scan{o: o, limits: s.limits, base: n.path()}
}

func eventID(old, data *scan) string {
	if id := idText(old.node("event_id")); id != "" {
		return id
	}
	return idText(data.node("event_id"))
}

// oldMeta keeps the ids, for the view herald.action_results.
func oldMeta(old, data *scan) json.RawMessage {
	meta := &object{fields: map[string]*node{}}
	keep := func(name, id string) {
		if id != "" && len(id) <= maxOldID {
			meta.put(name, &node{value: id})
		}
	}
	keep("jobId", idText(old.node("id")))
	keep("triggerId", idText(old.node("trigger_id")))
	keep("eventId", eventID(old, data))
	if len(meta.names) == 0 {
		return nil
	}
	return (&node{value: meta}).encode()
}

func idText(n *node) string {
	if n == nil {
		return ""
	}
	switch v := n.value.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

// oldAction reads the four shapes of config that the old repository had, told apart by their fields:
//
//	design       resolve_endpoint, endpoint (a URL or an object), tool_name, verify_file_hash, include_file_content, payload_template
//	implemented  server_url, tool_name, arguments_template, timeout_ms, auth_token
//	gateway test endpoint, tool
//	docs site    server_url, resource_type, operation
//
// A named endpoint is used unless resolve_endpoint is true. auth_token goes to a named endpoint only: the old backend knew no
// other, and what the chain names now may be somebody else's.
func oldAction(old *scan, k Kind) (Action, *Refusal) {
	a := defaultAction(k)
	if !old.has("config") {
		return a, nil
	}
	c := old.within("config")
	if c == nil {
		return a, refuse(old.at("config"), "must be an object")
	}
	if name := c.oneOf("tool_name", "tool"); c.has(name) {
		a.ToolName = c.tool(name)
	}
	a.IncludeFileContent, a.VerifyFileHash = c.bool("include_file_content", true), c.bool("verify_file_hash", true)
	a.TimeoutMs = c.timeout("timeout_ms")
	a.PayloadTemplate = c.template(c.oneOf("payload_template", "arguments_template"), k)
	target := c.oneOf("server_url", "endpoint")
	if a.ResolveEndpoint = c.bool("resolve_endpoint", !c.has(target)); !a.ResolveEndpoint {
		a.Endpoint = c.oldEndpoint(target)
	}
	return a, c.err
}

// oldEndpoint reads a named endpoint, which is a URL or an object {type, url, headers, command, args}. Of an object without type, what it
// has tells: a url or a command. What its type does not use is ignored, as the old backend wrote empty fields out.
func (s *scan) oldEndpoint(name string) *Endpoint {
	in, token := s.within(name), s.authToken("auth_token")
	if in == nil {
		return &Endpoint{Transport: "http", URL: s.url(name), Headers: token}
	}
	e := &Endpoint{Transport: in.text("type", maxText)}
	switch e.Transport {
	case "streamable-http", "streamable_http", "streamableHttp", "https": // other names of the same
		e.Transport = "http"
	case "":
		switch url, command := in.filled("url"), in.filled("command"); {
		case url && command:
			in.fail(refuse(in.at("type"), "is missing, and there is both a url and a command"))
		case command:
			e.Transport = "stdio"
		default:
			e.Transport = "http"
		}
	}
	switch e.Transport {
	case "http", "sse":
		e.URL, e.Headers = in.url("url"), in.headers("headers")
		for header, value := range token {
			if _, there := e.Headers[header]; there {
				s.fail(refuse(s.at("auth_token"), "and the endpoint's headers both give an %s header: leave one out", header))
			}
			if e.Headers == nil {
				e.Headers = map[string]secret.Secret{}
			}
			e.Headers[header] = value
		}
	case "stdio":
		if e.Command, e.Args = in.text("command", maxCommand), in.strings("args", maxArgs); e.Command == "" {
			in.fail(refuse(in.at("command"), "is missing"))
		}
	default:
		in.fail(refuse(in.at("type"), "must be http, sse or stdio"))
	}
	s.fail(in.err)
	return e
}

// filled tells a field that is there and not the empty string.
func (s *scan) filled(name string) bool { return s.has(name) && s.node(name).value != "" }

// oneOf is the first name that is given, else the last.
func (s *scan) oneOf(first, last string) string {
	if s.has(first) {
		return first
	}
	return last
}

func (s *scan) authToken(name string) map[string]secret.Secret {
	if !s.has(name) || s.node(name).value == "" {
		return nil
	}
	token := s.text(name, maxText)
	bearer := &node{at: s.at(name), value: "Bearer " + token}
	headers := &object{fields: map[string]*node{}}
	headers.put("Authorization", bearer)
	in := &scan{o: &object{fields: map[string]*node{"headers": {at: s.at(name), value: headers}}}}
	out := in.headers("headers")
	s.fail(in.err)
	return out
}
