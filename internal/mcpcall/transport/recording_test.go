package transport

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// wire answers every request with the same result and records the notifications that it receives.
type wire struct {
	mcptransport.Interface
	result json.RawMessage
	told   []string
}

func (w *wire) SendRequest(_ context.Context, r mcptransport.JSONRPCRequest) (*mcptransport.JSONRPCResponse, error) {
	return mcptransport.NewJSONRPCResultResponse(r.ID, w.result), nil
}

func (w *wire) SendNotification(_ context.Context, n mcp.JSONRPCNotification) error {
	w.told = append(w.told, n.Method)
	return nil
}

// TestAnsweredRequestsAreNotCancelled checks that the agent receives "cancelled" only for requests that it did not
// answer. mcp-go sends it whenever a request ends with an error after its context has ended, and ErrResultTaken is such
// an error.
func TestAnsweredRequestsAreNotCancelled(t *testing.T) {
	t.Parallel()
	for result, want := range map[string][]string{`{"content":[]}`: nil, ``: {string(mcp.MethodNotificationCancelled)}} {
		w := &wire{result: json.RawMessage(result)}
		c := &Recording{inner: w}
		ctx, r := WithRecorder(t.Context())
		_, err := c.SendRequest(ctx, mcptransport.JSONRPCRequest{ID: mcp.NewRequestId(int64(1)), Method: string(mcp.MethodToolsCall)})
		if errors.Is(err, ErrResultTaken) != (want == nil) {
			t.Errorf("%q: %v", result, err)
		}
		heraldtest.Equal(t, "the result", string(r.Response().Result), result)
		notice := mcp.JSONRPCNotification{Notification: mcp.Notification{Method: string(mcp.MethodNotificationCancelled)}}
		if err := c.SendNotification(ctx, notice); err != nil || !slices.Equal(w.told, want) {
			t.Errorf("%q: told %v %v, want %v", result, w.told, err, want)
		}
	}
}

// TestCallBodyEqualsThatOfMCPGo sends the same tools/call requests through Recording and through mcp-go alone, and
// compares the bodies and lengths that arrive.
func TestCallBodyEqualsThatOfMCPGo(t *testing.T) {
	t.Parallel()
	var body []byte
	var length int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		length = r.ContentLength
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
	}))
	t.Cleanup(srv.Close)
	bare := must(mcptransport.NewStreamableHTTP(srv.URL))
	own := NewRecording(must(NewHTTP(HTTPConfig{URL: must(url.Parse(srv.URL)), Base: http.DefaultTransport, MaxAnswerBytes: 1 << 20,
		Now: time.Now, Life: t.Context()})), false, func(string) {}, time.Now)

	odd := "<a href=\"x\">&amp;</a> \u2028 \x00\xff 漢"
	encode := func(v any) json.RawMessage { return must(json.Marshal(v)) }
	arguments := encode(map[string]any{odd: odd, "n": json.Number("1e5"), "null": nil,
		"raw": json.RawMessage(`{ "b" : [1.50, "<\u003c"] }`), "list": []any{}})
	meta := &mcp.Meta{ProgressToken: 1, AdditionalFields: map[string]any{odd: map[string]any{"b": odd, "a": 1}}}
	for name, params := range map[string]mcp.CallToolParams{
		"empty":          {Name: "x", Arguments: json.RawMessage(`{}`)},
		"all":            {Name: odd, Arguments: arguments, Meta: meta},
		"empty meta":     {Name: "x", Arguments: arguments, Meta: &mcp.Meta{}},
		"not encoded":    {Name: "x", Arguments: map[string]any{"a": odd}, Meta: meta},
		"with a state":   {Name: "x", Arguments: arguments, MultiRoundTripParams: mcp.MultiRoundTripParams{RequestState: odd}},
		"with a task":    {Name: "x", Arguments: arguments, Task: &mcp.TaskParams{}},
		"with responses": {Name: "x", Arguments: arguments, MultiRoundTripParams: mcp.MultiRoundTripParams{InputResponses: mcp.InputResponses{"a": {}}}},
	} {
		request := mcptransport.JSONRPCRequest{JSONRPC: mcp.JSONRPC_VERSION, ID: mcp.NewRequestId(int64(7)),
			Method: string(mcp.MethodToolsCall), Params: params}
		if direct := encodeCall(request) != nil; direct != slices.Contains([]string{"empty", "all", "empty meta"}, name) {
			t.Errorf("%s: encodeCall encoded it: %t", name, direct)
		}
		must(bare.SendRequest(t.Context(), request))
		want := body
		_, err := own.SendRequest(t.Context(), request)
		heraldtest.Fails(t, name, err, ErrResultTaken)
		heraldtest.Equal(t, name, string(body), string(want))
		heraldtest.Equal(t, name, length, int64(len(want)))
	}
}
