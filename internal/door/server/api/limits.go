package api

import (
	"sync"

	"golang.org/x/time/rate"
)

// slots bounds the concurrent requests of one kind. A token that already holds a slot gets another only while more than
// a quarter of them is free, so that one token cannot use up all slots.
type slots struct {
	mu    sync.Mutex
	total int
	taken int
	held  map[string]int // by the name of the token
}

func newSlots(total int) *slots { return &slots{total: total, held: make(map[string]int)} }

// acquire acquires a slot. It returns false if none is available to this token.
func (s *slots) acquire(name string) (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.total - s.taken
	if free == 0 || s.held[name] > 0 && free <= s.total/4 {
		return nil, false
	}
	s.taken++
	s.held[name]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken--
		if s.held[name]--; s.held[name] == 0 {
			delete(s.held, name)
		}
	}, true
}

// jobsPerSecond bounds the jobs that are parsed for one token, because even refused jobs cost processor time.
const jobsPerSecond = 10_000

// paceOf returns the limiter of a token's jobs.
func (a *API) paceOf(name string) *rate.Limiter {
	found, _ := a.paces.LoadOrStore(name, rate.NewLimiter(jobsPerSecond, jobsPerSecond)) // as many as tokens were used
	return found.(*rate.Limiter)
}
