package chaintest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/ethereum/go-ethereum/rpc"
)

// Request is one call of a JSON-RPC request.
type Request struct {
	ID     json.RawMessage
	Method string
	Params []json.RawMessage
}

// Error is a node's error.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"` // of a revert
}

// ReadRequests parses the calls of a body. isBatch reports whether they came in an array.
func ReadRequests(from io.Reader) (calls []Request, isBatch bool, err error) {
	body, err := io.ReadAll(from)
	if err != nil {
		return nil, false, err
	}
	isBatch = bytes.HasPrefix(bytes.TrimSpace(body), []byte("["))
	if !isBatch {
		body = bytes.Join([][]byte{[]byte("["), []byte("]")}, body)
	}
	return calls, isBatch, json.Unmarshal(body, &calls)
}

// Answer returns the answer to a call: the failure, or the result if failure is nil.
func (q Request) Answer(result, failure any) map[string]any {
	if own, ok := failure.(*Error); failure != nil && !(ok && own == nil) {
		return map[string]any{"jsonrpc": "2.0", "id": q.ID, "error": failure}
	}
	return map[string]any{"jsonrpc": "2.0", "id": q.ID, "result": result}
}

// WriteAnswers writes the answers to the calls of a request.
func WriteAnswers(w http.ResponseWriter, isBatch bool, answers []map[string]any) {
	var out any = answers
	if !isBatch {
		out = answers[0]
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the client may have disconnected
}

// Forward asks a node the call and returns its result, or its failure.
func (q Request) Forward(ctx context.Context, node *rpc.Client) (result json.RawMessage, failure *Error) {
	args := make([]any, len(q.Params))
	for i, param := range q.Params {
		args[i] = param
	}
	err := node.CallContext(ctx, &result, q.Method, args...)
	if err == nil {
		return result, nil
	}
	failure = &Error{Code: -32603, Message: err.Error()}
	if own, ok := errors.AsType[rpc.Error](err); ok {
		failure.Code = own.ErrorCode()
	}
	if detailed, ok := errors.AsType[rpc.DataError](err); ok {
		failure.Data = detailed.ErrorData()
	}
	return nil, failure
}
