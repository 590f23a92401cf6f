package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/base/decode"
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
	until    time.Time // no request is sent before, once timeouts is maxTimeouts
}

// beginRequest returns errSilent if no request may be sent. A request to a silent node is a probe: no other one is sent
// until its timeout and another quiet time have passed, or until noteOutcome learns more.
func (s *silence) beginRequest(now time.Time, timeout time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.timeouts < maxTimeouts:
		return nil
	case now.Before(s.until):
		return errSilent
	}
	s.until = now.Add(timeout + s.quiet)
	return nil
}

// searchMark is the context key of MarkSearch.
type searchMark struct{}

// MarkSearch marks the context of a search for logs. A node may be slow at it although it answers everything else.
func MarkSearch(ctx context.Context) context.Context {
	return context.WithValue(ctx, searchMark{}, true)
}

// isSilent reports whether the node is silent.
func (s *silence) isSilent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeouts >= maxTimeouts
}

// noteOutcome records the outcome of a request. It returns false if the outcome says nothing about the node: the caller
// cancelled the request, this process had no room for the answer or closed the connection, or a search was slow.
func (s *silence) noteOutcome(ctx context.Context, err error) (says bool) {
	var network interface{ Timeout() bool }
	late := err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) ||
		errors.As(err, &network) && network.Timeout()
	if errors.Is(err, decode.ErrBusy) || errors.Is(err, rpc.ErrClientQuit) || errors.Is(ctx.Err(), context.Canceled) ||
		late && ctx.Value(searchMark{}) != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timeouts++
	if !late {
		s.timeouts = 0
	}
	s.until = time.Now().Add(s.quiet)
	return true
}
