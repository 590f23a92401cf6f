package api_test

import (
	"io"
	"net/http"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
)

// checkAnswer checks an answer against the OpenAPI document.
func (w *world) checkAnswer(res *http.Response, body []byte) {
	w.Helper()
	asked := w.findInDocument(res.Request)
	in := &openapi3filter.ResponseValidationInput{Status: res.StatusCode, Header: res.Header, RequestValidationInput: asked,
		Options: &openapi3filter.Options{IncludeResponseStatus: true}}
	in.SetBodyBytes(body)
	if err := openapi3filter.ValidateResponse(w.Context(), in); err != nil {
		w.Errorf("%s %s %d: the answer is not what the document says: %v\n%s",
			asked.Request.Method, asked.Request.URL.Path, res.StatusCode, err, body)
	}
}

// checkRequest checks against the OpenAPI document the body of a request that was answered with success.
func (w *world) checkRequest(r *http.Request, body string) {
	w.Helper()
	asked := w.findInDocument(r)
	asked.Request.Body = io.NopCloser(strings.NewReader(body))
	if err := openapi3filter.ValidateRequestBody(w.Context(), asked, asked.Route.Operation.RequestBody.Value); err != nil {
		w.Errorf("%s %s: the document does not allow this body: %v\n%s", r.Method, r.URL.Path, err, body)
	}
}

// findInDocument finds a request's operation in the OpenAPI document.
func (w *world) findInDocument(r *http.Request) *openapi3filter.RequestValidationInput {
	w.Helper()
	asked := r.Clone(w.Context())
	asked.URL.Path = documentPath(asked.URL.Path)
	asked.URL.RawPath = ""
	route, params, err := w.router.FindRoute(asked)
	if err != nil {
		w.Fatalf("%s %s is not in the document: %v", asked.Method, asked.URL.Path, err)
	}
	return &openapi3filter.RequestValidationInput{Request: asked, PathParams: params, Route: route}
}

// documentPath replaces the key in a path by one segment. Keys contain slashes, and an OpenAPI path parameter must not.
func documentPath(path string) string {
	if rest, ok := strings.CutPrefix(path, "/v1/deliveries/eip155"); ok && rest != "" {
		return "/v1/deliveries/key"
	}
	return path
}

// bodies are the types of requests, in which the document forbids unknown members. It must not do so for answers,
// because a newer Herald may add some.
var bodies = []string{"CallRequest", "MoveMany", "MoveOne", "Policy"}

// closeObjects forbids the members that a schema does not name, so that no answer of the tests has one. It reports
// whether the schema forbade some already.
func closeObjects(s *openapi3.SchemaRef) (closed bool) {
	if s == nil {
		return false
	}
	more := s.Value.AdditionalProperties
	closed = more.Has != nil && !*more.Has || more.Schema != nil && more.Schema.Value.Not != nil
	if len(s.Value.Properties) > 0 {
		s.Value.AdditionalProperties = openapi3.BoolSchema{Has: new(bool)}
	}
	closed = closeObjects(more.Schema) || closed
	closed = closeObjects(s.Value.Items) || closed
	for _, member := range s.Value.Properties {
		closed = closeObjects(member) || closed
	}
	return closed
}
