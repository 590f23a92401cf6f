package node

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// maxTimeouts is the number of consecutive timeouts after which a node counts as silent.
	maxTimeouts = 3
	// quietTime is how long no request is sent to a silent node. Then one request probes it.
	quietTime = 5 * time.Second
)

// errSilent is the error for a request that is not sent because the node is silent.
var errSilent = errors.New("it did not answer the last requests in time and is asked again in a few seconds")

// silence keeps a node that answers nothing from occupying a worker's slots: each request to it would wait for the
// whole timeout.
type silence struct {
	quiet time.Duration // quietTime; tests change it

	mu       sync.Mutex
	timeouts int       // consecutive timeouts
	until    time.Time // set from maxTimeouts timeouts on: no request is sent before
	probing  bool      // one request is probing the node
}

// beginRequest returns errSilent if no request may be sent. The caller passes probe to endProbe.
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

// endProbe allows another request to be the probe.
func (s *silence) endProbe(probe bool) {
	if !probe {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probing = false
}

// searchMark is the context key of MarkSearch.
type searchMark struct{}

// MarkSearch marks the context of a search for logs. A node may be slow at it although it answers everything else.
func MarkSearch(ctx context.Context) context.Context {
	return context.WithValue(ctx, searchMark{}, true)
}

// noteOutcome records the outcome of a request. A request that the caller cancelled says nothing about the node.
func (s *silence) noteOutcome(ctx context.Context, err error) {
	var network interface{ Timeout() bool }
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
	case ctx.Value(searchMark{}) != nil && err != nil: // being slow at a search says nothing about the node either
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil, errors.As(err, &network) && network.Timeout():
		s.timeouts++
		s.until = time.Now().Add(s.quiet)
	default:
		s.timeouts = 0
	}
}
