package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/decode"
)

// maxDemotion is how long a node that keeps failing is asked after the others, at most; a wrong chain id is that long.
const maxDemotion = time.Minute

// health decides which of several nodes is asked first: in the order of RPC_URL_<chain>, but after the others for a
// while when it failed.
type health struct {
	mu      sync.Mutex
	faults  int       // failed requests in a row
	demoted time.Time // until then it is asked after the others
	omitted bool      // it left out logs: it is asked after the others for good
}

// noteOmission has the node asked after the others from now on.
func (h *health) noteOmission() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.omitted = true
}

// noteFault demotes the node, for longer each time. first says that the request before did not fail.
func (h *health) noteFault(now time.Time, least time.Duration) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults++
	h.demoted = now.Add(min(max(time.Second<<min(h.faults-1, 6), least), maxDemotion))
	return h.faults == 1
}

// noteAnswer ends a demotion. after says that the request before failed.
func (h *health) noteAnswer() (after bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	after = h.faults > 0
	h.faults, h.demoted = 0, time.Time{}
	return after
}

// rank orders the nodes: lower is asked first.
func (h *health) rank(now time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	rank := 0
	if now.Before(h.demoted) {
		rank = h.faults
	}
	if h.omitted {
		rank += 1 << 16 // after those that fail
	}
	return rank
}

// orderNodes lists the nodes, healthiest first.
func (c *Client) orderNodes(now time.Time) []*node {
	if len(c.nodes) == 1 {
		return c.nodes
	}
	type ranked struct {
		*node
		rank int
	}
	list := make([]ranked, len(c.nodes))
	for i, n := range c.nodes {
		list[i] = ranked{n, n.health.rank(now)}
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	nodes := make([]*node, len(list))
	for i, r := range list {
		nodes[i] = r.node
	}
	return nodes
}

// question is one request to a node, which may be a batch; all of its answers come from that node.
type question func(context.Context, nodeConn) error

// askNode asks the healthiest node within the client's timeout, and the next one when it does not answer. failure is
// what the question returned; err, a typed error, says why nobody answered it.
func (c *Client) askNode(ctx context.Context, op string, ask question) (failure, err error) {
	nodes, err := c.awaitNodes(ctx, op)
	if err != nil {
		return nil, err
	}
	var failures []nodeFailure
	for _, n := range nodes {
		failure, err = c.askOne(ctx, n, op, ask)
		trouble := err
		if trouble == nil {
			trouble = failure
		}
		if len(c.nodes) == 1 || ctx.Err() != nil || !c.mayOtherAnswer(trouble) {
			return failure, err
		}
		failures = append(failures, nodeFailure{n.number, c.maskFailure(trouble)})
	}
	return nil, c.combineFailures(op, failures)
}

// askOne asks one node.
func (c *Client) askOne(ctx context.Context, n *node, op string, ask question) (failure, err error) {
	probe, err := n.silence.beginRequest(time.Now())
	if err != nil {
		return nil, &UnavailableError{ChainID: c.chainID, Op: op,
			Err: fmt.Errorf("the node of RPC_URL_%d: %w", c.chainID, err)}
	}
	defer n.silence.endProbe(probe)
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	ctx, release := holdBudget(ctx)
	defer release()

	conn, err := n.connect(ctx)
	if errors.Is(err, decode.ErrBusy) {
		return nil, err // which says nothing about the node
	}
	if err != nil {
		n.silence.noteOutcome(ctx, err)
		c.noteHealth(ctx, n, err)
		return nil, err
	}
	failure = ask(ctx, nodeConn{conn, n})
	if errors.Is(failure, decode.ErrBusy) {
		return failure, nil // which says nothing about the node
	}
	n.silence.noteOutcome(ctx, failure)
	c.noteHealth(ctx, n, failure)
	return failure, nil
}

// noteHealth takes the outcome of a request. What the caller gave up, a search that was slow and a refusal that the
// node put into words say nothing about its health.
func (c *Client) noteHealth(ctx context.Context, n *node, err error) {
	var wrong *WrongChainError
	least := time.Duration(0)
	switch {
	case errors.Is(ctx.Err(), context.Canceled), ctx.Value(searchMark{}) != nil && ctx.Err() != nil:
		return
	case errors.As(err, &wrong):
		least = maxDemotion
	case err != nil && isRateLimit(c.maskFailure(err)):
		n.rest.noteRefusal(time.Now())
		return
	case !c.isFault(err):
		n.rest.noteAnswer()
		if n.health.noteAnswer() && len(c.nodes) > 1 {
			c.log.Info("a node answers again", "chain", c.chainID, "node", n.number)
		}
		return
	}
	n.forgetChainID()
	if n.health.noteFault(time.Now(), least) && len(c.nodes) > 1 {
		c.log.Warn("a node does not answer: the others of RPC_URL are asked first", "chain", c.chainID, "node",
			n.number, "error", c.maskFailure(err))
	}
}

// isFault tells trouble with a node from an answer of its own.
func (c *Client) isFault(err error) bool {
	if err == nil {
		return false
	}
	var answered *rpcError
	shown := c.maskFailure(err)
	return !errors.As(shown, &answered) && !isRangeLimit(shown) && !isRateLimit(shown)
}

// mayOtherAnswer tells whether it is worth while to ask another node: not when this one gave the chain's own answer,
// refused a range that is going to be narrowed, or answered while this process had no room to decode it.
func (c *Client) mayOtherAnswer(err error) bool {
	_, reverted := findRevert(err)
	var answered *rpcError
	shown := c.maskFailure(err)
	return err != nil && !reverted && !errors.Is(err, decode.ErrBusy) &&
		(errors.As(shown, &answered) || !isRangeLimit(shown))
}

// nodeFailure is why one of several nodes gave no answer.
type nodeFailure struct {
	number int
	err    error // masked
}

// nodesError is why none of several nodes gave an answer.
type nodesError struct{ failures []nodeFailure }

func (e *nodesError) Error() string {
	texts := make([]string, len(e.failures))
	for i, f := range e.failures {
		texts[i] = fmt.Sprintf("node %d: %v", f.number, f.err)
	}
	return strings.Join(texts, "; ")
}

// Unwrap is the failure that is most likely to pass: who sees that all were too slow may give up for good.
func (e *nodesError) Unwrap() error {
	for _, f := range slices.Backward(e.failures) {
		if !errors.Is(f.err, context.DeadlineExceeded) {
			return f.err
		}
	}
	return e.failures[len(e.failures)-1].err
}

// maskFailure makes an error of a request one that can be shown; typed ones are already.
func (c *Client) maskFailure(err error) error {
	var away *UnavailableError
	var wrong *WrongChainError
	switch {
	case errors.As(err, &away):
		return away.Err
	case errors.As(err, &wrong):
		return wrong
	}
	return maskError(err, c.timeout, c.mask)
}

// combineFailures says that nobody answered. Only if all nodes serve another chain it is that.
func (c *Client) combineFailures(op string, failures []nodeFailure) error {
	var wrong *WrongChainError
	for _, f := range failures {
		if !errors.As(f.err, &wrong) {
			return &UnavailableError{ChainID: c.chainID, Op: op, Err: &nodesError{failures}}
		}
	}
	return wrong
}
