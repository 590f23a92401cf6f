package mcpcall

import (
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"testing"
)

// What is remembered of a schema changes nothing: the second call and the hundredth argument are fitted like the first, by several at once.
func TestFitRemembersPlans(t *testing.T) {
	t.Parallel()
	tool := Tool{InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"number"},"s":{"type":"string"},"gone":false},
		"patternProperties":{"^kept":{"type":"integer"}},"required":["s"],"additionalProperties":false}`), schema: &inputSchema{}}
	args := map[string]any{"n": "1.5", "s": nil, "gone": "x"}
	want := map[string]any{"n": json.Number("1.5"), "s": ""}
	for i := range 2 * maxPlans {
		args[fmt.Sprintf("kept%d", i)] = "7"
		args[fmt.Sprintf("dropped%d", i)] = i
		want[fmt.Sprintf("kept%d", i)] = json.Number("7")
	}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 3 {
				got, err := Fit(tool, args)
				if err != nil || !maps.Equal(got, want) {
					t.Errorf("%v %v", got, err)
				}
			}
		})
	}
	callers.Wait()
	if n := len(tool.schema.plans); n != maxPlans {
		t.Errorf("%d properties are remembered, want %d", n, maxPlans)
	}
}

// A walk that was cut short is not remembered.
func TestFitForgetsWhatWasCutShort(t *testing.T) {
	t.Parallel()
	s := &inputSchema{}
	if err := s.prepare(json.RawMessage(`{"properties":{"a":{"type":"string"}}}`)); err != nil {
		t.Fatal(err)
	}
	if s.plan(&fitter{steps: 1}, "a"); len(s.plans) != 0 {
		t.Errorf("%+v", s.plans)
	}
	if p := s.plan(&fitter{steps: maxFitSteps}, "a"); p.types != typeString || len(s.plans) != 1 {
		t.Errorf("%+v, remembered %+v", p, s.plans)
	}
}
