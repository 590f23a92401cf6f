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
		elems := make([]rpc.BatchElem, len(asked))
		for i, q := range asked {
			elems[i] = rpc.BatchElem{Method: q.Method, Result: new(json.RawMessage)}
			for _, param := range q.Params {
				elems[i].Args = append(elems[i].Args, param)
			}
		}
		if err := client.BatchCallContext(r.Context(), elems); err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		answers := make([]map[string]any, len(asked))
		for i, q := range asked {
			if err := elems[i].Error; err != nil {
				answers[i] = q.Answer(nil, Error{Code: -32000, Message: err.Error()})
			} else if bent := bend(q, *elems[i].Result.(*json.RawMessage)); bent == nil {
				answers[i] = q.Answer(nil, Error{Code: -32601, Message: "the method does not exist"})
			} else {
				answers[i] = q.Answer(bent, nil)
			}
		}
		WriteAnswers(rw, isBatch, answers)
	}))
	t.Cleanup(server.Close)
	return server.URL
}
