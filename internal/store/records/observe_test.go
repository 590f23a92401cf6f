package records_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

// TestObserveUnstorableText: observations with text that Postgres cannot store are changed until it can, and cause no
// error.
func TestObserveUnstorableText(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	bad := "a\x00b\xff" + strings.Repeat("é", storable.MaxError)
	err := s.ObserveAgent(t.Context(), storetest.Agent(1), records.AgentObservation{Endpoint: bad, Protocol: bad, ServerInfo: json.RawMessage("{\"name\": \"\\u0000\"}"),
		Tools: json.RawMessage("no JSON \x00" + strings.Repeat("x", 20<<10)), State: records.StateFailed, Error: bad})
	heraldtest.Must(t, err)
	r, err := s.AgentRow(t.Context(), storetest.Agent(1))
	if err != nil || r.State != records.StateFailed || len(r.Endpoint) > storable.MaxURL || len(r.Protocol) > storable.MaxName || len(r.LastError) > storable.MaxError ||
		!strings.Contains(string(r.ServerInfo), "\uFFFD") || !strings.Contains(string(r.Tools), `"truncated"`) {
		t.Errorf("%v, %.300s, %s, %.300s", err, r.Endpoint, r.ServerInfo, r.Tools)
	}
}
