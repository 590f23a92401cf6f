package mcpcall

import (
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"go.uber.org/goleak"
)

// TestOneResponseForARequest checks that only the first of several responses to one request reaches mcp-go. Its channel
// holds two; a goroutine that writes the third would block forever. The test is not parallel, because it looks for
// leaked goroutines.
func TestOneResponseForARequest(t *testing.T) {
	before := goleak.IgnoreCurrent()
	srv := httptest.NewServer(&agent{on: answers{"tools/call": func(q *request) {
		message := fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"%%d\"}]}}\n\n", q.id)
		q.events(message+message+message+message, 1, 2, 3, 4)
	}}})
	p := newPool(t)
	for range 3 {
		a := mustCall(t, p, Endpoint{Transport: TransportHTTP, URL: srv.URL}, Request{Tool: "x"})
		heraldtest.Equal(t, "the text", a.Text, "1")
	}
	heraldtest.Must(t, p.Close(heraldtest.Within(t, 30*time.Second)))
	srv.Close()
	var left error
	heraldtest.AwaitState(t, func() bool { left = goleak.Find(before); return left == nil }, func() string { return left.Error() })
}
