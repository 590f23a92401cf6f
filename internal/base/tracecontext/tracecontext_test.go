package tracecontext

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
)

const caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestParse checks that a traceparent that W3C defines as invalid is refused, and that a valid one is returned
// unchanged.
func TestParse(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		caller:                                  caller,
		strings.TrimSuffix(caller, "01") + "00": strings.TrimSuffix(caller, "01") + "00",
		strings.TrimSuffix(caller, "01") + "ff": caller, // unknown flags are not passed on

		"":                                      "",
		caller + "-00":                          "",
		caller + " ":                            "",
		"01" + caller[2:]:                       "",
		"ff" + caller[2:]:                       "",
		strings.ToUpper(caller):                 "",
		strings.Replace(caller, "4b", "4B", 1):  "",
		strings.TrimSuffix(caller, "01") + "0A": "",
		strings.TrimSuffix(caller, "01") + "0g": "",
		"00-" + strings.Repeat("0", 32) + caller[35:]:             "",
		caller[:36] + strings.Repeat("0", 16) + caller[52:]:       "",
		strings.Replace(caller, "-", "_", 3):                      "",
		"00-4bf92f3577b34da6a3ce929d0e0e47360-0f067aa0ba902b7-01": "",
	} {
		sc, ok := Parse(value)
		got := ""
		if ok {
			got = Format(sc.TraceID(), sc.SpanID(), sc.TraceFlags())
		}
		heraldtest.Equal(t, value, got, want)
		if kept := FromContext(NewContext(context.Background(), value)); kept != want {
			t.Errorf("of %q the context keeps %q, want %q", value, kept, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(caller)
	f.Add("00--------------------------------------------------------")
	f.Fuzz(func(t *testing.T, value string) {
		if sc, ok := Parse(value); ok && (!sc.IsValid() || Format(sc.TraceID(), sc.SpanID(), sc.TraceFlags())[:53] != value[:53]) {
			t.Errorf("%q is read as %v", value, sc)
		}
	})
}

// TestIDsOfDelivery checks that a delivery always has the same trace and root span.
func TestIDsOfDelivery(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("5b0e8f9a-1c2d-5e3f-8a4b-112233445566")
	own := Of(id, "")
	heraldtest.Equal(t, "its own trace", own.TraceID.String(), "8a4b1122334455665b0e8f9a1c2d5e3f")
	heraldtest.Equal(t, "the root of its own trace", own.Root.String(), "8a4b112233445566")
	if same := Of(id, "nonsense"); same.TraceID != own.TraceID || same.Root != own.Root {
		t.Errorf("what is no traceparent changes the trace: %+v", same)
	}
	if odd := Of(id, strings.TrimSuffix(caller, "01")+"0g"); strings.Contains(odd.Unrecorded(), "4bf92f") {
		t.Errorf("a traceparent with invalid flags changes the trace: %+v", odd)
	}
	joined := Of(id, caller)
	heraldtest.Equal(t, "the trace of the caller", joined.TraceID.String(), "4bf92f3577b34da6a3ce929d0e0e4736")
	heraldtest.Equal(t, "the root of the caller's trace", joined.Root, own.Root)
	heraldtest.Equal(t, "the parent without a recording", joined.Unrecorded(), caller)
	first, second := own.Unrecorded(), own.Unrecorded()
	if sc, ok := Parse(first); !ok || sc.TraceID() != own.TraceID || sc.IsSampled() || first == second {
		t.Errorf("unrecorded calls are sent %s and %s", first, second)
	}
	if got := trace.SpanContextFromContext(joined.RootContext()); got.SpanID().String() != "00f067aa0ba902b7" {
		t.Errorf("the root's parent is %v", got)
	}
	if id, span := IDs(own.RootContext()); id != own.TraceID || span != own.Root {
		t.Errorf("the root is to be %s %s", id, span)
	}
}

// TestTracesAreSampledEvenly checks that trace ids are evenly distributed for ratio samplers, which use the last 8
// bytes of the id from the highest bit down.
func TestTracesAreSampledEvenly(t *testing.T) {
	t.Parallel()
	const all = 4000
	chosen := 0
	for i := range all {
		d := Of(uuid.NewSHA1(uuid.NameSpaceURL, binary.AppendUvarint(nil, uint64(i))), "")
		if binary.BigEndian.Uint64(d.TraceID[8:])>>1 < 1<<63/10 {
			chosen++
		}
	}
	if chosen < all/10-120 || chosen > all/10+120 { // six standard deviations
		t.Errorf("a tenth of %d traces is %d", all, chosen)
	}
}
