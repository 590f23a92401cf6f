package mcpcall

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/mark3labs/mcp-go/server"
)

// TestTraceparent checks that each of many calls over one client carries its own traceparent, both in _meta and as a
// header. Other messages carry none.
func TestTraceparent(t *testing.T) {
	t.Parallel()
	overHTTP := server.NewStreamableHTTPServer(realTools())
	for name, tt := range map[string]struct {
		agent    http.Handler
		endpoint Endpoint
	}{
		"legacy": {overHTTP, Endpoint{Transport: TransportHTTP}},
		"modern": {overHTTP, Endpoint{Transport: TransportHTTP, ProtocolHint: modernVersion}},
		"sse":    {server.NewSSEServer(realTools()), Endpoint{Transport: TransportSSE}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			got := map[string]bool{} // "<header> <member of _meta>" of each tools/call
			srv := serve(t, reading(tt.agent, func(r *http.Request, body []byte) []byte {
				var message struct {
					Method string
					Params struct {
						Meta map[string]any `json:"_meta"`
					}
				}
				_ = json.Unmarshal(body, &message)
				header, member := r.Header.Get("traceparent"), message.Params.Meta["traceparent"]
				mu.Lock()
				defer mu.Unlock()
				if message.Method == "tools/call" {
					got[fmt.Sprint(header, " ", member)] = true
				} else if header != "" || member != nil {
					t.Errorf("%s %s came with traceparent %q, %v", r.Method, message.Method, header, member)
				}
				return body
			}))
			ep := tt.endpoint
			ep.URL = srv.URL + "/sse"
			p := newPool(t)
			ctx := heraldtest.Within(t, 30*time.Second)
			mustList(t, p, ep)
			const calls = 16
			call := func(traceparent string) {
				_, err := p.Call(ctx, ep, Request{Tool: feedbackTool, Arguments: map[string]any{"value": "1"},
					Meta: map[string]any{"other": true}, Traceparent: traceparent})
				if err != nil {
					t.Error(err)
				}
			}
			call("") // a call without a traceparent
			want := map[string]bool{" <nil>": true}
			var wg sync.WaitGroup
			for i := range calls {
				traceparent := fmt.Sprintf("00-4bf92f3577b34da6a3ce929d0e0e4736-%016x-01", i+1)
				want[traceparent+" "+traceparent] = true
				wg.Go(func() { call(traceparent) })
			}
			wg.Wait()
			mu.Lock()
			defer mu.Unlock()
			heraldtest.Equal(t, "the traceparents of the calls", got, want)
		})
	}
}
