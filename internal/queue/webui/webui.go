// Package webui serves the asynq web UI, read-only. It is separate from package queue because the UI's files would
// double the size of a command that only enqueues.
package webui

import (
	"net/http"

	"github.com/agentherald/herald/internal/queue"
	"github.com/hibiken/asynqmon"
)

// Handler is the HTTP handler of asynq's web UI, read-only. It has no authentication, so its caller must authenticate
// requests.
type Handler struct{ ui *asynqmon.HTTPHandler }

// ServeHTTP serves the web UI, except the page of Prometheus metrics, for which it answers 404.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == h.ui.RootPath()+"/api/metrics" {
		http.NotFound(w, r) // asynqmon would query a Prometheus server that is not configured, and answer 500
		return
	}
	h.ui.ServeHTTP(w, r)
}

// Close closes the web UI's own connections to Redis.
func (h Handler) Close() error { return h.ui.Close() }

// New returns the web UI of q for requests whose path begins with root, such as "/monitor". mask hides the secrets in a
// task's payload that is a whole job (intake.MaskJob).
func New(q *queue.Queue, root string, mask func(body []byte) (shown string, whole bool)) Handler {
	return Handler{asynqmon.New(asynqmon.Options{
		RootPath:     root,
		RedisConnOpt: q.ConnOpt(),
		ReadOnly:     true,
		PayloadFormatter: asynqmon.PayloadFormatterFunc(func(_ string, body []byte) string {
			return queue.FormatPayload(body, mask)
		}),
		ResultFormatter: asynqmon.ResultFormatterFunc(func(_ string, result []byte) string { return string(result) }),
	})}
}

var _ http.Handler = Handler{}
