package api

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
)

// ToolCaller makes direct calls. A failed call returns a *delivery.DirectError.
type ToolCaller interface {
	CallDirect(ctx context.Context, c job.DirectCall, by string) (mcpcall.Answer, error)
}

// CallRequest is the request body of the old backend's bridge, for the OpenAPI document. job.ParseDirectCall parses it.
type CallRequest struct {
	Endpoint  json.RawMessage `json:"endpoint"` // a URL, or an object {transport, url, headers, command, args}
	ToolName  string          `json:"tool_name"`
	Arguments map[string]any  `json:"arguments,omitempty"`
	TimeoutMs int             `json:"timeout_ms,omitempty"`
}

// CallAnswer is the response body of the old backend's bridge. Herald adds the field Reason.
type CallAnswer struct {
	Success bool            `json:"success"`
	Result  json.RawMessage `json:"result,omitempty"` // of tools/call, as the agent sent it; also of an error
	Error   string          `json:"error,omitempty"`
	Reason  outcome.Reason  `json:"reason,omitempty"`
}

const (
	// maxCalling bounds the concurrent direct calls.
	maxCalling = 16
	// callMargin is the time that a request may take in addition to the call.
	callMargin = 15 * time.Second
)

// callTool serves POST /mcp/call as the bridge did: success reports the outcome, and error is a text.
func (a *API) callTool(w http.ResponseWriter, r *http.Request, v server.Visitor) {
	body, err := readJSON(w, r, job.MaxCallBytes)
	if refused, ok := errors.AsType[*refusal](err); ok {
		refuseCall(w, refused.status, 0, CallAnswer{Error: refused.Message})
		return
	}
	call, err := job.ParseDirectCall(body, a.Limits)
	if err != nil {
		refuseCall(w, http.StatusBadRequest, 0, CallAnswer{Error: err.Error(), Reason: outcome.InvalidJob})
		return
	}
	release, ok := a.calling.acquire(v.Name) // after the body was read, so that a slow request holds no slot
	if !ok {
		refuseCall(w, http.StatusTooManyRequests, time.Second, CallAnswer{Reason: outcome.AgentBusy,
			Error: "as many direct calls as may be are under way: try again"})
		return
	}
	defer release()

	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(a.CallTimeout + callMargin))
	ctx := tracecontext.NewContext(r.Context(), r.Header.Get(tracecontext.Header))
	answer, err := a.Calls.CallDirect(ctx, call, v.Name)
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
			CallAnswer{Error: "this failed, and the worker's log says why", Reason: outcome.InternalError})
	}
}

// callStatus returns the HTTP status for a failed call: the fault is the request's, the agent's, or the call was too
// early.
func callStatus(e *delivery.DirectError) int {
	switch e.Reason {
	case outcome.InvalidJob, outcome.AddressBlocked, outcome.TransportRefused:
		return http.StatusBadRequest
	case outcome.AgentBusy, outcome.Throttled, outcome.BreakerOpen, outcome.RateLimited:
		return http.StatusTooManyRequests
	case outcome.InternalError:
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
