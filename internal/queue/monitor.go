package queue

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/google/uuid"
	"github.com/hibiken/asynqmon"
)

// Monitor is the asynq web UI, read-only. It has no authentication: the caller has to add it. Close ends its Redis
// connections.
type Monitor struct{ ui *asynqmon.HTTPHandler }

// ServeHTTP implements http.Handler.
func (m Monitor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == m.ui.RootPath()+"/api/metrics" {
		http.NotFound(w, r) // asynqmon would query a Prometheus server that is not configured, and answer 500
		return
	}
	m.ui.ServeHTTP(w, r)
}

// Close closes the Redis connections.
func (m Monitor) Close() error { return m.ui.Close() }

// Monitor returns the web UI for requests whose path begins with root, such as "/monitor".
func (q *Queue) Monitor(root string) Monitor {
	return Monitor{asynqmon.New(asynqmon.Options{
		RootPath:     root,
		RedisConnOpt: q.opt,
		ReadOnly:     true,
		// A payload that Herald did not write may be a whole job, whose headers are secret.
		PayloadFormatter: asynqmon.PayloadFormatterFunc(func(_ string, body []byte) string {
			var p payload
			if err := json.Unmarshal(body, &p); err != nil || p.DeliveryID == uuid.Nil {
				return fmt.Sprintf("a whole job, %d bytes", len(body))
			}
			return fmt.Sprintf(`{"deliveryId": %q, "n": %d}`, p.DeliveryID, p.N)
		}),
		ResultFormatter: asynqmon.ResultFormatterFunc(func(_ string, result []byte) string {
			return string(result)
		}),
	})}
}

var _ http.Handler = Monitor{}
