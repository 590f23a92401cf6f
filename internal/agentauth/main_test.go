package agentauth

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"
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

func receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(30 * time.Second):
		t.Fatal("not within 30 s: " + what)
		panic("unreachable")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("%T: %v", err, err))
	}
	return v
}
