package receiver_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/receiver"
	"github.com/agentherald/herald/receiver/receivertest"
)

// startAgent serves an agent with these handlers until the test ends, and returns its URL.
func startAgent(t testing.TB, h receiver.Handlers, options ...receiver.Option) string {
	t.Helper()
	agent := server.NewMCPServer("agent", "1")
	receiver.Register(agent, h, append([]receiver.Option{receiver.WithLogger(slog.New(slog.DiscardHandler))}, options...)...)
	web := httptest.NewServer(server.NewStreamableHTTPServer(agent))
	t.Cleanup(web.Close)
	return web.URL + "/mcp"
}

// within returns a context for calls, which a test does not expect to take long.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestKindsArrive checks that each handler gets the event that was sent, complete and unchanged.
func TestKindsArrive(t *testing.T) {
	t.Parallel()
	index := uint64(0)
	event := receiver.Event{DeliveryID: "6ba7b810-9dad-51d1-80b4-00c04fd430c8", AgentID: "115792089237316195423570985008687907853269984665640564039457584007913129639935",
		AgentRegistry: "eip155:1:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", ChainID: 1, BlockNumber: 7, Timestamp: 1_770_000_000,
		TransactionHash: "0x" + strings.Repeat("ab", 32), LogIndex: &index, Attempt: receiver.Attempt{Key: "k", Number: 3, Replay: true, Sanitized: true}}
	file := receiver.File{FileContent: json.RawMessage(`{"n":12345678901234567890123}`), FileVerification: "jcs", FileSource: "cid"}
	const address, hash = "0x00000000000000000000000000000000000000bB", "0x0000000000000000000000000000000000000000000000000000000000000002"
	var h receivertest.Herald
	for name, send := range map[string]func(t *testing.T) (receivertest.Answer, error){
		"feedback": func(t *testing.T) (receivertest.Answer, error) {
			score := 0.0
			sent := receiver.Feedback{Event: event, File: file, Score: &score, Value: "0", ValueDecimals: 2, Tag1: "a", Tag2: "b", ClientAddress: address,
				FeedbackIndex: 9, FileURI: "ipfs://x", FileHash: hash, Endpoint: "https://a.example"}
			return h.SendFeedback(within(t), startAgent(t, receiver.Handlers{OnFeedback: expect(t, sent)}), sent)
		},
		"a revocation": func(t *testing.T) (receivertest.Answer, error) {
			sent := receiver.Revocation{Event: event, ClientAddress: address, FeedbackIndex: 9, Reason: "reorg", Retracts: event.DeliveryID}
			return h.SendRevocation(within(t), startAgent(t, receiver.Handlers{OnRevocation: expect(t, sent)}), sent)
		},
		"a response": func(t *testing.T) (receivertest.Answer, error) {
			sent := receiver.Response{Event: event, File: file, ClientAddress: address, FeedbackIndex: 9, Responder: address, ResponseURI: "u", ResponseHash: hash}
			return h.SendResponse(within(t), startAgent(t, receiver.Handlers{OnResponse: expect(t, sent)}), sent)
		},
		"a validation": func(t *testing.T) (receivertest.Answer, error) {
			sent := receiver.Validation{Event: event, File: file, ValidatorAddress: address, Response: 100, Tag: "t", ResponseURI: "u", ResponseHash: hash, RequestHash: hash}
			return h.SendValidation(within(t), startAgent(t, receiver.Handlers{OnValidation: expect(t, sent)}), sent)
		},
		"a bare feedback": func(t *testing.T) (receivertest.Answer, error) {
			return h.SendFeedback(within(t), startAgent(t, receiver.Handlers{OnFeedback: func(_ context.Context, f receiver.Feedback) error {
				if f.LogIndex != nil || f.FileURI != "" || string(f.FileContent) != "null" || *f.Score != 95 || f.Attempt.Number != 1 {
					t.Errorf("got %+v", f)
				}
				return nil
			}}), receiver.Feedback{})
		},
		"a score without a value": func(t *testing.T) (receivertest.Answer, error) {
			score := 0.25
			return h.SendFeedback(within(t), startAgent(t, receiver.Handlers{OnFeedback: func(_ context.Context, f receiver.Feedback) error {
				if f.Value != "25" || f.ValueDecimals != 2 || *f.Score != score {
					t.Errorf("got %+v", f)
				}
				return nil
			}}), receiver.Feedback{Score: &score})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, err := send(t)
			if err != nil || answer.Status != receiver.StatusAccepted || answer.Duplicate {
				t.Errorf("%+v, %v", answer, err)
			}
		})
	}
}

// expect returns a handler that fails the test unless it is called once, with want.
func expect[T any](t *testing.T, want T) func(context.Context, T) error {
	calls := 0
	t.Cleanup(func() {
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
	})
	return func(_ context.Context, got T) error {
		calls++
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
		return nil
	}
}

// TestOfferedTools checks that an agent offers the tools of its handlers only.
func TestOfferedTools(t *testing.T) {
	t.Parallel()
	url := startAgent(t, receiver.Handlers{OnRevocation: func(context.Context, receiver.Revocation) error { return nil }})
	var h receivertest.Herald
	if answer, err := h.SendRevocation(within(t), url, receiver.Revocation{}); err != nil || answer.Status != receiver.StatusAccepted {
		t.Errorf("%+v, %v", answer, err)
	}
	if answer, err := h.SendFeedback(within(t), url, receiver.Feedback{}); err == nil {
		t.Errorf("%+v for a tool that is not offered", answer)
	}
	if answers, err := h.SendBatch(within(t), url, receiver.Feedback{}); err == nil {
		t.Errorf("%+v for a tool that is not offered", answers)
	}
}

// TestHandledOnce checks that a handler that succeeded is not called again for the same delivery, and that one that
// failed is.
func TestHandledOnce(t *testing.T) {
	t.Parallel()
	const id = "5b0e1c1e-9dad-41d1-80b4-00c04fd430c8"
	results := []error{errors.New("postgres://user:hunter2@db is full"), receiver.Reject("not my registry"), nil}
	calls := 0
	url := startAgent(t, receiver.Handlers{OnFeedback: func(context.Context, receiver.Feedback) error {
		calls++
		if calls == 1 {
			panic("hunter2")
		}
		return results[calls-2]
	}})
	for i, want := range []struct {
		status, says string
		duplicate    bool
	}{
		{receiver.StatusRetry, "cannot store this now", false}, // the panic
		{receiver.StatusRetry, "cannot store this now", false},
		{receiver.StatusRejected, "not my registry", false},
		{receiver.StatusAccepted, "", false},
		{receiver.StatusAccepted, "", true},
		{receiver.StatusAccepted, "", true},
	} {
		answer, err := receivertest.SendFeedback(within(t), url, receiver.Feedback{Event: receiver.Event{DeliveryID: id}})
		if err != nil {
			t.Fatal(err)
		}
		if answer.Status != want.status || answer.Duplicate != want.duplicate || !strings.Contains(answer.Error, want.says) {
			t.Errorf("call %d: %+v, want %+v", i, answer, want)
		}
		if strings.Contains(answer.Error, "hunter2") {
			t.Errorf("call %d reveals the cause: %s", i, answer.Error)
		}
	}
	if calls != 4 {
		t.Errorf("%d calls, want 4", calls)
	}
}

// TestRefusedArguments checks that no handler is called with arguments that do not match the schema.
func TestRefusedArguments(t *testing.T) {
	t.Parallel()
	url := startAgent(t, receiver.Handlers{OnFeedback: func(_ context.Context, f receiver.Feedback) error {
		t.Errorf("called with %+v", f)
		return nil
	}})
	for name, f := range map[string]receiver.Feedback{
		"an id that is no UUID":   {Event: receiver.Event{DeliveryID: "d1"}},
		"an unknown verification": {File: receiver.File{FileVerification: "yes"}},
		"another's address":       {ClientAddress: "0xaa"},
		"a value with a point":    {Value: "1.5"},
	} {
		answer, err := receivertest.SendFeedback(within(t), url, f)
		if err != nil || answer.Status != receiver.StatusRejected || !strings.Contains(answer.Error, "do not match the schema") {
			t.Errorf("%s: %+v, %v", name, answer, err)
		}
	}
}

// TestSample checks that a sample of Herald's operator is acknowledged each time, and never handled or remembered.
func TestSample(t *testing.T) {
	t.Parallel()
	calls := 0
	url := startAgent(t, receiver.Handlers{OnFeedback: func(context.Context, receiver.Feedback) error { calls++; return nil }})
	f := receiver.Feedback{Event: receiver.Event{DeliveryID: "70726f62-6500-8000-8000-000000000000"}}
	for _, probe := range []bool{true, true, false} {
		f.Attempt.Probe = probe
		answer, err := receivertest.SendFeedback(within(t), url, f)
		if err != nil || answer.Status != receiver.StatusAccepted || answer.Duplicate {
			t.Errorf("%+v, %v", answer, err)
		}
	}
	if calls != 1 {
		t.Errorf("%d calls, want 1 for the call that is no sample", calls)
	}
}

// brokenStore is a Store whose database is away.
type brokenStore struct{ receiver.Store }

func (brokenStore) Processed(context.Context, string) (bool, error) { return false, errors.New("away") }

// TestStoreAway checks that a delivery is not handled while the store cannot say whether it was processed.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	url := startAgent(t, receiver.Handlers{OnFeedback: func(context.Context, receiver.Feedback) error {
		t.Error("called")
		return nil
	}}, receiver.WithStore(brokenStore{}))
	answer, err := receivertest.SendFeedback(within(t), url, receiver.Feedback{})
	if err != nil || answer.Status != receiver.StatusRetry {
		t.Errorf("%+v, %v", answer, err)
	}
}

// TestBatch checks that each element of a batch has its own answer, in order, and that the later elements of a client
// wait for one that is to be sent again.
func TestBatch(t *testing.T) {
	t.Parallel()
	const other = "0x00000000000000000000000000000000000000bB"
	var order []string
	url := startAgent(t, receiver.Handlers{OnFeedback: func(_ context.Context, f receiver.Feedback) error {
		order = append(order, f.Tag1)
		switch f.Tag1 {
		case "refused":
			return receiver.Reject("not my registry")
		case "full":
			return errors.New("hunter2")
		case "panics":
			panic("hunter2")
		}
		if f.Tag1 != "" && f.Attempt.Number != 2 {
			t.Errorf("%s is attempt %d", f.Tag1, f.Attempt.Number)
		}
		return nil
	}})
	element := func(tag, client, id string) receiver.Feedback {
		return receiver.Feedback{Tag1: tag, ClientAddress: client, Event: receiver.Event{DeliveryID: id, Attempt: receiver.Attempt{Number: 2}}}
	}
	const twice = "5b0e1c1e-9dad-41d1-80b4-00c04fd430c8"
	var h receivertest.Herald
	if _, err := h.SendFeedback(within(t), url, element("once", "", twice)); err != nil {
		t.Fatal(err)
	}
	order = nil
	answers, err := h.SendBatch(within(t), url, element("first", "", ""), element("once", "", twice), element("refused", "", ""), element("invalid", "0xaa", ""),
		element("full", "", ""), element("behind", "", ""), element("panics", other, ""), element("behind", other, ""),
		element("last", "0x00000000000000000000000000000000000000cC", ""))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{receiver.StatusAccepted, receiver.StatusAccepted, receiver.StatusRejected, receiver.StatusRejected, receiver.StatusRetry,
		receiver.StatusRetry, receiver.StatusRetry, receiver.StatusRetry, receiver.StatusAccepted}
	for i, a := range answers {
		if a.Status != want[i] || strings.Contains(a.Error, "hunter2") {
			t.Errorf("element %d: %+v, want %s", i, a, want[i])
		}
	}
	if got := strings.Join(order, " "); got != "first refused full panics last" {
		t.Errorf("handled: %s", got)
	}
	for name, batch := range map[string][]receiver.Feedback{"none": {}, "too many": make([]receiver.Feedback, 51)} {
		if answers, err := h.SendBatch(within(t), url, batch...); err == nil || !strings.Contains(err.Error(), "do not match the schema") {
			t.Errorf("%s: %+v, %v", name, answers, err)
		}
	}
	if answers, err = h.SendBatch(within(t), url, make([]receiver.Feedback, 50)...); err != nil || len(answers) != 50 {
		t.Errorf("%d answers, %v", len(answers), err)
	}
}

// TestTypes checks that each type has the fields of its tool's schema, with fitting kinds, so that no argument is lost.
func TestTypes(t *testing.T) {
	t.Parallel()
	for tool, value := range map[string]any{receiver.ToolFeedback: receiver.Feedback{}, receiver.ToolRevocation: receiver.Revocation{},
		receiver.ToolResponse: receiver.Response{}, receiver.ToolValidation: receiver.Validation{}} {
		var schema struct {
			Title, Description string
			Properties         map[string]struct{ Type any }
		}
		if err := json.Unmarshal(receiver.Schema(tool), &schema); err != nil {
			t.Fatal(err)
		}
		if schema.Title != tool || schema.Description == "" {
			t.Errorf("%s: the schema of %q, described as %q", tool, schema.Title, schema.Description)
		}
		kinds := map[reflect.Kind]string{reflect.String: "string", reflect.Int: "integer", reflect.Int64: "integer", reflect.Uint64: "integer",
			reflect.Float64: "number", reflect.Slice: ""}
		fields := map[string]bool{}
		for _, f := range reflect.VisibleFields(reflect.TypeOf(value)) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous || name == "-" {
				continue
			}
			fields[name] = true
			kind := f.Type.Kind()
			if kind == reflect.Pointer {
				kind = f.Type.Elem().Kind()
			}
			said := schema.Properties[name].Type
			if list, several := said.([]any); several {
				said = list[0] // the other is null
			}
			if said == nil {
				said = ""
			}
			if said != kinds[kind] {
				t.Errorf("%s: %s is a %s, and in the schema a %v", tool, name, kind, said)
			}
		}
		for name := range schema.Properties {
			if !fields[name] {
				t.Errorf("%s has no field for %s", tool, name)
			}
		}
		if len(fields) != len(schema.Properties) {
			t.Errorf("%s has %d fields for %d arguments", tool, len(fields), len(schema.Properties))
		}
	}
}
