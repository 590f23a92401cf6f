package transport

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/text"
)

var (
	// ErrWrongEra: the client was opened for 2026-07-28 and mcp-go wants to fall back to initialize. The pool decides
	// about that.
	ErrWrongEra = errors.New("the agent does not answer server/discover as revision 2026-07-28 says")
	// ErrWrongID: the answer belongs to another request.
	ErrWrongID = errors.New("the answer carries another request's id")
	// ErrResultTaken ends a tools/call, and a tools/list of the older era, in mcp-go's client once the result is
	// recorded: only an error keeps it from reading the result too, from refusing what it does not know, and from
	// repeating the call.
	ErrResultTaken = errors.New("the result was taken")
)

// TooLargeError: the answer was longer than allowed and was not read to its end.
type TooLargeError struct {
	Limit int64  // bytes, or lines for an event
	Unit  string // "bytes", "lines in one event"
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the agent's answer is longer than %d %s", e.Limit, e.Unit)
}

// tooManyTokens refuses JSON that would become too much when mcp-go decodes it.
func tooManyTokens() *TooLargeError {
	return &TooLargeError{Limit: decode.MaxTokens, Unit: fmt.Sprintf("JSON tokens, or %d levels", decode.MaxDepth)}
}

// BadAnswerError: the agent answered with something that is no MCP answer to the request.
type BadAnswerError struct{ Why string }

func (e *BadAnswerError) Error() string { return "the agent's answer is not usable: " + e.Why }

// Safely turns a panic over a stranger's answer into an error.
func Safely(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &BadAnswerError{Why: "reading it failed: " + text.Excerpt(fmt.Sprint(v), 200)}
		}
	}()
	return f()
}

// StartError: the command did not even start.
type StartError struct{ err error }

func (e *StartError) Error() string {
	return "the agent's command does not start: " + withoutPath(e.err)
}
func (e *StartError) Unwrap() error { return e.err }

// withoutPath words an error without the path of the command or of its folder, which may have been filled in with a
// secret.
func withoutPath(err error) string {
	var path *fs.PathError
	var lookup *exec.Error
	switch {
	case errors.As(err, &path) && path.Op == "chdir":
		return "its working directory: " + path.Err.Error()
	case errors.As(err, &path):
		return path.Err.Error()
	case errors.As(err, &lookup):
		return lookup.Err.Error()
	}
	return err.Error()
}
