package mcpcall

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/mcpcall/arguments"
	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/agentherald/herald/internal/text"
)

// The stages of a CallError.
const (
	StageOpen = "open" // connecting, starting the process, the protocol handshake
	StageList = "list" // tools/list
	StageCall = "call" // tools/call
)

var (
	// ErrClosed: the pool was closed; nothing was sent.
	ErrClosed = errors.New("the pool of MCP clients is closed")
	// ErrBusy: as many clients as the pool may hold are in use; nothing was sent.
	ErrBusy = errors.New("every MCP client of the pool is in use")
	// ErrSessionGone: the agent did not know the session, neither the first nor a new one; nothing was executed.
	// Servers that share no sessions behind one address do this; it is worth trying again. CallError.Status is 0 then,
	// whatever status said it.
	ErrSessionGone = errors.New("the agent does not know its own session")
)

// CallError says how far a request to an agent got and what came back.
//
//	Status 401, 403             refused, not executed: credentials
//	Status 429, 503, RetryAfter refused, not executed: later
//	Status 4xx, 3xx             refused, not executed
//	Status 500, 502, 504        unknown, also Code -32603
//	Code -32602, -32601         no such tool, or arguments the agent refuses: not executed
//	!Written                    nothing of the call was sent or looked at, also with Timeout
//	Written                     anything else: it may have run
//
// errors.As finds *TooLargeError, *RequestTooLargeError, *BadAnswerError, *InputRequiredError and what the dial guard
// refused (netguard.BlockedError).
type CallError struct {
	Stage      string
	Status     int           // the HTTP status when it was not 2xx, else 0
	Code       int           // the JSON-RPC error code, 0 when there was none
	RetryAfter time.Duration // what the agent asked for (at most 24 h) or, for a command that keeps dying, when it is started again; 0: nothing
	Written    bool          // some of the tools/call request may have left this process, and the agent may have looked at it
	Timeout    bool          // the deadline passed; Err says which
	Challenge  []string      // WWW-Authenticate of a 401 or 403, as it came, bounded; what is secret of the endpoint is masked
	Err        error         // never nil; without secrets, addresses of the configured endpoint or unbounded text
}

// Error is one sentence for an operator.
func (e *CallError) Error() string {
	var b strings.Builder
	switch e.Stage {
	case StageOpen:
		b.WriteString("connecting to the agent: ")
	case StageList:
		b.WriteString("listing the agent's tools: ")
	default:
		b.WriteString("calling the agent's tool: ")
	}
	b.WriteString(e.Err.Error())
	if e.RetryAfter > 0 {
		fmt.Fprintf(&b, " (again after %s)", e.RetryAfter.Round(time.Second))
	}
	return b.String()
}

func (e *CallError) Unwrap() error { return e.Err }

// TransportRefusedError: the endpoint is of a kind that is not called, or a command that the operator did not list.
// Nothing was sent or started.
type TransportRefusedError struct {
	Transport string // as named: http, stdio, …
	Why       string // a sentence without secrets
}

func (e *TransportRefusedError) Error() string {
	return fmt.Sprintf("transport %q is refused: %s", text.Excerpt(e.Transport, 40), e.Why)
}

// TooLargeError: the answer was longer than allowed and was not read to its end.
type TooLargeError = transport.TooLargeError

// BadAnswerError: the agent answered with something that is no MCP answer to the request.
type BadAnswerError = transport.BadAnswerError

// RequestTooLargeError: the arguments are longer than Config.MaxRequestBytes. Nothing was sent, and nothing will be.
type RequestTooLargeError struct {
	Size, Limit int // bytes of JSON
}

func (e *RequestTooLargeError) Error() string {
	return fmt.Sprintf("the arguments are %d bytes long, more than the %d that are sent", e.Size, e.Limit)
}

// InputRequiredError: the tool did not run to its end because it wants input from a person or a model (resultType
// "input_required"), which this client cannot give. With Later the agent asked for nothing but patience.
type InputRequiredError struct{ Later bool }

func (e *InputRequiredError) Error() string {
	if e.Later {
		return "the agent asks to be called again later"
	}
	return "the agent's tool wants further input, which a delivery cannot give"
}

// SchemaError is what Fit returns: the arguments do not fit the tool's input schema, or the schema cannot be used.
type SchemaError = arguments.SchemaError

// described is an error with a text of ours, whose cause errors.As still finds.
type described struct {
	text  string
	cause error
}

func (d *described) Error() string { return d.text }
func (d *described) Unwrap() error { return d.cause }

// withoutURL unwraps the *url.Error of net/http, whose text is the whole address: a configured one can hold a token.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
