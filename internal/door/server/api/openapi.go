package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/agentherald/herald/internal/base/buildinfo"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/google/uuid"
)

// writeDocument returns the OpenAPI 3.1 document of the operations. It derives schemas from the Go types of responses.
func writeDocument(operations []operation) ([]byte, error) {
	schemas := &schemaSet{named: map[string]*jsonschema.Schema{}}
	failure := jsonContent(schemas.refer(reflect.TypeFor[ErrorAnswer]()))
	paths := map[string]map[string]any{}
	for _, op := range operations {
		path := strings.ReplaceAll(op.path, "...}", "}")
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		paths[path][strings.ToLower(op.method)] = describeOperation(op, schemas, failure)
	}
	if schemas.err != nil {
		return nil, fmt.Errorf("write the OpenAPI document: %w", schemas.err)
	}
	return json.MarshalIndent(map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{"title": "Herald", "version": buildinfo.Version(),
			"description": "On-chain feedback, delivered to the agents it is about. See docs/reference/api.md."},
		"security": []any{map[string]any{"token": []string{}}},
		"paths":    paths,
		"components": map[string]any{
			"schemas": schemas.named,
			"securitySchemes": map[string]any{"token": map[string]any{"type": "http", "scheme": "bearer",
				"description": "HERALD_API_TOKEN, or a token of `worker api-token create` with the scope " +
					"that the operation names."}},
		},
	}, "", " ")
}

func describeOperation(op operation, schemas *schemaSet, failure map[string]any) map[string]any {
	out := map[string]any{"operationId": op.id, "summary": op.summary,
		"description": "Needs the scope `" + string(op.scope) + "`."}
	var parameters []any
	for _, match := range regexp.MustCompile(`\{(\w+)`).FindAllStringSubmatch(op.path, -1) {
		parameters = append(parameters, map[string]any{"name": match[1], "in": "path", "required": true,
			"schema": map[string]any{"type": "string"}})
	}
	for _, p := range op.query {
		schema := map[string]any{"type": "string"}
		if p.kind != "" {
			schema["type"] = p.kind
		}
		if p.kind == "integer" {
			schema["format"] = "int64"
		}
		if p.repeated {
			schema = map[string]any{"type": "array", "items": schema}
		}
		parameters = append(parameters,
			map[string]any{"name": p.name, "in": "query", "description": p.description, "schema": schema})
	}
	if parameters != nil {
		out["parameters"] = parameters
	}
	switch {
	case op.id == "enqueue":
		out["requestBody"] = map[string]any{"required": true, "content": map[string]any{
			"application/json": map[string]any{"schema": map[string]any{"type": "object",
				"description": "A job: docs/job.schema.json."}},
			"application/x-ndjson": map[string]any{"schema": map[string]any{"type": "string",
				"description": "A job in each line."}}}}
	case op.body != nil:
		out["requestBody"] = map[string]any{"required": false, "content": jsonContent(schemas.referBody(op.body))}
	}

	responses := map[string]any{}
	for status, answer := range op.answers {
		content := jsonContent(schemas.refer(answer))
		if kind := op.mediaType; kind != "" {
			content = map[string]any{kind: map[string]any{"schema": map[string]any{"type": "string"},
				"x-data": schemas.refer(answer)}}
		}
		if op.id == "enqueue" && status == http.StatusOK {
			content["application/x-ndjson"] = map[string]any{"schema": map[string]any{"type": "string"},
				"x-line": schemas.refer(answer)}
		}
		responses[strconv.Itoa(status)] = map[string]any{"description": http.StatusText(status), "content": content}
	}
	for _, status := range append([]int{400, 401, 403, 500, 503}, op.also...) {
		content := failure
		if op.id == "enqueue" && (status == http.StatusConflict || status == http.StatusBadRequest) {
			content = jsonContent(map[string]any{"anyOf": []any{schemas.refer(reflect.TypeFor[JobAnswer]()),
				schemas.refer(reflect.TypeFor[ErrorAnswer]())}})
		}
		if op.failure != nil {
			content = jsonContent(map[string]any{"anyOf": []any{schemas.refer(op.failure),
				schemas.refer(reflect.TypeFor[ErrorAnswer]())}})
		}
		responses[strconv.Itoa(status)] = map[string]any{"description": http.StatusText(status), "content": content}
	}
	out["responses"] = responses
	return out
}

func jsonContent(schema any) map[string]any {
	return map[string]any{"application/json": map[string]any{"schema": schema}}
}

// schemaSet collects a named schema for each type.
type schemaSet struct {
	named map[string]*jsonschema.Schema
	err   error
}

// refer refers to the type of an answer. A newer Herald may add members, which generated clients must not refuse.
func (s *schemaSet) refer(t reflect.Type) map[string]any {
	reference := s.referBody(t)
	walkSchema(s.named[t.Name()], allowMembers)
	return reference
}

// referBody refers to the type of a request's body. Herald refuses its unknown members, except those of a direct call.
func (s *schemaSet) referBody(t reflect.Type) map[string]any {
	if s.named[t.Name()] == nil {
		schema, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: wordSchemas()})
		if err != nil && s.err == nil {
			s.err = err
		}
		walkSchema(schema, widenIntegers)
		s.named[t.Name()] = schema
	}
	return map[string]any{"$ref": "#/components/schemas/" + t.Name()}
}

// walkSchema calls change for s and for all schemas in it.
func walkSchema(s *jsonschema.Schema, change func(*jsonschema.Schema)) {
	if s == nil {
		return
	}
	change(s)
	walkSchema(s.AdditionalProperties, change)
	walkSchema(s.Items, change)
	for _, member := range s.Properties {
		walkSchema(member, change)
	}
}

// allowMembers allows an object to have further members than its Go type.
func allowMembers(s *jsonschema.Schema) {
	if more := s.AdditionalProperties; more != nil && more.Not != nil {
		s.AdditionalProperties = nil
	}
}

// widenIntegers sets the format of integers. Without a format, generators of clients use 32 bits.
func widenIntegers(s *jsonschema.Schema) {
	if s.Type == "integer" || slices.Contains(s.Types, "integer") {
		s.Format = "int64"
	}
}

// wordSchemas returns the schemas of types that their Go kind does not describe.
func wordSchemas() map[reflect.Type]*jsonschema.Schema {
	return map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[uuid.UUID]():       {Type: "string", Format: "uuid"},
		reflect.TypeFor[json.RawMessage](): {Description: "Any JSON."},
		reflect.TypeFor[outcome.Status]():  listWords(operator.AllStatuses()),
		reflect.TypeFor[outcome.Reason]():  listWords(append(outcome.Reasons(), "")),
		reflect.TypeFor[job.Kind]():        listWords(job.DeliveredKinds()),
		reflect.TypeFor[ledger.Verdict](): listWords([]ledger.Verdict{ledger.Accepted, ledger.Known, ledger.Conflict,
			ledger.Refreshed, intake.Refused}),
		reflect.TypeFor[map[outcome.Status]int64](): {Type: "object", Description: "A count for each status.",
			AdditionalProperties: &jsonschema.Schema{Type: "integer"},
			PropertyNames:        listWords(operator.AllStatuses())},
		reflect.TypeFor[policy.Rule](): {Type: "object", Required: []string{"action"},
			Properties: map[string]*jsonschema.Schema{
				"action": listWords([]string{"deliver", "skip"}),
				"when":   {Type: "object", Description: "docs/operator/filters.md"}}},
		reflect.TypeFor[map[outcome.Reason]int](): {Type: "object",
			AdditionalProperties: &jsonschema.Schema{Type: "integer"}},
		reflect.TypeFor[map[outcome.Status]string](): {Type: "object",
			AdditionalProperties: &jsonschema.Schema{Type: "string"}},
	}
}

func listWords[T ~string](words []T) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string"}
	for _, w := range slices.Compact(slices.Sorted(slices.Values(words))) {
		s.Enum = append(s.Enum, string(w))
	}
	return s
}
