package receiver

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

const (
	maxBatch = 50 // maxItems of the batch's schema
	// batchTime bounds the processing of a batch. Herald waits 30 seconds for the answer. When batchTime has passed,
	// the remaining elements are to be sent again.
	batchTime = 15 * time.Second
)

// The statuses of one element of a batch.
const (
	StatusAccepted = "accepted"
	StatusRejected = "rejected" // Herald does not send it again
	StatusRetry    = "retry"    // Herald sends it again
)

// Result is the answer for one element of a batch.
type Result struct {
	DeliveryID string `json:"deliveryId"`
	Status     string `json:"status"`
	Error      string `json:"error,omitempty"`
}

// client identifies whose feedback has to stay in order.
type client struct{ registry, agent, address string }

// progress is the state of a batch that is being processed.
type progress struct {
	stop  time.Time       // after it, the remaining elements are to be sent again
	waits map[client]bool // the clients of whom an element is to be sent again
}

// addBatch adds the tool for several pieces of feedback. It answers for each of them, so that one that fails does not
// affect the others. After one that is to be sent again, the later ones of the same client are too, because they would
// arrive before it. After batchTime, all remaining ones are to be sent again.
func addBatch(s *server.MCPServer, r *receiver, handle func(context.Context, Feedback) error) {
	check := compileSchema(ToolFeedback) // of an element
	answer := func(ctx context.Context, request mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		raw, err := rawArguments(request)
		var batch struct{ Deliveries []json.RawMessage }
		if err = errors.Join(err, json.Unmarshal(raw, &batch)); err != nil {
			return mcp.NewToolResultError("the arguments do not match the schema: " + err.Error()), nil
		}
		if n := len(batch.Deliveries); n == 0 || n > maxBatch {
			const fault = "the arguments do not match the schema: %d deliveries, want 1 to %d"
			return mcp.NewToolResultErrorf(fault, n, maxBatch), nil
		}
		results := make([]Result, len(batch.Deliveries))
		p := progress{stop: time.Now().Add(batchTime), waits: map[client]bool{}}
		for i, raw := range batch.Deliveries {
			results[i] = r.processElement(ctx, func() (f Feedback, err error) {
				if f, err = decodeValue[Feedback](check, raw); err == nil {
					f.Attempt = describeAttempt(request, f.DeliveryID, i)
				}
				return f, err
			}, raw, p, handle)
		}
		return mcp.NewToolResultJSON(map[string]any{"results": results})
	}
	s.AddTool(newTool(ToolFeedbackBatch), answer)
}

// processElement processes one element of a batch and answers for it. It adds the element's client to p.waits if the
// element is to be sent again.
func (r *receiver) processElement(ctx context.Context, decode func() (Feedback, error), raw json.RawMessage,
	p progress, handle func(context.Context, Feedback) error) Result {
	f, err := decode()
	if err != nil {
		var named struct{ DeliveryID string }
		_ = json.Unmarshal(raw, &named) // without an id, Herald cannot assign the result and sends the delivery again
		return Result{named.DeliveryID, StatusRejected, err.Error()}
	}
	from := client{f.AgentRegistry, f.AgentID, f.ClientAddress}
	switch {
	case p.waits[from]:
		return Result{f.DeliveryID, StatusRetry, "an earlier feedback of this client is to be sent again"}
	case time.Now().After(p.stop):
		return Result{f.DeliveryID, StatusRetry, "the batch took too long"}
	}
	_, err = r.process(ctx, ToolFeedbackBatch, &f.Event, func() error { return handle(ctx, f) })
	var refused *rejection
	switch {
	case errors.As(err, &refused):
		return Result{f.DeliveryID, StatusRejected, refused.reason}
	case err != nil:
		p.waits[from] = true
		return Result{f.DeliveryID, StatusRetry, errTryAgain.Error()}
	}
	return Result{f.DeliveryID, StatusAccepted, ""}
}
