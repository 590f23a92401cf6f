package trial

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// TestAgentsDoNotHideStrangeCalls: a call that names two deliveries is an error, so that no figure can hide it.
func TestAgentsDoNotHideStrangeCalls(t *testing.T) {
	t.Parallel()
	a, err := StartAgents(1)
	heraldtest.Must(t, err)
	t.Cleanup(a.Close)
	call := fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"agent.receiveFeedback","arguments":{"deliveryId":%q},`+
		`"_meta":{"io.agentherald/delivery":{"id":%q,"attempt":3}}}}`, uuid.New(), uuid.New())
	res, err := http.Post(a.URL(0), "application/json", strings.NewReader(call))
	heraldtest.Must(t, err)
	heraldtest.Must(t, res.Body.Close())
	heraldtest.Equal(t, "the status", res.StatusCode, http.StatusBadRequest)
	_, err = a.Calls()
	heraldtest.Fails(t, "the calls", err, "1 calls cannot be understood")
}
