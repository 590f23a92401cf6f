package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/server"
	"github.com/agentherald/herald/internal/tracecontext"
)

// ToolCaller makes a direct call. Its error is a *delivery.DirectError.
type ToolCaller interface {
	Call(ctx context.Context, c job.DirectCall, by string) (mcpcall.Answer, error)
}

// CallRequest is what the old backend's bridge took, as the OpenAPI document has it; job.ParseDirectCall reads it.
type CallRequest struct {
	Endpoint  json.RawMessage `json:"endpoint"` // a URL, or an object {transport, url, headers, command, args}
	ToolName  string          `json:"tool_name"`
	Arguments map[string]any  `json:"arguments,omitempty"`
	TimeoutMs int             `json:"timeout_ms,omitempty"`
}

// CallAnswer is what the old backend's bridge answered. Reason is Herald's own.
type CallAnswer struct {
	Success bool            `json:"success"`
	Result  json.RawMessage `json:"result,omitempty"` // of tools/call, as the agent sent it; also where the tool says that it failed
	Error   string          `json:"error,omitempty"`
	Reason  reason.Reason   `json:"reason,omitempty"`
}

const (
	// maxCalling is how many direct calls are under way at a time.
	maxCalling = 16
	// callMargin is what a request may take beside the call itself.
	callMargin = 15 * time.Second
)

// callTool answers POST /mcp/call as the bridge did: what went wrong is a string, and success tells.
func (a *API) callTool(w http.ResponseWriter, r *http.Request, v server.Visitor) {
	body, status, problem := readCall(w, r)
	if problem != "" {
		refuseCall(w, status, 0, CallAnswer{Error: problem})
		return
	}
	call, err := job.ParseDirectCall(body, a.Limits)
	if err != nil {
		refuseCall(w, http.StatusBadRequest, 0, CallAnswer{Error: err.Error(), Reason: reason.InvalidJob})
		return
	}
	release, ok := a.calling.acquire(v.Name) // a request whose body does not come holds none
	if !ok {
		refuseCall(w, http.StatusTooManyRequests, time.Second, CallAnswer{Reason: reason.AgentBusy,
			Error: "as many direct calls as may be are under way: try again"})
		return
	}
	defer release()

	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(a.CallTimeout + callMargin))
	ctx := tracecontext.NewContext(r.Context(), r.Header.Get(tracecontext.Header))
	answer, err := a.Calls.Call(ctx, call, v.Name)
	var failed *delivery.DirectError
	switch {
	case err == nil:
		server.WriteJSON(w, http.StatusOK, CallAnswer{Success: true, Result: answer.Raw})
	case errors.As(err, &failed):
		refuseCall(w, callStatus(failed), failed.Wait,
			CallAnswer{Result: answer.Raw, Error: failed.Text, Reason: failed.Reason})
	default:
		a.Logger.Error("a direct call failed", "error", err)
		refuseCall(w, http.StatusInternalServerError, 0,
			CallAnswer{Error: "this failed, and the worker's log says why", Reason: reason.InternalError})
	}
}

// readCall reads the request's body; problem: it cannot be read, and how that is answered.
func readCall(w http.ResponseWriter, r *http.Request) (body []byte, status int, problem string) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, http.StatusUnsupportedMediaType, "send Content-Type: application/json"
	}
	tooLarge := "the body is larger than " + strconv.Itoa(job.MaxCallBytes) + " bytes"
	if r.ContentLength > job.MaxCallBytes {
		return nil, http.StatusRequestEntityTooLarge, tooLarge
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, job.MaxCallBytes))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, http.StatusRequestEntityTooLarge, tooLarge
	case err != nil:
		return nil, http.StatusBadRequest, "the body could not be read"
	}
	return body, 0, ""
}

// callStatus says whose fault it is: the request's, the agent's, or that it comes too soon.
func callStatus(e *delivery.DirectError) int {
	switch e.Reason {
	case reason.InvalidJob, reason.AddressBlocked, reason.TransportRefused:
		return http.StatusBadRequest
	case reason.AgentBusy, reason.Throttled, reason.BreakerOpen, reason.RateLimited:
		return http.StatusTooManyRequests
	case reason.InternalError:
		return http.StatusInternalServerError
	}
	if e.TimedOut {
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

func refuseCall(w http.ResponseWriter, status int, wait time.Duration, answer CallAnswer) {
	if wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	server.WriteJSON(w, status, answer)
}
