package ledger

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/storable"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestLatencyBuckets: a recorded latency is counted in the bucket from which quantiles are computed.
func TestLatencyBuckets(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(LatencyBounds[:]) {
		t.Fatal(LatencyBounds)
	}
	for took, want := range map[time.Duration]int{0: -1, -time.Second: -1, 1: 0, 10 * time.Millisecond: 0, 10*time.Millisecond + 1: 1,
		time.Second: 6, time.Minute: 12, time.Minute + 1: 13, math.MaxInt64: 13} {
		o := Outcome{Called: true, CallTook: took}
		if got := o.LatencyBucket(); got != want {
			t.Errorf("%s is in bucket %d, want %d", took, got, want)
		}
		if at := o.LatencyPosition(); (at != nil) != (want >= 0) || at != nil && *at != int32(want)+1 {
			t.Errorf("%s: %v", took, at)
		}
	}
	heraldtest.Equal(t, "the bucket of an outcome without a call", (Outcome{CallTook: time.Second}).LatencyBucket(), -1)
}

func TestToolList(t *testing.T) {
	t.Parallel()
	var many []KnownTool
	for i := range 1000 {
		many = append(many, KnownTool{Name: fmt.Sprint("<tool> \x00\xff ", i, strings.Repeat("x", i)), Schema: i%2 == 0})
	}
	for name, tt := range map[string]struct {
		tools []KnownTool
		want  int
	}{"none": {nil, 0}, "one": {many[:1], 1}, "many": {many, 0}} {
		raw := ToolList(tt.tools)
		var got []KnownTool
		if err := json.Unmarshal(raw, &got); err != nil || len(raw) > storable.MaxSide || string(KeepSide(raw)) != string(raw) {
			t.Fatalf("%s: %v, %d bytes: %.200s", name, err, len(raw), raw)
		}
		if name == "many" && len(got) > 50 && len(got) < 1000 {
			continue
		}
		if len(got) != tt.want {
			t.Errorf("%s: %d of them", name, len(got))
		}
	}
}
