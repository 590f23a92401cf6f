package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

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
		if err := json.Unmarshal(raw, &got); err != nil || len(raw) > maxSideBytes || string(KeepSide(raw)) != string(raw) {
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

// TestObserveUnstorableText: observations with text that Postgres cannot store are changed until it can, and cause no
// error.
func TestObserveUnstorableText(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	bad := "a\x00b\xff" + strings.Repeat("é", maxErrorBytes)
	err := s.ObserveAgent(t.Context(), agentNamed("1"), AgentObservation{Endpoint: bad, Protocol: bad, ServerInfo: json.RawMessage("{\"name\": \"\\u0000\"}"),
		Tools: json.RawMessage("no JSON \x00" + strings.Repeat("x", 20<<10)), State: StateFailed, Error: bad})
	heraldtest.Must(t, err)
	r, err := s.AgentRow(t.Context(), agentNamed("1"))
	if err != nil || r.State != StateFailed || len(r.Endpoint) > maxURLBytes || len(r.Protocol) > maxNameBytes || len(r.LastError) > maxErrorBytes ||
		!strings.Contains(string(r.ServerInfo), "\uFFFD") || !strings.Contains(string(r.Tools), `"truncated"`) {
		t.Errorf("%v, %.300s, %s, %.300s", err, r.Endpoint, r.ServerInfo, r.Tools)
	}
}

// TestReleaseEnabledInPages releases more agents, and more deliveries of one agent, than a page contains.
func TestReleaseEnabledInPages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for from := 1; from <= 1100; from += 500 {
		accept(t, s, feedbacks(1, from, min(500, 1101-from))...)
	}
	for agent := 2; agent <= 4; agent++ {
		accept(t, s, feedbacks(agent, 1, 2)...)
	}
	exec(t, s, `UPDATE herald.deliveries SET status = 'held', reason = 'agent_disabled', handed_at = NULL`)
	exec(t, s, `UPDATE herald.agents SET enabled = false, state = 'disabled' WHERE agent_id = 3`)
	n, tasks, err := s.ReleaseEnabled(t.Context(), func(a Agent) bool { return a == agentNamed("4") })
	if n != 1102 || len(toRun(tasks)) != MaxDispatchedPerAgent+2 || err != nil {
		t.Errorf("%d released, %d tasks, %v", n, len(tasks), err)
	}
	if left := value[string](t, s, `SELECT string_agg(DISTINCT agent_id::text, ' ') FROM herald.deliveries WHERE status = 'held'`); left != "3 4" {
		t.Errorf("still held are those of %s", left)
	}
}
