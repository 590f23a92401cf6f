package transport

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/text"
)

var (
	// ErrWrongEra reports that the client was opened for 2026-07-28 but mcp-go would fall back to initialize. The pool
	// decides instead which revision to try next.
	ErrWrongEra = errors.New("the agent does not answer server/discover as revision 2026-07-28 requires")
	// ErrWrongID reports that the answer carries the id of another request.
	ErrWrongID = errors.New("the answer carries another request's id")
	// ErrResultTaken ends a tools/call or tools/list inside mcp-go's client after the result was recorded. Only an
	// error keeps mcp-go from parsing the result too, from rejecting forms that it does not know, from repeating the
	// call, and from keeping the tools.
	ErrResultTaken = errors.New("the result was taken")
)

// TooLargeError reports that the answer was longer than allowed and was not read to its end.
type TooLargeError struct {
	Limit int64  // a number of Unit
	Unit  string // "bytes", "bytes in one event", "lines in one event", …
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the agent's answer is longer than %d %s", e.Limit, e.Unit)
}

// tooManyTokens returns the error for JSON that would use too much memory when mcp-go decodes it.
func tooManyTokens() *TooLargeError {
	return &TooLargeError{Limit: decode.MaxTokens, Unit: fmt.Sprintf("JSON tokens, or %d levels", decode.MaxDepth)}
}

// BadAnswerError reports that the agent's answer is not a valid MCP answer to the request.
type BadAnswerError struct{ Why string }

func (e *BadAnswerError) Error() string { return "the agent's answer is not usable: " + e.Why }

// Safely calls f and returns a panic, which an agent's answer may cause, as an error.
func Safely(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &BadAnswerError{Why: "reading it failed: " + text.Excerpt(fmt.Sprint(v), 200)}
		}
	}()
	return f()
}

// StartError reports that the command could not be started.
type StartError struct{ err error }

func (e *StartError) Error() string {
	return "the agent's command does not start: " + withoutPath(e.err)
}
func (e *StartError) Unwrap() error { return e.err }

// withoutPath returns the text of err without the path of the command or its directory, because the path may contain a
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
