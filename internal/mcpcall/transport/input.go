package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"

	"github.com/mark3labs/mcp-go/mcp"
)

// maxInputRequests bounds how many questions of an agent are declined.
const maxInputRequests = 16

// InputReply is what a call is repeated with after its agent asked for input (revision 2026-07-28): raw JSON, nil where
// there is none.
type InputReply struct {
	responses json.RawMessage
	state     json.RawMessage // the agent's own, as it came
}

// DeclineInput reads a result that asks for input and says no to every question for a person, so that a tool that only
// wants a confirmation ends as its author meant it to when nobody is there. It reports false where there is nothing to
// say, or something that no is no answer to; then the result stands.
func DeclineInput(result json.RawMessage) (InputReply, bool) {
	var asked struct {
		ResultType    string                     `json:"resultType"`
		InputRequests map[string]json.RawMessage `json:"inputRequests"`
		RequestState  json.RawMessage            `json:"requestState"`
	}
	if !bytes.Contains(result, []byte("input_required")) || json.Unmarshal(result, &asked) != nil {
		return InputReply{}, false
	}
	if asked.ResultType != "input_required" || len(asked.InputRequests) > maxInputRequests {
		return InputReply{}, false
	}
	reply := InputReply{state: asked.RequestState}
	if len(asked.InputRequests) == 0 {
		return reply, reply.state != nil // without state it asks for patience, which the next attempt of the delivery has
	}
	declined := make(map[string]json.RawMessage, len(asked.InputRequests))
	for name, raw := range asked.InputRequests {
		var question struct {
			Method string `json:"method"`
		}
		if json.Unmarshal(raw, &question) != nil || question.Method != string(mcp.MethodElicitationCreate) {
			return InputReply{}, false
		}
		declined[name] = json.RawMessage(`{"action":"decline"}`)
	}
	responses, err := json.Marshal(declined)
	reply.responses = responses
	return reply, err == nil
}

type inputReplyKey struct{}

// WithInputReply returns a context whose next tools/call carries the reply.
func WithInputReply(ctx context.Context, reply InputReply) context.Context {
	return context.WithValue(ctx, inputReplyKey{}, reply)
}

// addInputReply adds the reply of ctx to a call's params. mcp-go has them as a map on 2026-07-28, the only revision
// that has replies.
func addInputReply(ctx context.Context, params any) any {
	reply, ok := ctx.Value(inputReplyKey{}).(InputReply)
	fields, isMap := params.(map[string]json.RawMessage)
	if !ok || !isMap {
		return params
	}
	fields = maps.Clone(fields)
	if reply.responses != nil {
		fields["inputResponses"] = reply.responses
	}
	if reply.state != nil {
		fields["requestState"] = reply.state
	}
	return fields
}
