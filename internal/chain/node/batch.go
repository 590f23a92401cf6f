package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"
)

// Nodes limit the number of calls in one request, and most do not state the limit. A node's batchLimit starts at
// MostCalls, halves when the node refuses a whole request, and grows again slowly.

const (
	// MostCalls bounds the calls in one request. Many providers accept at most 100.
	MostCalls = 50
	// leastRated is the smallest value to which a rate limit reduces a batchLimit. It equals the number of calls in
	// the larger of a reading's two requests. A smaller limit would split that request, and the node would refuse
	// more requests.
	leastRated = 4
	// growAfter is the number of full requests that a node must answer before its limit grows.
	growAfter = 64
	// mostDoubts is the number of consecutive refusals of a known good size that are attributed to a call. After more
	// refusals, the size no longer counts as known good.
	mostDoubts = 8
	// mostRefusalBytes bounds the size of an error object that answers a whole batch.
	mostRefusalBytes = 64 << 10
)

// nodeConn is a connection together with its node.
type nodeConn struct {
	*rpc.Client
	node *node
}

// batchLimit is the number of calls that a node accepts in one request. It is safe for concurrent use.
type batchLimit struct {
	mu       sync.Mutex
	size     int // 0 means MostCalls
	good     int // the largest number of calls that the node answered since it last refused a smaller or equal number
	doubts   int // consecutive refusals of requests with at most good calls
	answered int // requests with size calls that the node answered since size last changed
}

// readSize returns the current limit.
func (b *batchLimit) readSize() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size == 0 {
		b.size = MostCalls
	}
	return b.size
}

// noteAnswer records that the node answered a request with the given number of calls. After growAfter such requests
// at the limit, the limit grows by a quarter.
func (b *batchLimit) noteAnswer(calls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.good, b.doubts = max(b.good, calls), 0
	if b.size == 0 || b.size >= MostCalls || calls < b.size {
		return
	}
	if b.answered++; b.answered >= growAfter {
		b.size, b.answered = min(b.size+max(b.size/4, 1), MostCalls), 0
	}
}

// noteRefusal halves the limit after the node refused a request with the given number of calls. The limit does not
// drop below least, nor below the largest number of calls that the node is known to accept.
func (b *batchLimit) noteRefusal(calls, least int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.good >= calls {
		b.good = 0
	}
	current := b.size
	if current == 0 {
		current = MostCalls
	}
	b.size, b.answered = min(current, max(calls/2, b.good, least)), 0
}

// isKnownGood reports whether the node answered a request of this size before, so that it refuses one of the calls
// and not their number. After more than mostDoubts such refusals in a row it returns false, because the node may have
// become stricter.
func (b *batchLimit) isKnownGood(calls int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.good < calls {
		return false
	}
	if b.doubts++; b.doubts > mostDoubts {
		b.good, b.doubts = 0, 0
		return false
	}
	return true
}

// restoreSize sets the limit back to size. The node refused a single call in every request, so it may accept requests
// with the given number of calls.
func (b *batchLimit) restoreSize(size, calls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.size, b.good, b.answered = size, max(b.good, calls), 0
}

// callBatch sends elems to one node, in as few requests as the node accepts. Each request also asks for the chain id:
// if an address began to serve another chain, that chain would otherwise refute every event and look like a reorg of
// all blocks. The errors of single calls are stored in the elements.
func (p *Pool) callBatch(ctx context.Context, conn nodeConn, elems []rpc.BatchElem) error {
	limit := &conn.node.batch
	before, refused := limit.readSize(), 0
	for left := elems; len(left) > 0; {
		size := limit.readSize()
		part := left[:min(len(left), max(size-1, 1))]
		err := p.callPart(ctx, conn, part, size > 1)
		calls := min(len(part)+1, size)
		switch shown := p.maskFailure(err); {
		case err == nil:
			limit.noteAnswer(calls)
			left = left[len(part):]
			continue
		case isRateLimit(shown):
			limit.noteRefusal(calls, leastRated)
			return err
		case !isBatchRefusal(shown):
			return err
		case size == 1, !namesBatch(shown) && limit.isKnownGood(calls):
			limit.restoreSize(before, max(refused, calls))
			return err
		}
		refused = max(refused, calls)
		limit.noteRefusal(calls, 1)
		if conn.node.rest.remaining(time.Now()) > 0 {
			return err // the node stated when it accepts requests again
		}
	}
	return nil
}

// callPart sends one request. If withID is false, the node refuses batches, and callPart sends a single call and then
// a request for the chain id.
func (p *Pool) callPart(ctx context.Context, conn nodeConn, elems []rpc.BatchElem, withID bool) error {
	var id hexutil.Big
	if !withID {
		for i, e := range elems {
			elems[i].Error = conn.CallContext(ctx, e.Result, e.Method, e.Args...)
			if err := elems[i].Error; err != nil && (p.isBatchFailure(err) || !isAnswer(err)) {
				return err
			}
			if err := checkBlock(elems[i]); err != nil {
				return err
			}
		}
		if err := conn.CallContext(ctx, &id, "eth_chainId"); err != nil {
			return err
		}
		return p.compareChainID(&id)
	}
	asked := append(slices.Clone(elems), rpc.BatchElem{Method: "eth_chainId", Result: &id})
	for i := range asked {
		asked[i].Error = nil // removes the error of a node that was asked before
	}
	if err := conn.BatchCallContext(ctx, asked); err != nil {
		return err
	}
	copy(elems, asked)
	for i := range asked {
		if e := asked[i].Error; e != nil && (i == len(elems) || p.isBatchFailure(e)) {
			return e
		}
		if err := checkBlock(asked[i]); err != nil {
			return err
		}
	}
	return p.compareChainID(&id)
}

// PartSize returns the number of calls that every node accepts in one request, without the call for the chain id.
// Callers split their calls into parts of this size, so that each request has its own deadline.
func (p *Pool) PartSize() int {
	size := MostCalls
	for _, n := range p.nodes {
		size = min(size, n.batch.readSize())
	}
	return max(size-1, 1)
}

// isAnswer reports whether the error of a single call is the node's answer to that call, or an answer that cannot be
// decoded.
func isAnswer(err error) bool {
	var code rpc.Error
	var kind *json.UnmarshalTypeError
	return errors.As(err, &code) || errors.As(err, &kind) || errors.Is(err, rpc.ErrNoResult)
}

// isBatchRefusal reports whether the node may answer the same calls in smaller requests. err must be masked and must
// be the error of the whole request.
func isBatchRefusal(err error) bool {
	var answered *rpcError
	var status *statusError
	switch {
	case errors.Is(err, rpc.ErrMissingBatchResponse):
		return true
	case errors.As(err, &answered):
		return !isBehind(err) && !containsAny(answered.message, rangeWords)
	case errors.As(err, &status):
		isStatus := slices.Contains([]int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, status.code)
		return (isStatus || namesBatch(err)) && !containsAny(status.body, rangeWords)
	}
	return false
}

// namesBatch reports whether a refusal names the batch: then the node refuses the number of calls, and not one of them.
// dRPC and 1RPC do this with the status 500.
func namesBatch(err error) bool {
	var answered *rpcError
	var status *statusError
	words := []string{"batch"}
	return errors.As(err, &answered) && containsAny(answered.message, words) ||
		errors.As(err, &status) && containsAny(status.body, words)
}

// isBatchFailure reports whether the error of one element fails its whole batch. This is the case if the answer was
// cut, if the node limits the rate, or if it has not reached the requested blocks. The caller then sends the batch to
// another node.
func (p *Pool) isBatchFailure(err error) bool {
	shown := p.maskFailure(err)
	return errors.Is(err, rpc.ErrMissingBatchResponse) || isRateLimit(shown) || isBehind(shown)
}

// batchRefusal is the single error object with which a node answers a whole batch.
type batchRefusal struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *batchRefusal) Error() string  { return e.Message }
func (e *batchRefusal) ErrorCode() int { return e.Code }

// readBatchRefusal returns the error in the single object that answers a batch, or nil if the answer is no object.
// Objects of other forms than JSON-RPC's are errors too. go-ethereum's client would report a JSON type error instead
// and drop the node's message.
func readBatchRefusal(req *http.Request, status int, body []byte) *batchRefusal {
	if status != http.StatusOK || len(body) > mostRefusalBytes || isArray(body) {
		return nil
	}
	if text, err := readRequest(req); err != nil || !isArray(text) {
		return nil
	}
	var object struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &object) != nil {
		return nil
	}
	var refusal batchRefusal
	if json.Unmarshal(object.Error, &refusal) != nil || refusal.Message == "" {
		refusal.Message = string(body) // maskError shortens it
	}
	return &refusal
}
