package job

import (
	"bytes"
	"encoding/json"
	"regexp"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/strictjson"
)

// maxOldID is the longest id of an old backend's job, in bytes, that makeOldMeta stores. The old backend is the system
// that Herald replaces. A job's meta (at most maxMetaBytes) has room for three such ids, even if JSON escapes each of
// their characters.
const maxOldID = 200

// isActionJob reports whether o is a job of the old backend, which Herald replaces (docs/reference/old-interfaces.md).
// Such a job has a field action_type, event_data or trigger_id. A job in Herald's own form has none of them.
func isActionJob(o *strictjson.Object) bool {
	return o.Get("action_type") != nil || o.Get("event_data") != nil || o.Get("trigger_id") != nil
}

// oldEventNames maps the field names of a job in Herald's form to those in the event_data of a job of the old backend,
// the system that Herald replaces. The old backend's jobs lack the fields without an entry here, such as endpoint,
// value, blockHash and the registries.
var oldEventNames = map[string]string{"type": "event_type", "chainId": "chain_id", "agentId": "agent_id",
	"blockNumber": "block_number", "timestamp": "timestamp", "transactionHash": "transaction_hash",
	"clientAddress": "client_address", "feedbackIndex": "feedback_index", "score": "score", "tag1": "tag1",
	"tag2": "tag2", "feedbackURI": "file_uri", "feedbackHash": "file_hash", "responder": "responder",
	"responseURI": "response_uri", "responseHash": "response_hash", "validatorAddress": "validator_address",
	"requestHash": "request_hash", "response": "response", "tag": "tag"}

// oldEventID matches the event ids in jobs of the old backend, the system that Herald replaces, and captures the
// transaction hash and the log index: {registry}-{chainId}-{txHash}-{logIndex}, or {chainId}-{blockNumber}-{logIndex}
// without a transaction.
var oldEventID = regexp.MustCompile(`^(?:[^-]+-\d+-(0x[0-9a-fA-F]{64})|\d+-\d+)-(\d{1,9})$`)

// readActionJob reads a job of the old backend. Its field names are in snake_case, and unknown fields are ignored.
// readEvent reads the event by the names in oldEventNames, so that the jobs of both systems are validated alike.
// readOldAction reads the action from the job's field config. Refusals contain the old backend's field names. If the
// event is valid and config is refused, the returned Job contains the event (see Parse).
func readActionJob(root *strictjson.Object, l Limits) (Job, *Refusal) {
	old := &fieldReader{object: root, limits: l}
	event := old.readAny("event_data")
	switch kind := old.readText("action_type", maxText); {
	case old.err != nil:
		return Job{}, old.err
	case !old.has("action_type"):
		return Job{}, refuse("action_type", "is missing")
	case kind != "mcp":
		return Job{}, refuse("action_type", "%s is not delivered by Herald: only mcp is", strictjson.Quote(kind))
	case event == nil:
		return Job{}, refuse("event_data", "is missing or not an object")
	}
	id := idText(root.Get("event_id"))
	if id == "" {
		id = idText(event.object.Get("event_id"))
	}
	event.oldNames, event.made = oldEventNames,
		map[string]*strictjson.Value{"logIndex": strictjson.New("event_id", nil)}
	if m := oldEventID.FindStringSubmatch(id); m != nil {
		event.made["logIndex"] = strictjson.New("event_id", m[2])
		if m[1] != "" {
			event.made["transactionHash"] = strictjson.New("event_id", m[1])
		}
	}
	j, refusal := event.readEvent()
	if refusal != nil {
		return Job{}, refusal
	}
	action, refusal := old.readOldAction(j.Kind)
	if refusal != nil {
		return j, refusal
	}
	j.Action, j.Meta = action, makeOldMeta(root, id)
	return j, nil
}

// readAny returns a reader for the object in the field called name. The object may have any members. It returns nil,
// without a refusal, if the field is absent or not an object.
func (r *fieldReader) readAny(name string) *fieldReader {
	if v := r.get(name); v != nil {
		if o, ok := v.Object(); ok {
			return &fieldReader{object: o, limits: r.limits, path: v.Path()}
		}
	}
	return nil
}

// makeOldMeta returns the JSON of a Job.Meta with the ids in a job of the old backend (its id, its trigger_id and
// eventID), which the view herald.action_results shows. It omits ids longer than maxOldID. It returns nil if no id is
// left.
func makeOldMeta(root *strictjson.Object, eventID string) json.RawMessage {
	keep := func(id string) string {
		if len(id) > maxOldID {
			return ""
		}
		return id
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(struct { // encoding strings cannot fail
		JobID     string `json:"jobId,omitempty"`
		TriggerID string `json:"triggerId,omitempty"`
		EventID   string `json:"eventId,omitempty"`
	}{keep(idText(root.Get("id"))), keep(idText(root.Get("trigger_id"))), keep(eventID)})
	if meta := bytes.TrimSpace(b.Bytes()); string(meta) != "{}" {
		return meta
	}
	return nil
}

// idText returns the text of an id that is a string or a number. It returns "" for any other value.
func idText(v *strictjson.Value) string {
	if v == nil {
		return ""
	}
	switch data := v.Data.(type) {
	case string:
		return data
	case json.Number:
		return data.String()
	}
	return ""
}

// readOldAction reads the field config of an old job into the Action of a job of kind k. Different programs wrote
// config with different fields. The first column names the source of each form: the old backend's design, its
// implementation, the test of its gateway, and its documentation site.
//
//	design       resolve_endpoint, endpoint (a URL or an object), tool_name, verify_file_hash,
//	             include_file_content, payload_template
//	implemented  server_url, tool_name, arguments_template, timeout_ms, auth_token
//	gateway test endpoint, tool
//	docs site    server_url, resource_type, operation
//
// resource_type and operation are ignored. An endpoint in config is used unless resolve_endpoint is true. As in the old
// backend, auth_token is sent only to an endpoint in config. It is not sent to the agent's registered endpoint, which
// may belong to someone else.
func (r *fieldReader) readOldAction(k Kind) (Action, *Refusal) {
	a := defaultAction(k)
	if !r.has("config") {
		return a, nil
	}
	c := r.readAny("config")
	if c == nil {
		return a, refuse(r.pathOf("config"), "must be an object")
	}
	if name := c.oneOf("tool_name", "tool"); c.has(name) {
		a.ToolName = c.readTool(name)
	}
	a.IncludeFileContent, a.VerifyFileHash = c.readBool("include_file_content", true),
		c.readBool("verify_file_hash", true)
	a.TimeoutMs = c.readTimeout("timeout_ms")
	a.PayloadTemplate = c.readTemplate(c.oneOf("payload_template", "arguments_template"), k)
	target := c.oneOf("server_url", "endpoint")
	if a.ResolveEndpoint = c.readBool("resolve_endpoint", !c.has(target)); !a.ResolveEndpoint {
		a.Endpoint = c.readOldEndpoint(target)
	}
	return a, c.err
}

// oneOf returns the name preferred if the object has a field of that name, and otherwise the name fallback.
func (r *fieldReader) oneOf(preferred, fallback string) string {
	if r.has(preferred) {
		return preferred
	}
	return fallback
}

// readOldEndpoint reads the endpoint of a job of the old backend from the field called name: a URL, or an object
// {transport, url, headers, command, args}. The object may contain its transport in the field type instead. If the
// fields transport and type are both empty, the transport is http for an object without a command, and stdio for one
// with a command and no url. An object with a command and a url is then refused. Fields that the transport does not use
// are ignored, because the old backend wrote empty fields.
//
// r is the reader of config. Its field auth_token becomes the endpoint's Authorization header. auth_token is ignored
// with stdio, and refused if the endpoint's headers also contain that header.
func (r *fieldReader) readOldEndpoint(name string) *Endpoint {
	in, token := r.readAny(name), r.readToken("auth_token")
	if in == nil {
		return &Endpoint{Transport: "http", URL: r.readURL(name), Headers: token}
	}
	transportField := "type"
	if !isFilled(in.object, transportField) && isFilled(in.object, "transport") {
		transportField = "transport"
	}
	e := &Endpoint{Transport: in.readText(transportField, maxText)}
	switch e.Transport {
	case "streamable-http", "streamable_http", "streamableHttp", "https": // other names of http
		e.Transport = "http"
	case "":
		switch url, command := isFilled(in.object, "url"), isFilled(in.object, "command"); {
		case url && command:
			in.fail(refuse(in.pathOf("type"), "is missing, and there is both a url and a command"))
		case command:
			e.Transport = "stdio"
		default:
			e.Transport = "http"
		}
	}
	in.readAddressOf(e, transportField)
	for header, value := range token {
		switch _, there := e.Headers[header]; {
		case e.Transport == "stdio": // stdio has no headers
		case there:
			r.fail(refuse(r.pathOf("auth_token"), "and the endpoint's headers both give an %s header: leave one out",
				header))
		case e.Headers == nil:
			e.Headers = token
		default:
			e.Headers[header] = value
		}
	}
	r.fail(in.err)
	return e
}

// readToken reads a bearer token and returns the Authorization header that contains it. It returns nil if the field is
// absent or empty.
func (r *fieldReader) readToken(name string) map[string]secret.Secret {
	if !isFilled(r.object, name) {
		return nil
	}
	value := "Bearer " + r.readText(name, maxText)
	if !isHeaderText(value) {
		r.fail(refuse(r.pathOf(name), mustBeHeaderText))
	}
	return map[string]secret.Secret{"Authorization": secret.New(value)}
}
