package server

import (
	"net"
	"net/http"
	"sync"
)

// maxConnections bounds the open connections. It exceeds the event streams that a worker serves (api).
const maxConnections = 5000

// connections closes connections of an http.Server beyond max. Without a bound, requests without a token could use up
// the worker's memory and file descriptors, which deliveries need too.
type connections struct {
	max int

	mu   sync.Mutex
	open int
	idle map[net.Conn]bool // open connections that wait for their next request
}

// noteState is the callback http.Server.ConnState. If there are too many connections, it closes an idle one or, if
// none is idle, the new one.
func (c *connections) noteState(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.idle, conn)
	switch state {
	case http.StateIdle:
		c.idle[conn] = true
	case http.StateClosed, http.StateHijacked:
		c.open--
	case http.StateNew:
		if c.open++; c.open <= c.max {
			return
		}
		for other := range c.idle {
			delete(c.idle, other)
			conn = other
			break
		}
		_ = conn.Close() // http.Server then reports StateClosed
	}
}
