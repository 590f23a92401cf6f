package transport

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
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
		if got := string(r.Response().Result); got != result {
			t.Errorf("%q was kept, want %q", got, result)
		}
		notice := mcp.JSONRPCNotification{Notification: mcp.Notification{Method: string(mcp.MethodNotificationCancelled)}}
		if err := c.SendNotification(ctx, notice); err != nil || !slices.Equal(w.told, want) {
			t.Errorf("%q: told %v %v, want %v", result, w.told, err, want)
		}
	}
}
