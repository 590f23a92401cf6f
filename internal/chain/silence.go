package chain

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// maxTimeouts is after how many requests in a row that ran out of time a node is taken to be silent.
	maxTimeouts = 3
	// quietTime is how long nothing is asked of a silent node; then one request tries.
	quietTime = 5 * time.Second
)

// errSilent is the answer of a node that is not asked.
var errSilent = errors.New("it did not answer the last requests in time and is asked again in a few seconds")

// silence keeps a node that answers nothing from holding a worker's slots: each request to it would wait for the whole
// timeout.
type silence struct {
	quiet time.Duration // quietTime; tests change it

	mu       sync.Mutex
	timeouts int       // in a row
	until    time.Time // from maxTimeouts on: nothing is asked before
	probing  bool      // one request tries
}

// beginRequest tells whether a request may be made; probe is for endProbe.
func (s *silence) beginRequest(now time.Time) (probe bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.timeouts < maxTimeouts:
		return false, nil
	case s.probing || now.Before(s.until):
		return false, errSilent
	}
	s.probing = true
	return true, nil
}

// endProbe lets another request be the probe.
func (s *silence) endProbe(probe bool) {
	if !probe {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probing = false
}

// searchMark marks the context of a search for logs, which a node may be slow at although it answers all else.
type searchMark struct{}

// noteOutcome takes the outcome of a request. One that the caller gave up says nothing about the node.
func (s *silence) noteOutcome(ctx context.Context, err error) {
	var network interface{ Timeout() bool }
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
	case ctx.Value(searchMark{}) != nil && err != nil: // slow at this says nothing about the node either
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil, errors.As(err, &network) && network.Timeout():
		s.timeouts++
		s.until = time.Now().Add(s.quiet)
	default:
		s.timeouts = 0
	}
}
