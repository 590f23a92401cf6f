package app

import (
	"maps"
	"sync"
)

// readiness is the state behind /readyz: the parts that the worker waits for, and those that it works without.
type readiness struct {
	mu       sync.Mutex
	waiting  map[string]string // by name; not ready while it has an entry
	degraded map[string]string // by name; the worker serves the rest, as when a chain does not answer
}

func newReadiness() *readiness {
	return &readiness{waiting: map[string]string{"start": "the service is starting"}, degraded: map[string]string{}}
}

// setWaiting stores why the worker waits for name. An empty why ends the wait.
func (r *readiness) setWaiting(name, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	setOrDelete(r.waiting, name, why)
}

// setDegraded stores why the worker works without name. An empty why means that name is available again. It reports
// whether the availability changed.
func (r *readiness) setDegraded(name, why string) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = (r.degraded[name] == "") != (why == "")
	setOrDelete(r.degraded, name, why)
	return changed
}

func setOrDelete(m map[string]string, name, why string) {
	if why == "" {
		delete(m, name)
		return
	}
	m[name] = why
}

func (r *readiness) readState() (waiting, degraded map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.waiting), maps.Clone(r.degraded)
}
