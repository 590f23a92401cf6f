package classify

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/store"
	"github.com/jackc/pgx/v5/pgconn"
)

// Reached reports whether a failed call may have reached the agent, because some of it was written.
func Reached(err error) bool {
	var call *mcpcall.CallError
	return errors.As(err, &call) && call.Written
}

// NotATool reports whether the agent answered that it does not know the requested tool or method, or does not accept
// these arguments. The agent executed nothing, so its tools may be listed again and the call repeated once.
func NotATool(err error) bool {
	var call *mcpcall.CallError
	return errors.As(err, &call) && !outweighsCode(call.Status) &&
		(call.Code == codeMethodNotFound || call.Code == codeInvalidParams)
}

// outweighsCode reports whether an HTTP status takes precedence over a JSON-RPC code in the same answer: 401, 403, 408,
// 425, 429 and all from 500.
func outweighsCode(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly,
		http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// Unstorable reports whether Postgres will always refuse this write, because it cannot represent the data, or because
// the data violates a constraint or a limit. Repeating the write is useless.
func Unstorable(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(pg.Code) < 2 {
		return false
	}
	switch pg.Code[:2] {
	case "22", "23", "54": // data exception, integrity constraint violation, program limit exceeded
		return true
	}
	return false
}

// verdict is an outcome.Verdict whose fields the classify functions are setting.
type verdict struct {
	outcome.Verdict
	thirdParty bool // another server than the agent's failed; the agent's endpoint may work
}

// Error returns the verdict for any error of the executor. Unknown errors get the reason internal_error, and their
// attempts count. The verdict's Text is the text of the error.
func Error(err error) outcome.Verdict {
	v := verdict{Verdict: outcome.Verdict{Text: err.Error()}}
	v.Reason = findReason(err, &v)
	v.Ending, v.Free = v.Reason.Ending(), v.Reason.Free()
	v.Unknown = v.Unknown || v.Reason == outcome.Unknown
	switch v.Reason {
	case outcome.ConnectFailed:
		v.Moved, v.Unwell = !v.thirdParty, !v.thirdParty
	case outcome.ToolNotFound:
		v.Moved = v.AgentFault
	case outcome.Timeout, outcome.ServerError, outcome.Unknown:
		v.Unwell = !v.thirdParty
	}
	return v.Verdict
}

// findReason returns the reason of err and sets the details of v. It calls the classify functions in order, and returns
// the reason of the first one that knows the error. If none knows it, the reason is internal_error.
func findReason(err error, v *verdict) outcome.Reason {
	if r, ok := classifyGuard(err); ok { // first, because other packages wrap these errors
		v.AgentFault = true
		return r
	}
	for _, classify := range []func(error, *verdict) (outcome.Reason, bool){
		classifyFailure, classifyDecoding, classifyResolver, classifyChain, classifyMCP, classifyContent, classifyOAuth,
		classifyStore,
	} {
		if r, ok := classify(err, v); ok {
			return r
		}
	}
	return outcome.InternalError
}

// classifyGuard returns address_blocked for addresses and URLs that package netguard refused, and false for other
// errors.
func classifyGuard(err error) (outcome.Reason, bool) {
	var blocked *netguard.BlockedError
	var refused *netguard.RefusedURLError
	return outcome.AddressBlocked, errors.As(err, &blocked) || errors.As(err, &refused)
}

// classifyFailure returns the reason of an *outcome.Failure, and false for other errors.
func classifyFailure(err error, v *verdict) (outcome.Reason, bool) {
	f, isF := errors.AsType[*outcome.Failure](err)
	if !isF {
		return "", false
	}
	v.Pause = f.Pause
	switch f.Reason {
	case outcome.ToolNotFound, outcome.ToolError, outcome.SchemaMismatch, outcome.BadResponse,
		outcome.ServerError, outcome.Unknown:
		v.AgentFault = !f.Ours
	}
	return f.Reason, true
}

// classifyDecoding returns agent_busy if a document cannot be decoded now because other documents use all memory for
// decoding, and false for other errors. The delivery waits for outcome.BackOff.
func classifyDecoding(err error, _ *verdict) (outcome.Reason, bool) {
	return outcome.AgentBusy, errors.Is(err, decode.ErrBusy)
}

// classifyResolver returns the reason for errors of the agent's registration and endpoint, and false for other errors.
func classifyResolver(err error, v *verdict) (outcome.Reason, bool) {
	if skip, ok := errors.AsType[*resolver.SkipError](err); ok {
		return skip.Reason, true
	}
	if _, ok := errors.AsType[*resolver.TransportRefusedError](err); ok {
		v.AgentFault = true
		return outcome.TransportRefused, true
	}
	if _, ok := errors.AsType[*resolver.UnboundError](err); ok {
		v.AgentFault = true
		return outcome.EndpointUnverified, true
	}
	return "", false
}

// classifyChain returns the reason for errors of a chain's node and of the registry, and false for other errors.
func classifyChain(err error, _ *verdict) (outcome.Reason, bool) {
	var away *node.UnavailableError
	var wrong *node.WrongChainError
	var gone *chain.NoSuchAgentError
	switch {
	case errors.As(err, &gone):
		return outcome.AgentNotFound, true
	case errors.As(err, &away), errors.As(err, &wrong):
		return outcome.ChainUnavailable, true
	}
	return "", false
}

// classifyContent returns the reason for errors of fetching documents and files, and false for other errors. If the
// servers asked for a wait, it stores that wait in v.RetryAfter.
func classifyContent(err error, v *verdict) (outcome.Reason, bool) {
	var none *ipfs.NoDocumentError
	var gateway *ipfs.NoGatewayError
	var missing *ipfs.NotFoundError
	var away *ipfs.UnavailableError
	var large *ipfs.TooLargeError
	var invalid *ipfs.InvalidError
	switch {
	case errors.As(err, &none):
		return outcome.NoDocument, true
	case errors.As(err, &large), errors.As(err, &invalid):
		return outcome.NoDocument, true
	case errors.As(err, &gateway):
		return outcome.GatewayUnconfigured, true
	case errors.As(err, &away):
		v.RetryAfter = away.RetryAfter
		return outcome.ContentUnavailable, true
	case errors.As(err, &missing) && missing.Proven:
		return outcome.NoDocument, true // a verified directory lacks the name, which is permanent
	case errors.As(err, &missing):
		return outcome.ContentUnavailable, true
	}
	return "", false
}

// classifyOAuth returns the reason for errors of an authorization server, and false for other errors. If the server
// refuses the credential or its metadata cannot be used, the reason is auth_required: another credential may help. If
// the server is unavailable, v.thirdParty is set, because the agent itself may still work.
func classifyOAuth(err error, v *verdict) (outcome.Reason, bool) {
	var no *oauth.RefusedError
	var document *oauth.MetadataError
	var other *oauth.IssuerError
	var away *oauth.UnavailableError
	switch {
	case errors.As(err, &no), errors.As(err, &document), errors.As(err, &other):
		return outcome.AuthRequired, true
	case !errors.As(err, &away):
		return "", false
	}
	v.thirdParty, v.RetryAfter = true, away.RetryAfter
	var network net.Error
	switch timeout := errors.As(away.Err, &network) && network.Timeout(); {
	case away.Status == http.StatusTooManyRequests:
		return outcome.RateLimited, true
	case timeout, errors.Is(away.Err, context.DeadlineExceeded):
		return outcome.Timeout, true
	case errors.Is(away.Err, context.Canceled):
		return outcome.InternalError, true // this process cancelled the request
	case away.Status != 0:
		return outcome.ServerError, true
	}
	return outcome.ConnectFailed, true
}

// classifyMCP returns the reason for errors of listing and calling tools, and false for other errors.
func classifyMCP(err error, v *verdict) (outcome.Reason, bool) {
	var refused *mcpcall.TransportRefusedError
	var schema *mcpcall.SchemaError
	var large *mcpcall.RequestTooLargeError
	var call *mcpcall.CallError
	switch {
	case errors.As(err, &refused):
		v.AgentFault = true
		return outcome.TransportRefused, true
	case errors.As(err, &schema):
		v.AgentFault = true
		return outcome.SchemaMismatch, true
	case errors.As(err, &large):
		return outcome.InvalidJob, true // the job's arguments are too large, and always will be
	case errors.Is(err, mcpcall.ErrBusy):
		v.Pause = time.Second
		return outcome.AgentBusy, true
	case errors.Is(err, mcpcall.ErrClosed):
		return outcome.InternalError, true
	case errors.As(err, &call):
		v.RetryAfter = call.RetryAfter
		r := classifyCall(call)
		v.AgentFault = r != outcome.InternalError
		v.Unknown = r == outcome.ServerError && call.Stage == mcpcall.StageCall && call.Written &&
			mayBeExecuted(call.Status)
		switch s := call.Status; s {
		case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusGone:
			v.Moved = true
		default: // a redirect, or a handshake with a server that does not understand MCP
			v.Moved = s/100 == 3 || r == outcome.BadResponse && call.Stage == mcpcall.StageOpen
		}
		return r, true
	}
	return "", false
}

// mayBeExecuted reports whether the agent may have executed a call that it answered with this HTTP status (0: a
// JSON-RPC error). It returns false for 408, 425 and 503, by which the agent says that it did not begin (RFC 9110
// §15.5.9, §15.6.4; RFC 8470).
func mayBeExecuted(status int) bool {
	switch status {
	case http.StatusServiceUnavailable, http.StatusRequestTimeout, http.StatusTooEarly:
		return false
	}
	return true
}

// classifyCall returns the reason for a failed MCP request. It distinguishes requests that the agent certainly did not
// execute, requests that it certainly executed, and requests of which neither is certain. See docs/design/calls.md.
func classifyCall(call *mcpcall.CallError) outcome.Reason {
	switch s := call.Status; {
	case errors.Is(call.Err, mcpcall.ErrSessionGone):
		return outcome.ConnectFailed // nothing was executed; the next try may reach the server that knows its session
	case s == http.StatusUnauthorized, s == http.StatusForbidden:
		return outcome.AuthRequired
	case s == http.StatusTooManyRequests:
		return outcome.RateLimited
	case outweighsCode(s):
		return outcome.ServerError
	}
	switch c := call.Code; {
	case c == 0:
	case c == codeInvalidParams && call.Stage == mcpcall.StageCall:
		return outcome.SchemaMismatch // the agent refuses arguments that its published schema allows
	case c == codeInvalidParams, c == codeMethodNotFound, c == codeInvalidRequest, c == codeParse,
		c == codeHeaderMismatch, c == codeMissingCapability, c == codeUnsupportedVersion:
		return outcome.BadResponse // the agent refuses this request and would refuse it again
	case call.Status == 0:
		return outcome.ServerError // -32603, or a code without a reliable meaning: the agent answered and failed
	}
	if call.Status >= 300 {
		return outcome.BadResponse
	}
	return classifyUnanswered(call)
}

// classifyUnanswered returns the reason for a request that got neither an HTTP error status nor a JSON-RPC error. If
// the agent answered input_required, the reason is rate_limited if Herald only has to wait, and bad_response otherwise.
// If the agent did not, and at least a part of the request was written, the reason is outcome_unknown. If nothing was
// written, the error decides: timeout, internal_error (this process cancelled the request), bad_response (the handshake
// or the tool list is invalid), or connect_failed for all others.
func classifyUnanswered(call *mcpcall.CallError) outcome.Reason {
	var input *mcpcall.InputRequiredError
	var large *mcpcall.TooLargeError
	var bad *mcpcall.BadAnswerError
	switch {
	case errors.As(call.Err, &input) && input.Later:
		return outcome.RateLimited
	case errors.As(call.Err, &input):
		return outcome.BadResponse
	case call.Written:
		return outcome.Unknown
	case call.Timeout, errors.Is(call.Err, context.DeadlineExceeded):
		return outcome.Timeout
	case errors.Is(call.Err, context.Canceled):
		return outcome.InternalError // this process cancelled the request
	case errors.As(call.Err, &large), errors.As(call.Err, &bad):
		return outcome.BadResponse // the agent's handshake or list of tools is invalid, and will be again
	}
	return outcome.ConnectFailed
}

// Error codes of JSON-RPC 2.0 §5.1 and of MCP 2026-07-28.
const (
	codeParse              = -32700
	codeInvalidRequest     = -32600
	codeMethodNotFound     = -32601
	codeInvalidParams      = -32602
	codeHeaderMismatch     = -32020
	codeMissingCapability  = -32021
	codeUnsupportedVersion = -32022
)

// classifyStore returns the reason for stored data that cannot be decrypted or parsed, and false for other errors.
func classifyStore(err error, _ *verdict) (outcome.Reason, bool) {
	var cipher *secret.DecryptError
	switch {
	case errors.As(err, &cipher):
		return outcome.AuthRequired, true // wrong keyset, or the row was copied: the credential has to be stored again
	case errors.Is(err, store.ErrUnreadableJob):
		return outcome.InvalidJob, true
	}
	return "", false
}
