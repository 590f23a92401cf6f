package service

import (
	"maps"
	"sync"
)

// readiness is what the service is waiting for, by name. Ready when it is empty.
type readiness struct {
	mu      sync.Mutex
	waiting map[string]string
}

func newReadiness() *readiness {
	return &readiness{waiting: map[string]string{"start": "the service is starting"}}
}

// set notes what name is waited for; an empty why means no more.
func (r *readiness) set(name, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if why == "" {
		delete(r.waiting, name)
		return
	}
	r.waiting[name] = why
}

func (r *readiness) get() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.waiting)
}
