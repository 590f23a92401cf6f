package receiver

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Handlers are an agent's functions for the events about it. Register offers the tools of those that are not nil.
//
// A handler returns nil when it has stored the event. Herald then counts it as delivered. If it returns an error,
// Herald calls again, with growing pauses, for about 18 hours. An error of Reject ends the delivery instead. Herald
// waits 30 seconds for an answer, so a handler stores and does the work later. It needs a time limit of its own: until
// it returns, it is not called again for the delivery. A later call of Herald waits for it for 10 seconds at most, and
// is then answered with an error, so that Herald calls again.
//
// Handlers run concurrently. The feedback of one client arrives in the order of FeedbackIndex.
type Handlers struct {
	OnFeedback   func(context.Context, Feedback) error
	OnRevocation func(context.Context, Revocation) error
	OnResponse   func(context.Context, Response) error
	OnValidation func(context.Context, Validation) error
}

// Option changes a setting of Register.
type Option func(*receiver)

// WithStore sets where the ids of processed deliveries are kept. Default: a MemoryStore of DefaultMemory ids.
func WithStore(s Store) Option { return func(r *receiver) { r.once.store = s } }

// WithLogger sets the logger of failed handlers and of samples. Default: slog.Default().
func WithLogger(l *slog.Logger) Option { return func(r *receiver) { r.logger = l } }

// rejection is an error of Reject.
type rejection struct{ reason string }

func (r *rejection) Error() string { return r.reason }

// Reject returns an error with which a handler refuses an event for good: Herald does not send it again. Herald's
// operator can read the reason.
func Reject(reason string) error { return &rejection{reason} }

// The names of the tools.
const (
	ToolFeedback      = "agent.receiveFeedback"
	ToolFeedbackBatch = "agent.receiveFeedbackBatch"
	ToolRevocation    = "agent.receiveRevocation"
	ToolResponse      = "agent.receiveResponse"
	ToolValidation    = "agent.receiveValidation"
)

//go:embed schemas
var schemas embed.FS

// Schema returns the JSON Schema of a tool's arguments. It panics if no tool has that name.
func Schema(tool string) json.RawMessage {
	text, err := schemas.ReadFile("schemas/" + tool + ".schema.json")
	if err != nil {
		panic("receiver: no tool " + tool)
	}
	return text
}

// receiver answers the calls of Herald.
type receiver struct {
	once   once
	logger *slog.Logger
}

// Register adds the tools of the handlers to an MCP server. OnFeedback has two tools: Herald sends up to 50 pieces of
// feedback in one call if many wait.
func Register(s *server.MCPServer, h Handlers, options ...Option) {
	r := &receiver{once: once{running: map[string]*flight{}}, logger: slog.Default()}
	for _, set := range options {
		set(r)
	}
	if r.once.store == nil {
		r.once.store = NewMemoryStore(DefaultMemory)
	}
	addTool(s, r, ToolFeedback, h.OnFeedback)
	addTool(s, r, ToolRevocation, h.OnRevocation)
	addTool(s, r, ToolResponse, h.OnResponse)
	addTool(s, r, ToolValidation, h.OnValidation)
	if h.OnFeedback != nil {
		addBatch(s, r, h.OnFeedback)
	}
}

// addTool adds the tool of a handler, unless the handler is nil.
func addTool[T any, P interface {
	*T
	event() *Event
}](s *server.MCPServer, r *receiver, name string, handle func(context.Context, T) error) {
	if handle == nil {
		return
	}
	check := compileSchema(name)
	s.AddTool(newTool(name), func(ctx context.Context, request mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		arguments, err := decodeArguments[T](check, request)
		if err != nil {
			return mcp.NewToolResultError(err.Error()), nil
		}
		about := P(&arguments).event()
		about.Attempt = describeAttempt(request, about.DeliveryID, 0)
		duplicate, err := r.process(ctx, name, about, func() error { return handle(ctx, arguments) })
		var refused *rejection
		switch {
		case errors.As(err, &refused):
			return mcp.NewToolResultError(refused.reason), nil
		case err != nil: // mcp-go answers with a JSON-RPC error, after which Herald calls again
			return nil, errTryAgain
		}
		return mcp.NewToolResultJSON(map[string]any{
			"acknowledged": true, "duplicate": duplicate, "deliveryId": about.DeliveryID})
	})
}

// errTryAgain is the answer to Herald when a handler failed. The handler's own error may contain secrets.
var errTryAgain = errors.New("the agent cannot store this now; its own log has the cause")

// process calls the handler of a delivery once, logs its failure and turns a panic into one. It calls no handler for
// a sample.
func (r *receiver) process(ctx context.Context, tool string, e *Event, handle func() error) (known bool, err error) {
	if e.Attempt.Probe {
		r.logger.InfoContext(ctx, "acknowledged a sample of Herald's operator; no handler was called", "tool", tool)
		return false, nil
	}
	known, err = r.once.do(ctx, e.DeliveryID, func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		return handle()
	})
	var refused *rejection
	if err != nil && (!known || errors.Is(err, errStillRunning)) && !errors.As(err, &refused) {
		r.logger.ErrorContext(ctx, "a delivery of Herald failed", "tool", tool,
			"deliveryId", e.DeliveryID, "error", err)
	}
	return known, err
}

func newTool(name string) mcp.Tool {
	var about struct{ Description string }
	_ = json.Unmarshal(Schema(name), &about) // a test reads every schema
	return mcp.NewToolWithRawSchema(name, about.Description, Schema(name))
}

// compileSchema panics if the schema is invalid, which a test excludes.
func compileSchema(name string) *jsonschema.Schema {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema(name)))
	if err != nil {
		panic(err)
	}
	url := "https://schema.invalid/" + name
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(url, document); err != nil {
		panic(err)
	}
	return c.MustCompile(url)
}

// decodeArguments returns the arguments of a call, which match the schema.
func decodeArguments[T any](check *jsonschema.Schema, request mcp.CallToolRequest) (arguments T, err error) {
	raw, err := rawArguments(request)
	if err != nil {
		return arguments, err
	}
	return decodeValue[T](check, raw)
}

// rawArguments returns the arguments as they were sent, so that the numbers in a file keep their digits.
func rawArguments(request mcp.CallToolRequest) (json.RawMessage, error) {
	if raw, ok := request.GetRawArguments().(json.RawMessage); ok {
		return raw, nil
	}
	raw, err := json.Marshal(request.GetRawArguments()) // of a client in this process
	if err != nil {
		return nil, fmt.Errorf("the arguments are not JSON: %w", err)
	}
	return raw, nil
}

// plainNumber is the form of the numbers that are validated. The validator calculates with exact numbers: a stranger's
// 1e1000000 would make it panic or take long.
var plainNumber = regexp.MustCompile(`^-?[0-9]{1,60}(?:\.[0-9]{1,60})?(?:[eE][+-]?[0-9]{1,2})?$`)

func decodeValue[T any](check *jsonschema.Schema, raw json.RawMessage) (value T, err error) {
	var members map[string]json.RawMessage
	if err = json.Unmarshal(raw, &members); err != nil {
		return value, fmt.Errorf("the arguments do not match the schema: %w", err)
	}
	for name, text := range members {
		isNumber := text[0] == '-' || text[0] >= '0' && text[0] <= '9'
		if isNumber && name != "fileContent" && !plainNumber.Match(text) {
			return value, fmt.Errorf("the arguments do not match the schema: the number %.100q is too long", name)
		}
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return value, fmt.Errorf("the arguments are not JSON: %w", err)
	}
	if err = check.Validate(document); err != nil {
		_, faults, _ := strings.Cut(err.Error(), "\n") // the first line names the schema
		return value, fmt.Errorf("the arguments do not match the schema: %.2000s", faults)
	}
	if err = json.Unmarshal(raw, &value); err != nil {
		return value, fmt.Errorf("the arguments do not match the schema: %w", err)
	}
	return value, nil
}

// describeAttempt returns the description of a delivery in _meta, which is a list in a batch. It is zero if the caller
// describes no delivery of this id.
func describeAttempt(request mcp.CallToolRequest, deliveryID string, position int) Attempt {
	if request.Params.Meta == nil {
		return Attempt{}
	}
	type description struct {
		ID string
		Attempt
	}
	text, _ := json.Marshal(request.Params.Meta.AdditionalFields["io.agentherald/delivery"]) // it was decoded from JSON
	var list []description
	if json.Unmarshal(text, &list) != nil {
		list = make([]description, 1)
		if json.Unmarshal(text, &list[0]) != nil {
			return Attempt{}
		}
	}
	if position >= len(list) || list[position].ID != deliveryID {
		return Attempt{}
	}
	return list[position].Attempt
}
