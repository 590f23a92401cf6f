package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/decode"
)

// maxDemotion is the longest time for which a failing node is asked after the others. A wrong chain id demotes a node
// for this time.
const maxDemotion = time.Minute

// health decides the order in which nodes are asked. The order is that of RPC_URL_<chain>, but a node that failed is
// asked after the others for a while, and a node whose head is old or missing until it has a new one.
type health struct {
	mu      sync.Mutex
	faults  int       // consecutive failed requests
	demoted time.Time // until this time, the node is asked after the others
	behind  bool      // the node's head is old or missing: it is asked after the others until it has a new one
	omitted bool      // the node left out logs: it is asked after the others from then on
	logged  time.Time // when a failure was last logged
	told    bool      // a failure was logged, and the answer after it was not
}

// logPause is the minimum time between two log lines about failures of a node, which may fail every other request.
const logPause = time.Minute

// noteFault demotes the node, for a longer time after each consecutive failure but at least for least. It reports
// whether the failure is to be logged.
func (h *health) noteFault(now time.Time, least time.Duration) (tell bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults++
	h.demoted = now.Add(min(max(time.Second<<min(h.faults-1, 6), least), maxDemotion))
	if h.told || now.Sub(h.logged) < logPause {
		return false
	}
	h.told, h.logged = true, now
	return true
}

// noteHead records whether the node's head is old or missing. Other answers of the node say nothing about that. changed
// is true if this differs from the previous head.
func (h *health) noteHead(behind bool) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = h.behind != behind
	h.behind = behind
	return changed
}

// isBehind reports whether the node's head was old or missing when it was last compared.
func (h *health) isBehind() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.behind
}

// noteAnswer ends a demotion because of failures. It reports whether the answer is to be logged, because a failure was.
func (h *health) noteAnswer() (tell bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	tell = h.told
	h.faults, h.demoted, h.told = 0, time.Time{}, false
	return tell
}

// rank returns the node's rank. Nodes with lower ranks are asked first.
func (h *health) rank(now time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	rank := 0
	if now.Before(h.demoted) {
		rank = h.faults
	}
	if h.behind {
		rank += 1 << 15 // after all failing nodes
	}
	if h.omitted {
		rank += 1 << 16
	}
	return rank
}

// NoteOmission makes a node that left out logs rank after the others from now on.
func (p *Pool) NoteOmission(number int) {
	if number == 0 { // it is not known which node it was
		return
	}
	h := &p.nodes[number-1].health
	h.mu.Lock()
	defer h.mu.Unlock()
	h.omitted = true
}

// orderNodes returns the nodes, healthiest first.
func (p *Pool) orderNodes(now time.Time) []*node {
	if len(p.nodes) == 1 {
		return p.nodes
	}
	type ranked struct {
		*node
		rank int
	}
	list := make([]ranked, len(p.nodes))
	for i, n := range p.nodes {
		list[i] = ranked{n, n.health.rank(now)}
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	nodes := make([]*node, len(list))
	for i, r := range list {
		nodes[i] = r.node
	}
	return nodes
}

// question is one request to a node, which may be a batch. All of its answers come from that node.
type question func(context.Context, nodeConn) error

// askNode asks the healthiest node, within the client's timeout, and the next node if that one does not answer.
// failure is the error that the question returned. err is a typed error, set if no node answered.
func (p *Pool) askNode(ctx context.Context, op string, ask question) (failure, err error) {
	nodes, err := p.awaitNodes(ctx, op)
	if err != nil {
		return nil, err
	}
	var failures []nodeFailure
	for _, n := range nodes {
		failure, err = p.askOne(ctx, n, op, ask)
		trouble := cmp.Or(err, failure)
		if len(p.nodes) == 1 || ctx.Err() != nil || !p.mayOtherAnswer(trouble) {
			return failure, err
		}
		failures = append(failures, nodeFailure{n.number, p.maskFailure(trouble)})
	}
	return nil, p.combineFailures(op, failures)
}

// askOne asks one node. failure and err are as in askNode.
func (p *Pool) askOne(ctx context.Context, n *node, op string, ask question) (failure, err error) {
	if err := n.silence.beginRequest(time.Now(), p.timeout); err != nil {
		return nil, &UnavailableError{ChainID: p.chainID, Op: op,
			Err: fmt.Errorf("the node of RPC_URL_%d: %w", p.chainID, err)}
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	ctx, release := holdBudget(ctx)
	defer release()

	conn, err := n.connect(ctx)
	if err == nil {
		failure = ask(ctx, nodeConn{conn, n})
	}
	if trouble := cmp.Or(err, failure); n.silence.noteOutcome(ctx, trouble) {
		p.noteHealth(n, trouble)
		if n.silence.isSilent() {
			n.dropConns() // the connection may be frozen while a new one would reach the node
		}
	}
	return failure, err
}

// noteHealth updates a node's health after a request. An error message of the node counts as an answer.
func (p *Pool) noteHealth(n *node, err error) {
	var wrong *WrongChainError
	least := time.Duration(0)
	switch {
	case errors.As(err, &wrong):
		least = maxDemotion
	case err != nil && isRateLimit(p.maskFailure(err)):
		n.rest.noteRefusal(time.Now())
		return
	case !p.isFault(err):
		n.rest.noteAnswer()
		if n.health.noteAnswer() && len(p.nodes) > 1 {
			p.log.Info("a node answers again", "chain", p.chainID, "node", n.number)
		}
		return
	}
	n.requireChainID()
	if n.health.noteFault(time.Now(), least) && len(p.nodes) > 1 {
		p.log.Warn("a node does not answer: the others of RPC_URL are asked first", "chain", p.chainID, "node",
			n.number, "error", p.maskFailure(err))
	}
}

// isFault reports whether err is a problem with the node and not its answer.
func (p *Pool) isFault(err error) bool {
	if err == nil {
		return false
	}
	var answered *rpcError
	shown := p.maskFailure(err)
	return !errors.As(shown, &answered) && !IsRangeLimit(shown) && !isRateLimit(shown) && !isDataMissing(err)
}

// isDataMissing reports whether a node does not have data, because it lags or has dropped them.
func isDataMissing(err error) bool {
	return errors.Is(err, ErrOutdated) || errors.Is(err, ErrNoBlock) || errors.Is(err, ErrNoReceipt)
}

// mayOtherAnswer reports whether another node should be asked. It returns false if this node returned the chain's own
// answer, if it refused a range that will be narrowed, or if this process had no room to decode the answer.
func (p *Pool) mayOtherAnswer(err error) bool {
	_, reverted := FindRevert(err)
	var answered *rpcError
	shown := p.maskFailure(err)
	isBusy := errors.Is(err, decode.ErrBusy) && !errors.Is(err, errReading)
	return err != nil && !reverted && !isBusy &&
		(errors.As(shown, &answered) || !IsRangeLimit(shown))
}

// nodeFailure is the reason why one of several nodes returned no answer.
type nodeFailure struct {
	number int
	err    error // masked
}

// nodesError is the error if none of several nodes returned an answer.
type nodesError struct{ failures []nodeFailure }

func (e *nodesError) Error() string {
	texts := make([]string, len(e.failures))
	for i, f := range e.failures {
		texts[i] = fmt.Sprintf("node %d: %v", f.number, f.err)
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the failure that is most likely temporary. A caller may give up for good if all nodes were too slow or
// refuse for good, so such a failure is returned only if there is no other.
func (e *nodesError) Unwrap() error {
	for _, f := range slices.Backward(e.failures) {
		if !errors.Is(f.err, context.DeadlineExceeded) && !IsRefusedForGood(f.err) {
			return f.err
		}
	}
	return e.failures[len(e.failures)-1].err
}

// maskFailure returns the error of a request in a form that can be shown. Typed errors are masked already.
func (p *Pool) maskFailure(err error) error {
	var away *UnavailableError
	var wrong *WrongChainError
	switch {
	case errors.As(err, &away):
		return away.Err
	case errors.As(err, &wrong):
		return wrong
	}
	return maskError(err, p.timeout, p.mask)
}

// combineFailures returns the error for the case that no node answered. It is a *WrongChainError only if all nodes
// serve another chain.
func (p *Pool) combineFailures(op string, failures []nodeFailure) error {
	var wrong *WrongChainError
	for _, f := range failures {
		if !errors.As(f.err, &wrong) {
			return &UnavailableError{ChainID: p.chainID, Op: op, Err: &nodesError{failures}}
		}
	}
	return wrong
}
