package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/netguard"
)

const (
	// firstRest is the time for which a node is not asked after it refused too many requests without stating a time.
	// The time doubles with each refusal until the node answers.
	firstRest = time.Second
	// maxRest bounds that time, and the time that a node states with a status of 500 or above. maxStatedRest bounds
	// other stated times.
	maxRest       = 30 * time.Second
	maxStatedRest = time.Hour
	// maxPause is how long a question waits for a node that rests. If the rest is longer, the question fails.
	maxPause = 2 * time.Second
)

var ErrResting = errors.New("it was asked too often")

// rest delays requests to a node that refused too many of them (status 429, Retry-After).
type rest struct {
	mu     sync.Mutex
	until  time.Time // no request is sent before
	inARow int       // refusals since the last answer
}

// noteStated records the wait of a Retry-After header; 0: the answer has none.
func (r *rest) noteStated(now time.Time, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if until := now.Add(min(wait, maxStatedRest)); until.After(r.until) {
		r.until = until
	}
}

// noteRefusal records a refusal because of too many requests. A wait that the node stated takes precedence.
func (r *rest) noteRefusal(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Before(r.until) {
		return
	}
	r.until = now.Add(min(firstRest<<min(r.inARow, 10), maxRest))
	r.inARow++
}

// noteAnswer records an answer.
func (r *rest) noteAnswer() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inARow = 0
}

// remaining returns how long no request may be sent.
func (r *rest) remaining(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.until.Sub(now), 0)
}

// awaitNodes returns the nodes that may be asked, healthiest first. If all nodes rest, it waits for the first one,
// but fails if that takes longer than maxPause.
func (p *Pool) awaitNodes(ctx context.Context, op string) ([]*node, error) {
	for {
		now := time.Now()
		var ready []*node
		shortest := maxStatedRest
		for _, n := range p.orderNodes(now) {
			if wait := n.rest.remaining(now); wait > 0 {
				shortest = min(shortest, wait)
			} else {
				ready = append(ready, n)
			}
		}
		if len(ready) > 0 {
			return ready, nil
		}
		if shortest > maxPause {
			return nil, p.newResting(op, shortest)
		}
		if err := loop.Pause(ctx, shortest); err != nil {
			return nil, p.NewUnavailable(op, err)
		}
	}
}

// newResting returns the error for a request that is not sent because the node rests.
func (l *link) newResting(op string, remaining time.Duration) error {
	return &UnavailableError{ChainID: l.chainID, Op: op, Err: fmt.Errorf(
		"the node of RPC_URL_%d: %w and is asked again in %s", l.chainID, ErrResting, netguard.Seconds(remaining))}
}
