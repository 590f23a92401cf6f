package chaintest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ethereum/go-ethereum/rpc"
)

// Bend starts a proxy of a node that changes results, and returns its URL. bend gets a call and its result, and returns
// the new result, or nil to refuse the call.
func Bend(t *testing.T, target string, bend func(q Request, result json.RawMessage) json.RawMessage) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked, isBatch, err := ReadRequests(r.Body)
		if err != nil {
			return // the client has disconnected
		}
		client, err := rpc.DialContext(r.Context(), target)
		if err != nil {
			t.Error(err)
			return
		}
		defer client.Close()
		answers := make([]map[string]any, len(asked))
		for i, q := range asked {
			result, failure := q.Forward(r.Context(), client)
			if failure == nil {
				if result = bend(q, result); result == nil {
					failure = &Error{Code: -32601, Message: "the method does not exist"}
				}
			}
			answers[i] = q.Answer(result, failure)
		}
		WriteAnswers(rw, isBatch, answers)
	}))
	t.Cleanup(server.Close)
	return server.URL
}
