package chaintest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
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
	if failure != nil {
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
