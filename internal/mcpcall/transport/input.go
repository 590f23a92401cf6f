package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"

	"github.com/mark3labs/mcp-go/mcp"
)

// maxInputRequests bounds how many questions of one result are declined.
const maxInputRequests = 16

// InputReply is sent with the repeated call after a tool asked for input (revision 2026-07-28). Its fields are raw
// JSON, or nil.
type InputReply struct {
	responses json.RawMessage
	state     json.RawMessage // the agent's own state, returned unchanged
}

// DeclineInput parses a result that asks for input and declines every question to a person. A tool that only wants a
// confirmation then ends as its author intended for an absent person. DeclineInput returns false if the result contains
// no question and no state, or a request that cannot be declined; then the result is final.
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
		// Without state the agent asks for a delay, which the delivery's next attempt provides.
		return reply, reply.state != nil
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

// WithInputReply returns a context whose next tools/call sends reply.
func WithInputReply(ctx context.Context, reply InputReply) context.Context {
	return context.WithValue(ctx, inputReplyKey{}, reply)
}

// addInputReply adds the reply of ctx to the params of a call. On 2026-07-28, the only revision with replies, mcp-go's
// params are a map.
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
