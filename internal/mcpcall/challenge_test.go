package mcpcall

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestChallenge checks that the error of a refused call carries the agent's WWW-Authenticate challenges, at every stage
// and over both transports. They are bounded and masked.
func TestChallenge(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 4<<10)
	for name, tt := range map[string]struct {
		stage     string // the stage at which the agent refuses
		transport string
		status    int
		says      []string
		want      []string
	}{
		"open":            {StageOpen, TransportHTTP, 401, []string{`Bearer resource_metadata="https://a.example/x"`}, []string{`Bearer resource_metadata="https://a.example/x"`}},
		"list":            {StageList, TransportHTTP, 401, []string{`Bearer a="b"`, `Basic realm="c"`}, []string{`Bearer a="b"`, `Basic realm="c"`}},
		"call":            {StageCall, TransportHTTP, 403, []string{`Bearer error="insufficient_scope"`}, []string{`Bearer error="insufficient_scope"`}},
		"event stream":    {StageOpen, TransportSSE, 401, []string{`Bearer a="b"`}, []string{`Bearer a="b"`}},
		"an echo":         {StageCall, TransportHTTP, 401, []string{`Bearer error_description="very-secret-token"`}, []string{`Bearer error_description="******"`}},
		"too many":        {StageCall, TransportHTTP, 401, []string{"A", "B", "C", "D", "E"}, []string{"A", "B", "C", "D"}},
		"too long":        {StageCall, TransportHTTP, 401, []string{"A", long}, []string{"A"}},
		"none":            {StageCall, TransportHTTP, 401, nil, nil},
		"another status":  {StageCall, TransportHTTP, 404, []string{"A"}, nil},
		"another failure": {StageCall, TransportHTTP, 500, []string{"A"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := map[string]string{StageOpen: "initialize", StageList: "tools/list", StageCall: "tools/call"}[tt.stage]
			if tt.transport == TransportSSE {
				at = http.MethodGet
			}
			srv := httptest.NewServer(&agent{on: func(method string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
				if method != at {
					return false
				}
				w.Header()["Www-Authenticate"] = tt.says
				http.Error(w, "no", tt.status)
				return true
			}})
			defer srv.Close()
			p := newPool(t)
			ep := Endpoint{Transport: tt.transport, URL: srv.URL, Headers: map[string]secret.Secret{"Authorization": secret.New("Bearer very-secret-token")}}
			ctx := heraldtest.Within(t, 30*time.Second)
			_, err := p.Call(ctx, ep, Request{Tool: "x"})
			if tt.stage == StageList {
				_, err = p.Tools(ctx, ep, true)
			}
			if e, ok := errors.AsType[*CallError](err); !ok || e.Stage != tt.stage || e.Status != tt.status || !slices.Equal(e.Challenge, tt.want) {
				t.Errorf("%#v", err)
			}
			if err != nil && strings.Contains(err.Error(), "very-secret") {
				t.Error(err)
			}
		})
	}
}
