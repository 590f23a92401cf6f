package ledger

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestPastJSON: a spooled outcome survives its JSON encoding, with any text in the agent's answer.
func TestPastJSON(t *testing.T) {
	t.Parallel()
	full := SpooledOutcome{Attempt: 3, Epoch: 7, StartedAt: time.Date(2026, 11, 21, 7, 0, 0, 123456000, time.UTC), At: time.Date(2026, 11, 21, 7, 0, 1, 5, time.UTC),
		Outcome: Outcome{Status: outcome.Waiting, Reason: "server_error", Delay: 90 * time.Second, Task: true, Anew: true, Free: true, Called: true, Stage: "call", Error: "it said <503>",
			ToolName: "agent.receiveFeedback", Endpoint: "https://a.example/mcp", FileVerification: "raw", FileSource: "cid", FileDisagrees: []string{"value"},
			Arguments: []byte(`{"a":1}`), Response: []byte(`[]`), Result: []byte(`{"b":"c"}`), Protocol: "2025-06-18", StepMicros: []int32{1, 2}, CallTook: time.Second,
			AgentOK: true, AgentError: "down", ServerInfo: []byte(`{"name":"x"}`), Tools: []byte(`[]`),
			EndpointOfJob: true, Elsewhere: true, FetchFailed: true, SkipDispatch: true, Moved: true, Undecided: true, Rerouted: true, NoTurn: true, Refuted: []int{1}, Registration: &Registration{Name: "A"},
			Gone: &Gone{}}}
	v := reflect.ValueOf(full.Outcome)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Fatalf("the test leaves %s out", v.Type().Field(i).Name)
		}
	}
	heraldtest.Equal(t, "a full outcome from the spool", through(t, full), full)
	short := Outcome{Status: outcome.Delivered, Called: true, Stage: "call", AgentOK: true}
	heraldtest.Equal(t, "a short outcome from the spool", through(t, SpooledOutcome{Outcome: short}).Outcome, short)
	for _, hostile := range []string{"no JSON", "{\"a\": \"\x00\xff\"}", `{"n": 1e999999}`, `{"a": "\u0000\ud800"}`} {
		got := through(t, SpooledOutcome{Outcome: Outcome{Status: outcome.Delivered, Response: []byte(hostile)}})
		if want := KeepSide([]byte(hostile)); string(KeepSide(got.Outcome.Response)) != string(compactJSON(t, want)) {
			t.Errorf("%q became %s, not %s", hostile, got.Outcome.Response, want)
		}
	}
}

func compactJSON(t *testing.T, raw json.RawMessage) []byte {
	t.Helper()
	b, err := json.Marshal(raw)
	heraldtest.Must(t, err)
	return b
}

// through returns p after a round trip through Redis' encoding.
func through(t *testing.T, p SpooledOutcome) (out SpooledOutcome) {
	t.Helper()
	b, err := json.Marshal(p)
	heraldtest.Must(t, err)
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return out
}
