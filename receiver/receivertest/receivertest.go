// Package receivertest is a Herald for the tests of an agent that uses package receiver. It calls the agent's tools
// over HTTP with the arguments, the description and, if the test wants it, the signatures of a real Herald.
//
// It sends no delivery twice by itself: a test that sends the same DeliveryID again sees how its agent answers.
package receivertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/receiver"
)

// Answer is an agent's answer to one delivery.
type Answer struct {
	// Status is what Herald does next: receiver.StatusAccepted (nothing), StatusRejected (nothing, the delivery has
	// failed) or StatusRetry (it calls again). Error is the agent's reason.
	receiver.Result
	// Duplicate reports that the agent had processed the delivery before. It is not set in a batch.
	Duplicate bool
}

// Herald calls agents. The zero Herald does not sign its requests; NewHerald returns one that does.
type Herald struct {
	// URL is the address at which agents find the keys of this Herald. It is empty if the Herald does not sign.
	URL    string
	signer *signer
}

// SendFeedback sends feedback to the MCP server at url, without a signature. Required fields that are zero get sample
// values, and DeliveryID a random one. Of Score and Value, one that is missing follows from the other. SendFeedback
// returns an error if the agent offers no such tool, refuses the caller, or does not answer.
func SendFeedback(ctx context.Context, url string, f receiver.Feedback) (Answer, error) {
	return new(Herald).SendFeedback(ctx, url, f)
}

// SendFeedback is the function SendFeedback with this Herald's signature.
func (h *Herald) SendFeedback(ctx context.Context, url string, f receiver.Feedback) (Answer, error) {
	arguments, err := newFeedback(f)
	if err != nil {
		return Answer{}, err
	}
	return h.send(ctx, url, receiver.ToolFeedback, arguments, f.Attempt)
}

// SendRevocation sends a revocation as SendFeedback does feedback.
func (h *Herald) SendRevocation(ctx context.Context, url string, r receiver.Revocation) (Answer, error) {
	arguments, err := newArguments(receiver.ToolRevocation, r)
	if err != nil {
		return Answer{}, err
	}
	return h.send(ctx, url, receiver.ToolRevocation, arguments, r.Attempt)
}

// SendResponse sends a response as SendFeedback does feedback.
func (h *Herald) SendResponse(ctx context.Context, url string, r receiver.Response) (Answer, error) {
	arguments, err := newArguments(receiver.ToolResponse, r)
	if err != nil {
		return Answer{}, err
	}
	return h.send(ctx, url, receiver.ToolResponse, arguments, r.Attempt)
}

// SendValidation sends a validation as SendFeedback does feedback.
func (h *Herald) SendValidation(ctx context.Context, url string, v receiver.Validation) (Answer, error) {
	arguments, err := newArguments(receiver.ToolValidation, v)
	if err != nil {
		return Answer{}, err
	}
	return h.send(ctx, url, receiver.ToolValidation, arguments, v.Attempt)
}

// SendBatch sends several pieces of feedback in one call. It returns an answer for each, in their order.
func (h *Herald) SendBatch(ctx context.Context, url string, batch ...receiver.Feedback) ([]Answer, error) {
	var items []arguments
	var about []map[string]any
	for _, f := range batch {
		item, err := newFeedback(f)
		if err != nil {
			return nil, err
		}
		items, about = append(items, item), append(about, describe(item, f.Attempt))
	}
	result, err := h.call(ctx, url, receiver.ToolFeedbackBatch, map[string]any{"deliveries": items}, about)
	if err != nil {
		return nil, err
	}
	if result.IsError {
		return nil, fmt.Errorf("the agent refused the batch: %s", textOf(result))
	}
	var said struct{ Results []receiver.Result }
	if err := json.Unmarshal([]byte(textOf(result)), &said); err != nil {
		return nil, fmt.Errorf("the agent's answer to a batch: %w", err)
	}
	answers := make([]Answer, len(items))
	for i, item := range items {
		for _, r := range said.Results {
			if r.DeliveryID == item.deliveryID() {
				answers[i].Result = r
			}
		}
		if answers[i].Status == "" {
			return nil, fmt.Errorf("the agent did not answer for delivery %s of the batch", item.deliveryID())
		}
	}
	return answers, nil
}

// send calls a tool with one delivery.
func (h *Herald) send(ctx context.Context, url, tool string, a arguments, attempt receiver.Attempt) (Answer, error) {
	answer := Answer{Result: receiver.Result{DeliveryID: a.deliveryID(), Status: receiver.StatusAccepted}}
	result, err := h.call(ctx, url, tool, a, describe(a, attempt))
	switch {
	case errors.Is(err, mcp.ErrInternalError):
		answer.Status, answer.Error = receiver.StatusRetry, err.Error()
	case err != nil:
		return Answer{}, err
	case result.IsError:
		answer.Status, answer.Error = receiver.StatusRejected, textOf(result)
	default:
		var said struct{ Duplicate bool }
		_ = json.Unmarshal([]byte(textOf(result)), &said) // any result is a success
		answer.Duplicate = said.Duplicate
	}
	return answer, nil
}

// call opens a session, calls a tool and closes the session.
func (h *Herald) call(ctx context.Context, url, tool string, arguments, about any) (*mcp.CallToolResult, error) {
	web := &http.Client{Transport: http.DefaultTransport}
	if h.signer != nil {
		web.Transport = h.signer
	}
	c, err := client.NewStreamableHttpClient(url, transport.WithHTTPBasicClient(web))
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if err := c.Start(ctx); err != nil {
		return nil, err
	}
	var hello mcp.InitializeRequest
	hello.Params.ProtocolVersion = mcp.LATEST_PROTOCOL_VERSION
	hello.Params.ClientInfo = mcp.Implementation{Name: "receivertest", Version: "1"}
	if _, err := c.Initialize(ctx, hello); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	var request mcp.CallToolRequest
	request.Params.Name, request.Params.Arguments = tool, arguments
	request.Params.Meta = mcp.NewMetaFromMap(map[string]any{"io.agentherald/delivery": about})
	result, err := c.CallTool(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", tool, err)
	}
	return result, nil
}

func textOf(r *mcp.CallToolResult) string {
	for _, c := range r.Content {
		if text, ok := c.(mcp.TextContent); ok {
			return text.Text
		}
	}
	return ""
}

// arguments are those of a tool or of an element of a batch.
type arguments map[string]json.RawMessage

func (a arguments) deliveryID() (id string) {
	_ = json.Unmarshal(a["deliveryId"], &id) // newArguments encoded it
	return id
}

// describe returns the description of a delivery in _meta.
func describe(a arguments, attempt receiver.Attempt) map[string]any {
	about := map[string]any{
		"id": a.deliveryID(), "key": attempt.Key, "attempt": max(attempt.Number, 1), "replay": attempt.Replay}
	if attempt.Sanitized {
		about["sanitized"] = true
	}
	if attempt.Probe {
		about["probe"] = true
	}
	return about
}

func newFeedback(f receiver.Feedback) (arguments, error) {
	if f.Value == "" && f.Score == nil {
		f.Value = "95"
	}
	if f.Value == "" {
		whole, decimals, _ := strings.Cut(strconv.FormatFloat(*f.Score, 'f', -1, 64), ".")
		if digits, ok := new(big.Int).SetString(whole+decimals, 10); ok { // not NaN or infinite
			f.Value, f.ValueDecimals = digits.String(), len(decimals)
		}
	}
	value, ok := new(big.Rat).SetString(f.Value)
	if f.Score == nil && ok {
		scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(f.ValueDecimals)), nil)
		score, _ := value.Quo(value, new(big.Rat).SetInt(scale)).Float64()
		if score >= 0 && score <= 100 {
			f.Score = &score
		}
	}
	return newArguments(receiver.ToolFeedback, f)
}

// newArguments encodes an event as Herald does: absent values are null, or samples if the schema forbids null.
func newArguments(tool string, event any) (arguments, error) {
	var schema struct {
		Properties map[string]struct {
			Type    any
			Minimum int
		}
	}
	if err := json.Unmarshal(receiver.Schema(tool), &schema); err != nil {
		return nil, err
	}
	text, err := json.Marshal(event)
	if err != nil {
		return nil, err
	}
	var a arguments
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, err
	}
	for name, property := range schema.Properties {
		value, given := a[name]
		zero := string(value) == `""` || string(value) == "null" || string(value) == "0" && property.Minimum > 0
		if !given || !zero {
			continue
		}
		types, _ := property.Type.([]any)
		if s, ok := sampleOf(name); ok {
			a[name], _ = json.Marshal(s) // a string or a number
		} else if slices.Contains(types, any("null")) {
			a[name] = json.RawMessage("null")
		}
	}
	return a, nil
}

// sampleOf returns the value of a field that a test leaves empty.
func sampleOf(name string) (any, bool) {
	const address = "0x00000000000000000000000000000000000000AA"
	switch name {
	case "deliveryId":
		return uuid.NewString(), true
	case "agentId":
		return "42", true
	case "agentRegistry":
		return "eip155:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", true
	case "chainId":
		return 8453, true
	case "clientAddress", "responder", "validatorAddress":
		return address, true
	case "feedbackIndex":
		return 1, true
	case "value":
		return "0", true
	case "reason":
		return "client", true
	case "requestHash":
		return "0x" + fmt.Sprintf("%064x", 1), true
	case "fileVerification":
		return "not_given", true
	case "timestamp":
		return time.Now().Unix(), true
	}
	return nil, false
}
