package api_test

import (
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/door/server/api"
)

// TestHostileQuestions: a search for any text is answered, not found, or refused. Postgres accepts neither NUL nor text
// that is not UTF-8.
func TestHostileQuestions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, hostile := range []string{"%00", "%FF", "eip155:%00", "invalid:%FF", strings.Repeat("W", 3000), "%E2%80%AE", "8453:" + strings.Repeat("9", 78)} {
		for _, path := range []string{"/v1/deliveries?key=", "/v1/deliveries?agent=", "/v1/deliveries?client=", "/v1/deliveries?since=", "/v1/deliveries?reason=",
			"/v1/agents?cursor=", "/v1/agents?state=", "/v1/audit?cursor=", "/v1/deliveries/", "/v1/agents/", "/v1/events?lastEventId=", "/deliveries?key=", "/deliveries?agent=",
			"/deliveries/", "/agents/", "/agents?chain=", "/agents?cursor=", "/deliveries/move?action=replay&key=", "/agents/8453:1?registry="} {
			if res := w.send("GET", path+hostile, ownToken, "", nil); res.StatusCode >= 500 {
				t.Errorf("%s%.40s: %d", path, hostile, res.StatusCode)
			}
		}
	}
	call[api.ErrorAnswer](w, 400, "GET", "/v1/deliveries?key=%00", "")
}
