package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/strictjson"
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
	server.AnswerProblem(w, refused.status, refused.Problem)
}

// parameterNames replaces the names of a command's options by those of the API's parameters.
var parameterNames = strings.NewReplacer("ended-since", "endedSince", " --", " ")

func (a *API) describeError(r *http.Request, err error) *refusal {
	var known *refusal
	var misuse *operator.MisuseError
	var missing *operator.NotFoundError
	var overruled *operator.OverruledError
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
	case errors.As(err, &overruled):
		return &refusal{http.StatusConflict, server.Problem{Code: "not_changed", Message: overruled.Text}}
	case errors.As(err, &late), pgerror.Away(err):
		a.Logger.Warn("a request could not be answered", logging.About(logging.Postgres),
			"path", r.URL.Path, "error", err)
		return &refusal{http.StatusServiceUnavailable, server.Problem{Code: "unavailable",
			Message: "the database cannot be used now: try again"}}
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

// readBool parses a query parameter that is true or false. Without the parameter it returns false.
func (r *request) readBool(name string) (bool, error) {
	switch s := r.text(name); s {
	case "true", "false", "":
		return s == "true", nil
	default:
		return false, refuse(http.StatusBadRequest, "invalid_request", name,
			"%s %.40q is neither true nor false", name, s)
	}
}

// readPage parses the parameters of a page of a list.
func (r *request) readPage() (cursor int64, limit int, err error) {
	rows, limitErr := r.readInt("limit", 50)
	cursor, cursorErr := r.readInt("cursor", 0)
	return cursor, int(rows), errors.Join(limitErr, cursorErr)
}

// maxBody bounds a request body in bytes, except for jobs.
const maxBody = 64 << 10

// readBody decodes a JSON object into v. An empty body leaves v unchanged.
func (r *request) readBody(v any) error {
	if r.ContentLength == 0 {
		return nil
	}
	body, err := readJSON(r.w, r.Request, maxBody)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return err
	}
	if err := checkMembers(body); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err = d.Decode(v); err != nil {
		field := ""
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			field = wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:] // without the name of an embedded struct
		}
		return refuse(http.StatusBadRequest, "invalid_request", field, "the body cannot be read: %v", err)
	}
	return nil
}

// checkMembers refuses a body that is not one JSON value, and an object with a member that is given twice or that is
// null or an empty text, as of a variable that a script forgot to set: without that filter, a request would change the
// deliveries of everybody.
func checkMembers(body []byte) error {
	root, fault := strictjson.Parse(body, strictjson.Options{})
	if fault != nil {
		return refuse(http.StatusBadRequest, "invalid_request", fault.Path, "%s %s",
			cmp.Or(fault.Path, "the body"), fault.Problem)
	}
	if o, ok := root.Object(); ok {
		for _, m := range o.Members {
			if m.Data == nil || m.Data == "" {
				return refuse(http.StatusBadRequest, "invalid_request", m.Name, "%s is empty: leave it out", m.Path())
			}
		}
	}
	return nil
}

// readMediaType returns the media type of a request's body. It refuses a compressed body, because Herald decompresses
// none. Its errors are *refusal.
func readMediaType(w http.ResponseWriter, r *http.Request) (string, error) {
	if coding := r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		w.Header().Set("Accept-Encoding", "identity") // RFC 9110, section 15.5.16
		return "", refuse(http.StatusUnsupportedMediaType, "unsupported_media_type", "",
			"the body has Content-Encoding %.40q: send it uncompressed", coding)
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return kind, nil
}

// readJSON reads a body of JSON. It refuses another Content-Type, a compressed body, and a body of more than limit
// bytes, if possible before it reads the body. Its errors are *refusal.
func readJSON(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	kind, err := readMediaType(w, r)
	switch {
	case err != nil:
		return nil, err
	case kind != "application/json":
		return nil, refuse(http.StatusUnsupportedMediaType, "unsupported_media_type", "",
			"send Content-Type: application/json")
	}
	tooLarge := refuse(http.StatusRequestEntityTooLarge, "too_large", "", "the body is larger than %d bytes", limit)
	if r.ContentLength > limit {
		return nil, tooLarge
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "invalid_request", "", "the body could not be read")
	}
	w.Header().Del("Connection") // the whole body was read, so the connection can serve further requests
	return body, nil
}
