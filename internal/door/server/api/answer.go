package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/pgerror"
)

// ErrorAnswer is the body of every response that reports an error.
type ErrorAnswer struct {
	Error server.Problem `json:"error"`
}

// refusal is an error with the HTTP status and the problem to answer.
type refusal struct {
	status int
	server.Problem
}

func (e *refusal) Error() string { return e.Message }

func refuse(status int, code, field, format string, args ...any) error {
	return &refusal{status, server.Problem{Code: code, Message: fmt.Sprintf(format, args...), Field: field}}
}

// answerError answers with the status and the problem for err. It distinguishes invalid requests, missing objects and
// services that do not answer.
func (a *API) answerError(w http.ResponseWriter, r *http.Request, err error) {
	refused := a.describeError(r, err)
	if refused.status == http.StatusServiceUnavailable || refused.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "5")
	}
	server.AnswerProblem(w, refused.status, refused.Problem)
}

// parameterNames replaces the names of a command's options by those of the API's parameters.
var parameterNames = strings.NewReplacer("ended-since", "endedSince")

func (a *API) describeError(r *http.Request, err error) *refusal {
	var known *refusal
	var misuse *operator.MisuseError
	var missing *operator.NotFoundError
	var late *operator.LateError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &misuse):
		return &refusal{http.StatusBadRequest,
			server.Problem{Code: "invalid_request", Field: parameterNames.Replace(misuse.Field),
				Message: parameterNames.Replace(strings.TrimPrefix(misuse.Text, "--"))}}
	case errors.As(err, &missing):
		return &refusal{http.StatusNotFound, server.Problem{Code: "not_found", Message: missing.Text}}
	case errors.As(err, &late), pgerror.Away(err):
		a.Logger.Warn("a request could not be answered", logging.About(logging.Postgres),
			"path", r.URL.Path, "error", err)
		return &refusal{http.StatusServiceUnavailable, server.Problem{Code: "unavailable",
			Message: "the database does not answer: try again"}}
	case r.Context().Err() != nil:
		return &refusal{http.StatusServiceUnavailable,
			server.Problem{Code: "stopped", Message: "the worker is shutting down: try again"}}
	}
	a.Logger.Error("a request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	return &refusal{http.StatusInternalServerError, server.Problem{Code: "internal_error",
		Message: "this failed, and the worker's log says why"}}
}

// request is an HTTP request with its authenticated visitor.
type request struct {
	*http.Request
	w       http.ResponseWriter
	visitor server.Visitor
}

// text returns a query parameter.
func (r *request) text(name string) string { return r.URL.Query().Get(name) }

// readInt parses a query parameter as a whole number that is not negative. Without the parameter it returns fallback.
func (r *request) readInt(name string, fallback int64) (int64, error) {
	s := r.text(name)
	if s == "" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, refuse(http.StatusBadRequest, "invalid_request", name, "%s %.40q is not a whole number", name, s)
	}
	return n, nil
}

// maxBody bounds a request body in bytes, except for jobs.
const maxBody = 64 << 10

// readBody decodes a JSON object into v. An empty body leaves v unchanged.
func (r *request) readBody(v any) error {
	if r.ContentLength == 0 {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "unsupported_media_type", "",
			"send Content-Type: application/json")
	}
	if r.ContentLength > maxBody {
		return errTooLarge(maxBody)
	}
	d := json.NewDecoder(http.MaxBytesReader(r.w, r.Body, maxBody))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil && d.More() {
		err = errors.New("something follows the object")
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return errTooLarge(maxBody)
	}
	if err != nil {
		field := ""
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			field = wrong.Field
		}
		return refuse(http.StatusBadRequest, "invalid_request", field, "the body cannot be read: %v", err)
	}
	return nil
}

func errTooLarge(limit int) error {
	return refuse(http.StatusRequestEntityTooLarge, "too_large", "", "the body is larger than %d bytes", limit)
}
