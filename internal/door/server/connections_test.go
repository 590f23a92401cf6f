package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestConnectionBound: beyond the bound, a new connection replaces an idle one, and is closed if none is idle.
func TestConnectionBound(t *testing.T) {
	t.Parallel()
	s := start(t, "127.0.0.1:0", "")
	s.connections.mu.Lock()
	s.connections.max = 3
	s.connections.mu.Unlock()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", s.Addr())
		heraldtest.Must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		heraldtest.Must(t, c.SetDeadline(time.Now().Add(30*time.Second)))
		return c
	}
	count := func() (open, idle int) {
		s.connections.mu.Lock()
		defer s.connections.mu.Unlock()
		return s.connections.open, len(s.connections.idle)
	}
	await := func(wantOpen, wantIdle int) {
		t.Helper()
		heraldtest.AwaitState(t, func() bool {
			open, idle := count()
			return open == wantOpen && idle == wantIdle
		}, func() string { return fmt.Sprint(count()) })
	}
	answers := func(c net.Conn) {
		t.Helper()
		_, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		heraldtest.Must(t, err)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "the answer", res.StatusCode, http.StatusOK)
	}
	for n := range 5 {
		answers(dial())
		await(min(n+1, 3), min(n+1, 3))
	}
	var busy []net.Conn // they have begun a request
	for range 3 {
		c := dial()
		_, err := io.WriteString(c, "GET")
		heraldtest.Must(t, err)
		busy = append(busy, c)
		await(3, 3-len(busy))
	}
	_, err := dial().Read(make([]byte, 1))
	heraldtest.Fails(t, "a connection beyond the bound", err)
	_, err = io.WriteString(busy[0], " /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
	heraldtest.Must(t, err)
	await(3, 1)
	answers(dial())
}
