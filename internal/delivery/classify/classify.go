package classify

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
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
	"github.com/agentherald/herald/internal/store/ledger"
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
	v.Reason = outcome.InternalError
	for _, find := range rules {
		if r, ok := find(err, &v); ok {
			v.Reason = r
			break
		}
	}
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

// rule returns the reason for the errors that it knows, and sets the details of v. It returns false for other errors.
type rule func(err error, v *verdict) (outcome.Reason, bool)

// rules are asked in this order, and the first that knows an error decides. If none knows it, the reason is
// internal_error.
var rules = []rule{
	blameFor[*netguard.BlockedError](outcome.AddressBlocked), // first, because other packages wrap these errors
	blameFor[*netguard.RefusedURLError](outcome.AddressBlocked),
	classifyFailure,
	reasonOf(decode.ErrBusy, outcome.AgentBusy), // other documents use all memory for decoding
	classifyOpenFiles,
	classifySkip,
	blameFor[*resolver.TransportRefusedError](outcome.TransportRefused),
	blameFor[*resolver.UnboundError](outcome.EndpointUnverified),
	reasonFor[*chain.NoSuchAgentError](outcome.AgentNotFound),
	reasonFor[*node.UnavailableError](outcome.ChainUnavailable),
	reasonFor[*node.WrongChainError](outcome.ChainUnavailable),
	blameFor[*mcpcall.TransportRefusedError](outcome.TransportRefused),
	blameFor[*mcpcall.SchemaError](outcome.SchemaMismatch),
	reasonFor[*mcpcall.RequestTooLargeError](outcome.InvalidJob), // its arguments are too large, and always will be
	classifyMCP,
	reasonFor[*ipfs.NoDocumentError](outcome.NoDocument),
	reasonFor[*ipfs.TooLargeError](outcome.NoDocument),
	reasonFor[*ipfs.InvalidError](outcome.NoDocument),
	reasonFor[*ipfs.NoGatewayError](outcome.GatewayUnconfigured),
	classifyContent,
	reasonFor[*oauth.RefusedError](outcome.AuthRequired), // another credential may help
	reasonFor[*oauth.MetadataError](outcome.AuthRequired),
	reasonFor[*oauth.IssuerError](outcome.AuthRequired),
	classifyOAuth,
	reasonFor[*secret.DecryptError](outcome.AuthRequired), // wrong keyset, or the row was copied: store it again
	reasonOf(ledger.ErrUnreadableJob, outcome.InvalidJob),
}

// reasonFor returns a rule that gives errors of the type T the reason r.
func reasonFor[T error](r outcome.Reason) rule {
	return func(err error, _ *verdict) (outcome.Reason, bool) {
		_, ok := errors.AsType[T](err)
		return r, ok
	}
}

// blameFor is reasonFor for errors that are the agent's fault.
func blameFor[T error](r outcome.Reason) rule {
	return func(err error, v *verdict) (outcome.Reason, bool) {
		_, v.AgentFault = errors.AsType[T](err)
		return r, v.AgentFault
	}
}

// reasonOf returns a rule that gives target the reason r.
func reasonOf(target error, r outcome.Reason) rule {
	return func(err error, _ *verdict) (outcome.Reason, bool) { return r, errors.Is(err, target) }
}

// classifyFailure returns the reason of an *outcome.Failure, and false for other errors.
func classifyFailure(err error, v *verdict) (outcome.Reason, bool) {
	f, ok := errors.AsType[*outcome.Failure](err)
	if !ok {
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

// classifyOpenFiles returns the reason for a request that was not sent because this process, or its machine, has as
// many open files as it may have. That says nothing about the agent. It returns false for other errors.
func classifyOpenFiles(err error, _ *verdict) (outcome.Reason, bool) {
	tooMany := errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
	return outcome.AgentBusy, tooMany && !Reached(err)
}

// classifySkip returns the reason of a *resolver.SkipError, and false for other errors.
func classifySkip(err error, _ *verdict) (outcome.Reason, bool) {
	if skip, ok := errors.AsType[*resolver.SkipError](err); ok {
		return skip.Reason, true
	}
	return "", false
}

// classifyContent returns the reason for documents and files that are unavailable or missing, and false for other
// errors. If the servers asked for a wait, it stores that wait in v.RetryAfter.
func classifyContent(err error, v *verdict) (outcome.Reason, bool) {
	if away, ok := errors.AsType[*ipfs.UnavailableError](err); ok {
		v.RetryAfter = away.RetryAfter
		return outcome.ContentUnavailable, true
	}
	missing, ok := errors.AsType[*ipfs.NotFoundError](err)
	if ok && missing.Proven {
		return outcome.NoDocument, true // a verified directory lacks the name, which is permanent
	}
	return outcome.ContentUnavailable, ok
}

// classifyOAuth returns the reason for an authorization server that is unavailable, and false for other errors. It sets
// v.thirdParty, because the agent itself may still work.
func classifyOAuth(err error, v *verdict) (outcome.Reason, bool) {
	away, ok := errors.AsType[*oauth.UnavailableError](err)
	if !ok {
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

// classifyMCP returns the reason for failed requests to list and call tools, and false for other errors.
func classifyMCP(err error, v *verdict) (outcome.Reason, bool) {
	var call *mcpcall.CallError
	switch {
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
	case errors.Is(call.Err, mcpcall.ErrOccupied):
		return outcome.ConnectFailed // until the agent is restarted, or the other session ends
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
	switch {
	case call.Status == http.StatusNotFound, call.Status == http.StatusMisdirectedRequest:
		return outcome.ConnectFailed // some proxies answer it while the agent behind them is deployed or starts
	case call.Status >= 300:
		return outcome.BadResponse
	}
	return classifyUnanswered(call)
}

// classifyUnanswered returns the reason for a request that got neither an HTTP error status nor a JSON-RPC error. If
// the agent answered input_required, the reason is rate_limited if Herald only has to wait, and bad_response otherwise.
// If the agent did not, and at least a part of the request was written, the reason is outcome_unknown. If nothing was
// written, the error decides: timeout, internal_error (this process cancelled the request), bad_response (the handshake
// or the tool list is too long), or connect_failed for all others, such as a page instead of a handshake.
func classifyUnanswered(call *mcpcall.CallError) outcome.Reason {
	var input *mcpcall.InputRequiredError
	var large *mcpcall.TooLargeError
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
	case errors.As(call.Err, &large):
		return outcome.BadResponse // the agent's handshake or list of tools is too long, and will be again
	}
	// Hosts that start or update an agent, or let it sleep, answer a page with status 200 instead, like 404 of others.
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
