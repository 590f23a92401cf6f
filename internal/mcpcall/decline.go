package mcpcall

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"

	"github.com/mark3labs/mcp-go/mcp"
)

// maxInputRequests bounds how many questions of an agent are answered with no.
const maxInputRequests = 16

// inputReply is what a call is repeated with after its agent asked for input (revision 2026-07-28): raw JSON, nil where there is none.
type inputReply struct {
	responses json.RawMessage
	state     json.RawMessage // the agent's own, as it came
}

type replyKey struct{}

// decline reads a result that asks for input and says no to every question for a person, so that a tool that only wants a confirmation
// ends as its author meant it to when nobody is there. It reports false where there is nothing to say, or something that no is no
// answer to; then the result stands.
func decline(result json.RawMessage) (inputReply, bool) {
	var asked struct {
		ResultType    string                     `json:"resultType"`
		InputRequests map[string]json.RawMessage `json:"inputRequests"`
		RequestState  json.RawMessage            `json:"requestState"`
	}
	if !bytes.Contains(result, []byte("input_required")) || json.Unmarshal(result, &asked) != nil || asked.ResultType != "input_required" || len(asked.InputRequests) > maxInputRequests {
		return inputReply{}, false
	}
	r := inputReply{state: asked.RequestState}
	if len(asked.InputRequests) == 0 {
		return r, r.state != nil // without state it asks for patience, which the next attempt of the delivery has
	}
	no := make(map[string]json.RawMessage, len(asked.InputRequests))
	for name, raw := range asked.InputRequests {
		var question struct {
			Method string `json:"method"`
		}
		if json.Unmarshal(raw, &question) != nil || question.Method != string(mcp.MethodElicitationCreate) {
			return inputReply{}, false
		}
		no[name] = json.RawMessage(`{"action":"decline"}`)
	}
	responses, err := json.Marshal(no)
	r.responses = responses
	return r, err == nil
}

// withReply adds the reply of ctx to a call's params. mcp-go has them as a map on 2026-07-28, the only revision that has replies.
func withReply(ctx context.Context, params any) any {
	r, ok := ctx.Value(replyKey{}).(inputReply)
	fields, isMap := params.(map[string]json.RawMessage)
	if !ok || !isMap {
		return params
	}
	fields = maps.Clone(fields)
	if r.responses != nil {
		fields["inputResponses"] = r.responses
	}
	if r.state != nil {
		fields["requestState"] = r.state
	}
	return fields
}
