package api

import "sync"

// slots bound how many requests of a kind are under way. A quarter of them stays free for tokens that hold none, so that
// one token cannot take them all.
type slots struct {
	mu    sync.Mutex
	total int
	taken int
	held  map[string]int // by who carries the token
}

func newSlots(total int) *slots { return &slots{total: total, held: make(map[string]int)} }

// acquire takes a slot; false: there is none for this token now.
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
