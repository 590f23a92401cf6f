package service

import (
	"maps"
	"sync"
)

// readiness is what /readyz answers from: what the service waits for, by name, and what it works without.
type readiness struct {
	mu       sync.Mutex
	waiting  map[string]string // not ready while there is any
	degraded map[string]string // the rest is served meanwhile: chains that do not answer
}

func newReadiness() *readiness {
	return &readiness{waiting: map[string]string{"start": "the service is starting"}, degraded: map[string]string{}}
}

// setWaiting notes what name is waited for; an empty why means no more.
func (r *readiness) setWaiting(name, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	setOrDelete(r.waiting, name, why)
}

// setDegraded notes why the service works without name; an empty why means that it is there. It tells whether that is
// news.
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
