package retry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/jackc/pgx/v5/pgconn"
)

// Failure is an outcome that a step of the executor decided itself, not an error of something below it.
type Failure struct {
	Reason reason.Reason
	Text   string        // a sentence for people, without secrets
	Pause  time.Duration // length of a free wait
	Exact  bool          // Pause is a moment of this delivery's own, not to be spread
	Ours   bool          // an operator decided it (Bar): of the four reasons that blame the agent, this one does not
}

func (f *Failure) Error() string { return f.Text }

// Fail ends or holds the attempt for a reason.
func Fail(r reason.Reason, text string) error { return &Failure{Reason: r, Text: text} }

// Bar is Fail for tool_not_found, tool_error, schema_mismatch and bad_response, which are agents' faults otherwise, when
// an operator decided it.
func Bar(r reason.Reason, text string) error { return &Failure{Reason: r, Text: text, Ours: true} }

// Pause makes the delivery wait without costing an attempt.
func Pause(r reason.Reason, d time.Duration, text string) error {
	return &Failure{Reason: r, Text: text, Pause: d}
}

// PauseExactly is Pause for a delivery that has a moment of its own to come back at.
func PauseExactly(r reason.Reason, d time.Duration, text string) error {
	return &Failure{Reason: r, Text: text, Pause: d, Exact: true}
}

// Reached tells whether a failed call may have reached the agent: some of it was written.
func Reached(err error) bool {
	var call *mcpcall.CallError
	return errors.As(err, &call) && call.Written
}

// NotATool tells whether the agent says that the tool it was asked for, or tools at all, do not exist there or do not
// take these arguments. Nothing was executed, so its list of tools may be read anew and the call made once more
// (mcp-client §6).
func NotATool(err error) bool {
	var call *mcpcall.CallError
	return errors.As(err, &call) && !outweighsCode(call.Status) &&
		(call.Code == codeMethodNotFound || call.Code == codeInvalidParams)
}

// outweighsCode tells whether a status outweighs a JSON-RPC code in the same answer.
func outweighsCode(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly,
		http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// Unstorable tells whether Postgres refuses what is being written, not just now but for good: data it cannot represent,
// or that breaks a rule of the schema. Writing the same again is useless.
func Unstorable(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || len(pg.Code) < 2 {
		return false
	}
	switch pg.Code[:2] {
	case "22", "23", "54": // data exception, integrity constraint violation, program limit exceeded
		return true
	}
	return false
}

// Classify maps any error of the executor to its verdict. Unknown errors are internal_error: they cost an attempt, and
// the log line says so.
func Classify(err error) Verdict {
	v := Verdict{Text: err.Error()}
	v.Reason = findReason(err, &v)
	v.Ending = endingOf(v.Reason)
	v.Free = isFree(v.Reason)
	v.Unknown = v.Unknown || v.Reason == reason.OutcomeUnknown
	switch v.Reason {
	case reason.ConnectFailed:
		v.Moved, v.Unwell = !v.thirdParty, !v.thirdParty
	case reason.ToolNotFound:
		v.Moved = v.AgentFault
	case reason.Timeout, reason.ServerError, reason.OutcomeUnknown:
		v.Unwell = !v.thirdParty
	}
	return v
}

func findReason(err error, v *Verdict) reason.Reason {
	if r, ok := classifyGuard(err); ok { // what the guard refuses stays refused, whoever ran into it
		v.AgentFault = true
		return r
	}
	for _, classify := range []func(error, *Verdict) (reason.Reason, bool){
		classifyFailure, classifyDecoding, classifyResolver, classifyChain, classifyMCP, classifyContent, classifyOAuth,
		classifyStore,
	} {
		if r, ok := classify(err, v); ok {
			return r
		}
	}
	return reason.InternalError
}

func classifyGuard(err error) (reason.Reason, bool) {
	var blocked *netguard.BlockedError
	var refused *netguard.RefusedURLError
	return reason.AddressBlocked, errors.As(err, &blocked) || errors.As(err, &refused)
}

func classifyFailure(err error, v *Verdict) (reason.Reason, bool) {
	var f *Failure
	if !errors.As(err, &f) {
		return "", false
	}
	v.Pause, v.exact = f.Pause, f.Exact
	switch f.Reason {
	case reason.ToolNotFound, reason.ToolError, reason.SchemaMismatch, reason.BadResponse, reason.ServerError, reason.OutcomeUnknown:
		v.AgentFault = !f.Ours
	}
	return f.Reason, true
}

// classifyDecoding: strangers' other documents kept this process from decoding one, in whichever step. How long it
// waits then goes by its age.
func classifyDecoding(err error, _ *Verdict) (reason.Reason, bool) {
	return reason.AgentBusy, errors.Is(err, decode.ErrBusy)
}

func classifyResolver(err error, v *Verdict) (reason.Reason, bool) {
	var skip *resolver.SkipError
	if errors.As(err, &skip) {
		return skip.Reason, true
	}
	var refused *resolver.TransportRefusedError
	if errors.As(err, &refused) {
		v.AgentFault = true
		return reason.TransportRefused, true
	}
	var unbound *resolver.UnboundError
	if errors.As(err, &unbound) {
		v.AgentFault = true
		return reason.EndpointUnverified, true
	}
	return "", false
}

func classifyChain(err error, _ *Verdict) (reason.Reason, bool) {
	var away *chain.UnavailableError
	var wrong *chain.WrongChainError
	var gone *chain.NoSuchAgentError
	switch {
	case errors.As(err, &gone):
		return reason.AgentNotFound, true
	case errors.As(err, &away), errors.As(err, &wrong):
		return reason.ChainUnavailable, true
	}
	return "", false
}

func classifyContent(err error, v *Verdict) (reason.Reason, bool) {
	var none *ipfs.NoDocumentError
	var gateway *ipfs.NoGatewayError
	var missing *ipfs.NotFoundError
	var away *ipfs.UnavailableError
	var large *ipfs.TooLargeError
	var invalid *ipfs.InvalidError
	switch {
	case errors.As(err, &none):
		return reason.NoDocument, true
	case errors.As(err, &large), errors.As(err, &invalid):
		return reason.NoDocument, true
	case errors.As(err, &gateway):
		return reason.GatewayUnconfigured, true
	case errors.As(err, &away):
		v.RetryAfter = away.RetryAfter
		return reason.ContentUnavailable, true
	case errors.As(err, &missing) && missing.Proven:
		return reason.NoDocument, true // a verified directory lacks the name: that will not change
	case errors.As(err, &missing):
		return reason.ContentUnavailable, true
	}
	return "", false
}

// classifyOAuth: an authorization server. What it refuses another credential may mend; that it gives no answer says
// nothing of the agent.
func classifyOAuth(err error, v *Verdict) (reason.Reason, bool) {
	var no *oauth.RefusedError
	var document *oauth.MetadataError
	var other *oauth.IssuerError
	var away *oauth.UnavailableError
	switch {
	case errors.As(err, &no), errors.As(err, &document), errors.As(err, &other):
		return reason.AuthRequired, true
	case !errors.As(err, &away):
		return "", false
	}
	v.thirdParty, v.RetryAfter = true, away.RetryAfter
	var network net.Error
	switch timeout := errors.As(away.Err, &network) && network.Timeout(); {
	case away.Status == http.StatusTooManyRequests:
		return reason.RateLimited, true
	case timeout, errors.Is(away.Err, context.DeadlineExceeded):
		return reason.Timeout, true
	case errors.Is(away.Err, context.Canceled):
		return reason.InternalError, true // this process gave up
	case away.Status != 0:
		return reason.ServerError, true
	}
	return reason.ConnectFailed, true
}

func classifyMCP(err error, v *Verdict) (reason.Reason, bool) {
	var refused *mcpcall.TransportRefusedError
	var schema *mcpcall.SchemaError
	var large *mcpcall.RequestTooLargeError
	var call *mcpcall.CallError
	switch {
	case errors.As(err, &refused):
		v.AgentFault = true
		return reason.TransportRefused, true
	case errors.As(err, &schema):
		v.AgentFault = true
		return reason.SchemaMismatch, true
	case errors.As(err, &large):
		return reason.InvalidJob, true // what the job makes of its arguments is never sent
	case errors.Is(err, mcpcall.ErrBusy):
		v.Pause = time.Second
		return reason.AgentBusy, true
	case errors.Is(err, mcpcall.ErrClosed):
		return reason.InternalError, true
	case errors.As(err, &call):
		v.RetryAfter = call.RetryAfter
		r := classifyCall(call)
		v.AgentFault = r != reason.InternalError
		v.Unknown = r == reason.ServerError && call.Stage == mcpcall.StageCall && call.Written && mayBeExecuted(call.Status)
		v.Moved = call.Status == http.StatusNotFound || call.Status == http.StatusGone || call.Status/100 == 3
		return r, true
	}
	return "", false
}

// mayBeExecuted tells whether a call that got this status (0: a JSON-RPC error) may have been executed all the same.
// The excluded ones say that it was not begun (RFC 9110 §15.5.9, §15.6.4; RFC 8470).
func mayBeExecuted(status int) bool {
	switch status {
	case http.StatusServiceUnavailable, http.StatusRequestTimeout, http.StatusTooEarly:
		return false
	}
	return true
}

// classifyCall follows the table of reference mcp-client §6: what was certainly not executed, what surely was, what
// nobody knows.
func classifyCall(call *mcpcall.CallError) reason.Reason {
	switch s := call.Status; {
	case errors.Is(call.Err, mcpcall.ErrSessionGone):
		return reason.ConnectFailed // neither session was looked at; another machine behind the same address may know the next
	case s == http.StatusUnauthorized, s == http.StatusForbidden:
		return reason.AuthRequired
	case s == http.StatusTooManyRequests:
		return reason.RateLimited
	case outweighsCode(s):
		return reason.ServerError
	}
	switch c := call.Code; {
	case c == 0:
	case c == codeInvalidParams && call.Stage == mcpcall.StageCall:
		return reason.SchemaMismatch // its published schema takes the arguments, the agent does not
	case c == codeInvalidParams, c == codeMethodNotFound, c == codeInvalidRequest, c == codeParse,
		c == codeHeaderMismatch, c == codeMissingCapability, c == codeUnsupportedVersion:
		return reason.BadResponse // refused as it is; it will be the next time too
	case call.Status == 0:
		return reason.ServerError // -32603, and codes that mean nothing reliable: it did answer, and failed
	}
	if call.Status >= 300 {
		return reason.BadResponse
	}
	return classifyUnanswered(call)
}

// classifyUnanswered is a request that no status and no JSON-RPC error answered.
func classifyUnanswered(call *mcpcall.CallError) reason.Reason {
	var input *mcpcall.InputRequiredError
	var large *mcpcall.TooLargeError
	var bad *mcpcall.BadAnswerError
	switch {
	case errors.As(call.Err, &input) && input.Later:
		return reason.RateLimited
	case errors.As(call.Err, &input):
		return reason.BadResponse
	case call.Written:
		return reason.OutcomeUnknown
	case call.Timeout, errors.Is(call.Err, context.DeadlineExceeded):
		return reason.Timeout
	case errors.Is(call.Err, context.Canceled):
		return reason.InternalError // this process gave up, not the agent
	case errors.As(call.Err, &large), errors.As(call.Err, &bad):
		return reason.BadResponse // the handshake or the listing, again and again
	}
	return reason.ConnectFailed
}

// JSON-RPC 2.0 §5.1 and MCP 2026-07-28.
const (
	codeParse              = -32700
	codeInvalidRequest     = -32600
	codeMethodNotFound     = -32601
	codeInvalidParams      = -32602
	codeHeaderMismatch     = -32020
	codeMissingCapability  = -32021
	codeUnsupportedVersion = -32022
)

func classifyStore(err error, _ *Verdict) (reason.Reason, bool) {
	var cipher *secret.DecryptError
	switch {
	case errors.As(err, &cipher):
		return reason.AuthRequired, true // another keyset, or a moved row: storing the credential again mends it
	case errors.Is(err, store.ErrUnreadableJob):
		return reason.InvalidJob, true
	}
	return "", false
}
