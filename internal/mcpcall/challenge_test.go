package mcpcall

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

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
			method := map[string]string{StageOpen: "initialize", StageList: "tools/list", StageCall: "tools/call"}[tt.stage]
			if tt.transport == TransportSSE {
				method = http.MethodGet
			}
			ctx, p, ep := dial(t, &agent{on: answers{method: func(q *request) {
				q.w.Header()["Www-Authenticate"] = tt.says
				q.status(tt.status, "no")
			}}})
			ep.Transport, ep.Headers = tt.transport, map[string]secret.Secret{"Authorization": secret.New("Bearer very-secret-token")}
			_, err := p.Call(ctx, ep, Request{Tool: "x"})
			if tt.stage == StageList {
				_, err = p.Tools(ctx, ep, true)
			}
			if e, ok := errors.AsType[*CallError](err); !ok || e.Stage != tt.stage || e.Status != tt.status || !slices.Equal(e.Challenge, tt.want) {
				t.Errorf("%#v", err)
			}
			heraldtest.Lacks(t, "the error", fmt.Sprint(err), "very-secret")
		})
	}
}
