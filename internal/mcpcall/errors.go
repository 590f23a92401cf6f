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

// The values of CallError.Stage.
const (
	StageOpen = "open" // connecting, starting the process, and the protocol handshake
	StageList = "list" // tools/list
	StageCall = "call" // tools/call
)

var (
	// ErrClosed reports that the pool is closed. Nothing was sent.
	ErrClosed = errors.New("the pool of MCP clients is closed")
	// ErrBusy reports that all clients the pool may have are in use. Nothing was sent.
	ErrBusy = errors.New("every MCP client of the pool is in use")
	// ErrSessionGone reports that the agent rejected both the existing session and a new one. Nothing was executed.
	// Servers behind one address that do not share sessions cause it, so a retry can succeed. CallError.Status is 0 in
	// this case, not the status that the agent sent.
	ErrSessionGone = errors.New("the agent does not know its own session")
)

// CallError reports how far a request to an agent got and the answer, if there was one.
//
//	Status 401, 403             refused and not executed because of the credentials
//	Status 429, 503, RetryAfter refused and not executed; retry later
//	Status 4xx, 3xx             refused and not executed
//	Status 500, 502, 504        unknown; also for Code -32603
//	Code -32602, -32601         no such tool, or rejected arguments: not executed
//	!Written                    the call was not sent or not processed, even with Timeout
//	Written                     in all other cases: the tool may have run
//
// errors.As finds *TooLargeError, *RequestTooLargeError, *BadAnswerError, *InputRequiredError and the refusal of the
// dial guard (netguard.BlockedError).
type CallError struct {
	Stage  string
	Status int // the HTTP status if it was not 2xx, else 0
	Code   int // the JSON-RPC error code, 0 if there was none
	// RetryAfter is the delay that the agent requested (at most 24 h), or the delay until a command that keeps exiting
	// is started again; 0: none.
	RetryAfter time.Duration
	Written    bool // part of the tools/call request may have left this process, and the agent may have processed it
	Timeout    bool // the deadline passed; Err names it
	// Challenge holds the WWW-Authenticate headers of a 401 or 403, bounded, with the endpoint's secrets masked.
	Challenge []string
	Err       error // never nil; free of secrets, of configured addresses and of unbounded text
}

// Error returns one sentence for an operator.
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

// TransportRefusedError reports that the endpoint has an unsupported transport or invalid fields, or a command that the
// operator did not list. Nothing was sent or started.
type TransportRefusedError struct {
	Transport string // as given in the endpoint: http, stdio, …
	Why       string // a sentence without secrets
}

func (e *TransportRefusedError) Error() string {
	return fmt.Sprintf("transport %q is refused: %s", text.Excerpt(e.Transport, 40), e.Why)
}

// TooLargeError reports that the answer was longer than allowed and was not read to its end.
type TooLargeError = transport.TooLargeError

// BadAnswerError reports that the agent's answer is not a valid MCP answer to the request.
type BadAnswerError = transport.BadAnswerError

// RequestTooLargeError reports that the arguments are longer than Config.MaxRequestBytes. Nothing was sent; a retry
// fails too.
type RequestTooLargeError struct {
	Size, Limit int // bytes of JSON
}

func (e *RequestTooLargeError) Error() string {
	return fmt.Sprintf("the arguments are %d bytes long, more than the %d that are sent", e.Size, e.Limit)
}

// InputRequiredError reports that the tool did not run to its end because it asked for input from a person or a model
// (resultType "input_required"), which this client cannot provide. Later means that the agent asked no question; the
// call can be repeated later.
type InputRequiredError struct{ Later bool }

func (e *InputRequiredError) Error() string {
	if e.Later {
		return "the agent asks to be called again later"
	}
	return "the agent's tool wants further input, which a delivery cannot give"
}

// SchemaError is the error of Fit: the arguments do not fit the tool's input schema, or the schema is unusable.
type SchemaError = arguments.SchemaError

// described is an error with a text of its own. errors.As and errors.Is still find its cause.
type described struct {
	text  string
	cause error
}

func (d *described) Error() string { return d.text }
func (d *described) Unwrap() error { return d.cause }

// withoutURL unwraps the *url.Error of net/http. Its text contains the full address, which may contain a token.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
