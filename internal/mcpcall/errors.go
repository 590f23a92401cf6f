package mcpcall

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/mcpcall/arguments"
	"github.com/agentherald/herald/internal/mcpcall/transport"
)

// The values of CallError.Stage.
const (
	StageOpen = "open" // connecting, starting the process, and the protocol handshake
	StageList = "list" // tools/list
	StageCall = "call" // tools/call
)

var (
	// ErrClosed means that the pool is closed. Nothing was sent.
	ErrClosed = errors.New("the pool of MCP clients is closed")
	// ErrBusy means that Config.MaxClients clients are in use. Nothing was sent.
	ErrBusy = errors.New("every MCP client of the pool is in use")
	// ErrSessionGone means that the agent rejected the existing MCP session as unknown, and then a new one too. The
	// tool did not run. Several servers behind one address that do not share sessions cause it, so a retry can succeed.
	// CallError.Status is 0 then, not the status that the agent sent.
	ErrSessionGone = errors.New("the agent does not know its own session")
	// ErrOccupied means that the agent accepts no further session, because another client has one. That client may be
	// another worker. Some agents accept a session again when the other one ends, others when they are restarted.
	ErrOccupied = errors.New("the agent accepts no further session")
)

// CallError is the error of a request to an agent. Its fields state whether the tool can have run:
//
//	Status 401, 403             not run: the agent refused the credentials
//	Status 429, 503, RetryAfter not run: the agent refused the request for now; retry later
//	other Status 3xx, 4xx       not run: the agent refused the request
//	Status 500, 502, 504        unknown; also for Code -32603
//	Code -32602, -32601         not run: there is no such tool, or the agent refused the arguments
//	!Written                    not run, even if Timeout is set
//	Written                     unknown in all other cases
//
// In Err, errors.As finds *TooLargeError, *RequestTooLargeError, *BadAnswerError, *InputRequiredError, and
// *netguard.BlockedError if netguard refused the connection.
type CallError struct {
	Stage  string
	Status int // the HTTP status of the answer if it was not 2xx, otherwise 0
	Code   int // the JSON-RPC error code of the answer, 0 if there was none
	// RetryAfter is the delay that the agent requested (at most 24 h), or the delay until a command that exited soon
	// after its start is started again; 0: none.
	RetryAfter time.Duration
	Written    bool // part of the tools/call request may have left this process, and the agent may have processed it
	Timeout    bool // the deadline passed; Err contains its duration
	// Challenge contains the WWW-Authenticate headers of a 401 or 403, with the endpoint's secrets masked.
	Challenge []string
	Err       error // the cause, never nil; its text is short, without secrets and configured addresses
}

// Error returns a sentence for an operator.
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

// TransportRefusedError is the error for an endpoint with an unsupported transport, with invalid fields, or with a
// command that the operator did not list. Nothing was sent or started.
type TransportRefusedError struct {
	Transport string // as given in the endpoint: http, stdio, …
	Why       string // a sentence without secrets
}

func (e *TransportRefusedError) Error() string {
	return fmt.Sprintf("transport %q is refused: %s", text.Excerpt(e.Transport, 40), e.Why)
}

// TooLargeError is the cause in a CallError if the answer is larger than Config.MaxAnswerBytes. Its rest was not read.
type TooLargeError = transport.TooLargeError

// BadAnswerError is the cause in a CallError if the answer violates MCP.
type BadAnswerError = transport.BadAnswerError

// RequestTooLargeError is the cause in a CallError if the arguments are larger than Config.MaxRequestBytes. Nothing was
// sent.
type RequestTooLargeError struct {
	Size, Limit int // bytes of JSON
}

func (e *RequestTooLargeError) Error() string {
	return fmt.Sprintf("the arguments are %d bytes long, more than the %d that are sent", e.Size, e.Limit)
}

// InputRequiredError is the cause in a CallError if the tool stopped and asked for input from a person or a model
// (resultType "input_required"), which this client cannot provide. Later means that the agent asked no question: it
// only wants to be called again later.
type InputRequiredError struct{ Later bool }

func (e *InputRequiredError) Error() string {
	if e.Later {
		return "the agent asks to be called again later"
	}
	return "the agent's tool wants further input, which a delivery cannot give"
}

// SchemaError is the error of Fit if the arguments do not fit the tool's input schema, or if the schema is unusable.
type SchemaError = arguments.SchemaError

// withoutURL returns the error in a *url.Error of net/http, and any other error unchanged. The text of a *url.Error
// contains the full URL, in which there may be a token.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
