package job

import (
	"encoding/json"
	"regexp"
)

// isActionJob recognises the old backend's form by fields that ours never has.
func isActionJob(o *object) bool {
	for _, name := range []string{"action_type", "event_data", "trigger_id"} {
		if o.fields[name] != nil {
			return true
		}
	}
	return false
}

// metaNames are where an ActionJob's ids are kept: the view herald.action_results reads them.
var metaNames = [][2]string{{"id", "jobId"}, {"trigger_id", "triggerId"}, {"event_id", "eventId"}}

// eventPlace finds transaction and log index in the old indexer's event ids: {registry}-{chainId}-{txHash}-{logIndex}.
var eventPlace = regexp.MustCompile(`^[^-]+-\d+-(0x[0-9a-fA-F]{64})-(\d{1,9})$`)

// actionJob reads the old backend's form (reference erc8004 §5): snake_case, unknown fields ignored, four shapes of config.
// It is rewritten into ours and read by the same rules, so that both are checked alike; paths in refusals are the old ones.
func actionJob(root *object, l Limits) (Job, *Refusal) {
	old := &scan{o: root, limits: l}
	if t := old.text("action_type", maxText); t != "" && t != "mcp" {
		return Job{}, refuse("action_type", "%q is not delivered by Herald: only mcp is", t)
	}
	data := old.within("event_data")
	if data == nil {
		return Job{}, refuse("event_data", "is missing or not an object")
	}
	out := &object{fields: map[string]*node{}}
	put := func(name string, n *node) {
		if n != nil && n.value != nil && n.value != "" {
			out.names, out.fields[name] = append(out.names, name), n
		}
	}
	kind := data.text("event_type", maxText)
	put("type", &node{path: "event_data.event_type", value: kind})
	for ours, theirs := range map[string]string{"chainId": "chain_id", "agentId": "agent_id", "blockNumber": "block_number",
		"timestamp": "timestamp", "transactionHash": "transaction_hash"} {
		put(ours, data.o.fields[theirs])
	}
	for ours, theirs := range eventFields[Kind(kind)] {
		put(ours, data.o.fields[theirs])
	}
	if m := eventPlace.FindStringSubmatch(first(old.text("event_id", maxText), data.text("event_id", maxText))); m != nil {
		put("logIndex", &node{path: "event_id", value: m[2]})
		if out.fields["transactionHash"] == nil {
			put("transactionHash", &node{path: "event_id", value: m[1]})
		}
	}
	put("meta", metaOf(old, data))
	if r := firstOf(old.err, data.err); r != nil {
		return Job{}, r
	}
	action, r := oldAction(old, Kind(kind))
	if r != nil {
		return Job{}, r
	}
	j, r := native(out, l)
	if r != nil {
		return j, r
	}
	j.Action = action
	return j, nil
}

// eventFields map the old event_data of each kind.
var eventFields = map[Kind]map[string]string{
	KindNewFeedback: {"clientAddress": "client_address", "feedbackIndex": "feedback_index", "score": "score", "tag1": "tag1",
		"tag2": "tag2", "feedbackURI": "file_uri", "feedbackHash": "file_hash"},
	KindFeedbackRevoked: {"clientAddress": "client_address", "feedbackIndex": "feedback_index"},
	KindResponseAppended: {"clientAddress": "client_address", "feedbackIndex": "feedback_index", "responder": "responder",
		"responseURI": "response_uri", "responseHash": "response_hash"},
	KindValidationResponse: {"validatorAddress": "validator_address", "requestHash": "request_hash", "response": "response",
		"responseURI": "response_uri", "responseHash": "response_hash", "tag": "tag"},
}

// within reads a nested object and lets it have any fields.
func (s *scan) within(name string) *scan {
	n := s.node(name)
	if n == nil {
		return nil
	}
	o, ok := n.value.(*object)
	if !ok {
		return nil
	}
	return &scan{o: o, limits: s.limits}
}

func metaOf(old, data *scan) *node {
	meta := &object{fields: map[string]*node{}}
	for _, m := range metaNames {
		id := old.node(m[0])
		if id == nil && m[0] == "event_id" {
			id = data.node(m[0])
		}
		if id == nil {
			continue
		}
		text, ok := id.value.(string)
		if n, isNumber := id.value.(json.Number); isNumber {
			text, ok = n.String(), true
		}
		if ok && len(text) <= 512 {
			meta.names = append(meta.names, m[1])
			meta.fields[m[1]] = &node{path: id.path, value: text}
		}
	}
	if len(meta.names) == 0 {
		return nil
	}
	return &node{path: "meta", value: meta}
}

// oldAction reads the four shapes of config that the old repository had, told apart by their fields:
//
//	design       resolve_endpoint, endpoint, tool_name, verify_file_hash, include_file_content, payload_template
//	implemented  server_url, tool_name, arguments_template, timeout_ms, auth_token
//	gateway test endpoint, tool
//	docs site    server_url, resource_type, operation
func oldAction(old *scan, k Kind) (Action, *Refusal) {
	a := Action{ToolName: defaultTools[k], ResolveEndpoint: true, IncludeFileContent: true, VerifyFileHash: true}
	c := old.within("config")
	if c == nil {
		return a, nil
	}
	for _, name := range []string{"tool_name", "tool"} {
		if c.has(name) {
			a.ToolName = c.tool(name)
			break
		}
	}
	a.IncludeFileContent, a.VerifyFileHash = c.bool("include_file_content", true), c.bool("verify_file_hash", true)
	if ms := c.uint("timeout_ms", 1<<31-1); ms > 0 {
		a.TimeoutMs = int(min(max(ms, minTimeoutMs), uint64(c.limits.MaxTimeout.Milliseconds())))
	}
	for _, name := range []string{"payload_template", "arguments_template"} {
		if n := c.node(name); n != nil {
			if _, ok := n.value.(*object); !ok {
				return a, refuse(n.path, "must be an object")
			}
			if r := checkTemplate(k, n); r != nil {
				return a, r
			}
			a.PayloadTemplate = n.encode()
			break
		}
	}
	target := "endpoint"
	if c.has("server_url") {
		target = "server_url"
	}
	if c.has(target) && !c.bool("resolve_endpoint", false) {
		a.ResolveEndpoint, a.Endpoint = false, c.oldEndpoint(target)
	}
	return a, c.err
}

func (s *scan) oldEndpoint(name string) *Endpoint {
	e := &Endpoint{Transport: "http", URL: s.url(name)}
	if token := s.text("auth_token", 8192); token != "" && s.err == nil {
		h := &object{names: []string{"Authorization"}, fields: map[string]*node{
			"Authorization": {path: s.node("auth_token").path, value: "Bearer " + token}}}
		in := &scan{o: &object{names: []string{"headers"}, fields: map[string]*node{"headers": {path: "config", value: h}}}}
		e.Headers = in.headers("headers")
		s.fail(in.err)
	}
	return e
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func firstOf(refusals ...*Refusal) *Refusal {
	for _, r := range refusals {
		if r != nil {
			return r
		}
	}
	return nil
}
