package agentauth

import (
	"bytes"
	"fmt"
	"sync"
)

// syncBuffer is what was logged.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("%T: %v", err, err))
	}
	return v
}
