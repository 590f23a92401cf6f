package chain

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"
)

// Nodes bound the calls in one request, and most do not say how many they accept. A node's batchLimit starts at
// mostCalls, halves when the node refuses a request as a whole, and grows again slowly.

const (
	// mostCalls bounds the calls in one request. Many providers accept 100 at most.
	mostCalls = 50
	// leastRated is the smallest limit that a rate limit leads to. A reading's larger request has that many calls:
	// a smaller limit would send more requests, and the node would refuse more of them.
	leastRated = 4
	// growAfter is the number of full requests that a node answers before its limit grows.
	growAfter = 64
	// mostDoubts is the number of refusals in a row that a node may answer known sizes with.
	mostDoubts = 8
	// mostRefusalBytes bounds the error object that answers a whole batch.
	mostRefusalBytes = 64 << 10
)

// nodeConn is a connection and its node.
type nodeConn struct {
	*rpc.Client
	node *node
}

// batchLimit is the number of calls that a node accepts in one request. It is safe for concurrent use.
type batchLimit struct {
	mu       sync.Mutex
	size     int // 0: mostCalls
	good     int // the largest number of calls that the node answered since it refused fewer
	doubts   int // refusals of at most good calls in a row
	answered int // requests of size calls that the node answered since the last change
}

// readSize returns the limit.
func (b *batchLimit) readSize() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size == 0 {
		b.size = mostCalls
	}
	return b.size
}

// noteAnswer records that the node answered a request of so many calls. The limit grows by a quarter after growAfter
// requests that reached it.
func (b *batchLimit) noteAnswer(calls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.good, b.doubts = max(b.good, calls), 0
	if b.size == 0 || b.size >= mostCalls || calls < b.size {
		return
	}
	if b.answered++; b.answered >= growAfter {
		b.size, b.answered = min(b.size+max(b.size/4, 1), mostCalls), 0
	}
}

// noteRefusal halves the limit after the node refused a request of so many calls. It keeps the largest number that the
// node is known to accept.
func (b *batchLimit) noteRefusal(calls, least int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.good >= calls {
		b.good = 0
	}
	current := b.size
	if current == 0 {
		current = mostCalls
	}
	b.size, b.answered = min(current, max(calls/2, b.good, least)), 0
}

// isKnownGood reports whether the node answered as many calls before, so that it refuses a call and not their number.
// It assumes so for mostDoubts refusals in a row: the node may have become stricter.
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

// restore sets the limit to an earlier one: the node refuses one call in every request, so it may accept as many
// calls as it refused.
func (b *batchLimit) restore(size, calls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.size, b.good, b.answered = size, max(b.good, calls), 0
}

// callBatch asks one node several things, in as few requests as the node accepts. Each request also asks for the chain
// id: an address that began to serve another chain would otherwise refute every event and look like a reorg of all
// blocks. Errors of single calls stay in the elements.
func (c *Client) callBatch(ctx context.Context, conn nodeConn, elems []rpc.BatchElem) error {
	limit := &conn.node.batch
	before, refused := limit.readSize(), 0
	for left := elems; len(left) > 0; {
		size := limit.readSize()
		part := left[:min(len(left), max(size-1, 1))]
		err := c.callPart(ctx, conn, part, size > 1)
		calls := min(len(part)+1, size)
		switch shown := c.maskFailure(err); {
		case err == nil:
			limit.noteAnswer(calls)
			left = left[len(part):]
			continue
		case isRateLimit(shown):
			limit.noteRefusal(calls, leastRated)
			return err
		case !isBatchRefusal(shown):
			return err
		case size == 1, limit.isKnownGood(calls):
			limit.restore(before, max(refused, calls))
			return err
		}
		refused = max(refused, calls)
		limit.noteRefusal(calls, 1)
		if conn.node.rest.remaining(time.Now()) > 0 {
			return err // the node stated when it wants to be asked again
		}
	}
	return nil
}

// callPart sends one request. Without withID it sends a call and the chain id one after the other, since the node
// refuses batches.
func (c *Client) callPart(ctx context.Context, conn nodeConn, elems []rpc.BatchElem, withID bool) error {
	var id hexutil.Big
	if !withID {
		for i, e := range elems {
			elems[i].Error = conn.CallContext(ctx, e.Result, e.Method, e.Args...)
			if err := elems[i].Error; err != nil && (c.isBatchFailure(err) || !isAnswer(err)) {
				return err
			}
		}
		if err := conn.CallContext(ctx, &id, "eth_chainId"); err != nil {
			return err
		}
		return c.compareChainID(&id)
	}
	asked := append(slices.Clone(elems), rpc.BatchElem{Method: "eth_chainId", Result: &id})
	for i := range asked {
		asked[i].Error = nil // of the node that was asked before
	}
	if err := conn.BatchCallContext(ctx, asked); err != nil {
		return err
	}
	copy(elems, asked)
	for i := range asked {
		if e := asked[i].Error; e != nil && (i == len(elems) || c.isBatchFailure(e)) {
			return e
		}
	}
	return c.compareChainID(&id)
}

// partSize returns the number of calls that every node accepts in one request, the chain id not counted. Callers split
// by it, so that each request has its own deadline.
func (c *Client) partSize() int {
	size := mostCalls
	for _, n := range c.nodes {
		size = min(size, n.batch.readSize())
	}
	return max(size-1, 1)
}

// isAnswer reports whether an error of a single call is the node's answer to it, or an answer that cannot be decoded.
func isAnswer(err error) bool {
	var code rpc.Error
	var kind *json.UnmarshalTypeError
	return errors.As(err, &code) || errors.As(err, &kind) || errors.Is(err, rpc.ErrNoResult)
}

// isBatchRefusal reports whether the node may answer the same calls in smaller requests. err is masked, and failed the
// whole request.
func isBatchRefusal(err error) bool {
	var answered *rpcError
	var status *statusError
	switch {
	case errors.Is(err, rpc.ErrMissingBatchResponse):
		return true
	case errors.As(err, &answered):
		return !isBehind(err) && !containsAny(answered.message, rangeWords)
	case errors.As(err, &status):
		return slices.Contains([]int{http.StatusBadRequest, http.StatusRequestEntityTooLarge}, status.code()) &&
			!containsAny(status.body, rangeWords)
	}
	return false
}

// isBatchFailure reports whether the error of one element fails its whole batch: the answer was cut, or the node was
// asked too often or for blocks that it has not reached. Then another node is asked for the batch.
func (c *Client) isBatchFailure(err error) bool {
	shown := c.maskFailure(err)
	return errors.Is(err, rpc.ErrMissingBatchResponse) || isRateLimit(shown) || isBehind(shown)
}

// batchRefusal is the single error object with which a node answers a whole batch.
type batchRefusal struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *batchRefusal) Error() string  { return e.Message }
func (e *batchRefusal) ErrorCode() int { return e.Code }

// readBatchRefusal looks for a single error object in the answer to a batch. go-ethereum's client would report it as
// JSON of another form and drop the node's words.
func readBatchRefusal(req *http.Request, status int, body []byte) *batchRefusal {
	if status != http.StatusOK || len(body) > mostRefusalBytes || isArray(body) || !isBatch(req) {
		return nil
	}
	var object struct {
		Error *batchRefusal `json:"error"`
	}
	if json.Unmarshal(body, &object) != nil {
		return nil
	}
	return object.Error
}

// isBatch reports whether a request's body is a JSON array.
func isBatch(req *http.Request) bool {
	if req.GetBody == nil {
		return false
	}
	body, err := req.GetBody()
	if err != nil {
		return false
	}
	defer func() { _ = body.Close() }()
	first := make([]byte, 1)
	_, err = io.ReadFull(body, first)
	return err == nil && first[0] == '['
}
