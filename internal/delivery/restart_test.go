package delivery

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/agentherald/herald/internal/store"
)

// TestStreamEndsBeforeHandshake: an agent is restarted while it answers the handshake or the list of its tools with an
// event stream. The feedback is delivered after the restart.
func TestStreamEndsBeforeHandshake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker())
	for _, during := range []string{"initialize", "tools/list"} {
		for name, c := range map[string]struct {
			begins string
			end    func()
		}{
			"stream is closed":     {": open\n\n", func() {}},
			"connection is cut":    {": open\n\n", func() { panic(http.ErrAbortHandler) }},
			"stream cannot resume": {"id: 1\nretry: 10\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n", func() {}},
		} {
			t.Run(during+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := w.in(t)
				var restarted atomic.Bool
				a := newAgent(t, func(a *agent) {
					a.on = func(method string, rw http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
						if method != during || restarted.Swap(true) {
							return false
						}
						rw.Header().Set("Content-Type", "text/event-stream")
						_, _ = rw.Write([]byte(c.begins))
						_ = http.NewResponseController(rw).Flush()
						c.end()
						return true
					}
				})
				d := w.until(w.accept(w.feedback(w.register(at(a.URL)))), store.Delivered)
				if d.Attempts != 2 || len(a.received()) != 1 {
					t.Errorf("%d attempts, %d calls", d.Attempts, len(a.received()))
				}
			})
		}
	}
}
