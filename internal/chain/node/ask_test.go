package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestFailover: the second node answers requests that the first one fails. It stays preferred until the first one had
// time to recover.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, spoil := range chaintest.Failures() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
			first.Set(spoil, nil)
			c := newStubPool(t, first, second)
			head, err := c.ReadHead(t.Context())
			heraldtest.Must(t, err)
			heraldtest.Equal(t, "the hash", head.Hash, second.Hash(9))

			until := c.nodes[0].health.demoted
			if got := c.orderNodes(until.Add(-time.Nanosecond)); got[0].number != 2 || got[1].number != 1 {
				t.Error("the node that failed is not demoted")
			}
			heraldtest.Equal(t, "the first node after the demotion", c.orderNodes(until)[0].number, 1)

			first.Set(nil, nil)
			if _, err := c.askOne(t.Context(), c.nodes[0], "asking", func(ctx context.Context, conn nodeConn) error {
				return conn.CallContext(ctx, new(any), "eth_getLogs")
			}); err != nil {
				t.Fatal(err)
			}
			if got := c.orderNodes(until.Add(-time.Nanosecond)); got[0].number != 1 {
				t.Error("the node is not first although it answers again")
			}
		})
	}
}

// TestFlappingNodeIsLoggedSeldom: a node that fails every other request is logged once a minute, and a lasting failure too.
func TestFlappingNodeIsLoggedSeldom(t *testing.T) {
	t.Parallel()
	var h health
	now, lines := time.Now(), 0
	for range 300 { // ten minutes
		if h.noteFault(now, 0) {
			lines++
		}
		if h.noteAnswer() {
			lines++
		}
		now = now.Add(2 * time.Second)
	}
	heraldtest.Equal(t, "lines in ten minutes", lines, 20)
	h.noteFault(now, 0)
	h.noteAnswer()
	lines = 0
	for range 300 {
		if h.noteFault(now, 0) {
			lines++
		}
		now = now.Add(2 * time.Second)
	}
	heraldtest.Equal(t, "lines about a lasting failure", lines, 1)
	heraldtest.Equal(t, "its end is logged", h.noteAnswer(), true)
}

// TestFailedConnectionReadsChainIDAgain: after a failed connection the address may lead to another node, so the
// client asks for the chain id again.
func TestFailedConnectionReadsChainIDAgain(t *testing.T) {
	t.Parallel()
	n := chaintest.NewNode(t, 1)
	c := newStubPool(t, n)
	_, err := c.ReadHead(t.Context())
	heraldtest.Must(t, err)
	n.Set(chaintest.Failures()["503"], nil)
	if _, err := c.ReadHead(t.Context()); err == nil {
		t.Fatal("the node did not fail")
	}
	n.Set(nil, chaintest.AnswerTo("eth_chainId", "0x2", nil))
	var wrong *WrongChainError
	if _, err := c.ReadHead(t.Context()); !errors.As(err, &wrong) || wrong.Got != 2 {
		t.Errorf("%v", err)
	}
	if asked := n.Requests(); len(asked) > 0 {
		t.Errorf("a node of another chain was asked %v", asked)
	}
}

// logsCall is a call whose result the tests ignore.
var logsCall = rpc.BatchElem{Method: "eth_getLogs", Args: []any{}, Result: new(any)}

// TestNodeSwitchesChain: an address starts to serve another chain without any failed request. The client rejects its
// answers; otherwise every block would look replaced and every event refuted.
func TestNodeSwitchesChain(t *testing.T) {
	t.Parallel()
	first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
	alone, both := newStubPool(t, first), newStubPool(t, first, second)
	other := chaintest.AnswerTo("eth_chainId", "0x2", nil)
	for _, c := range []*Pool{alone, both} {
		if head, err := c.ReadHead(t.Context()); err != nil || head.Hash != first.Hash(9) {
			t.Fatalf("%v, %v", head, err)
		}
	}
	first.Set(nil, other)
	var wrong *WrongChainError
	if head, err := alone.ReadHead(t.Context()); !errors.As(err, &wrong) || wrong.Got != 2 {
		t.Errorf("%v, %v", head, err)
	}
	if _, err := alone.SendAll(t.Context(), "asking", logsCall); !errors.As(err, &wrong) {
		t.Errorf("%v", err)
	}
	if b, err := alone.ReadTagged(t.Context(), Finalized); !errors.As(err, &wrong) {
		t.Errorf("%v, %v", b, err)
	}
	if head, err := both.ReadHead(t.Context()); err != nil || head.Hash != second.Hash(9) {
		t.Errorf("%v, %v", head, err)
	}
	first.Set(nil, nil)
	if head, err := alone.ReadHead(t.Context()); err != nil || head.Hash != first.Hash(9) {
		t.Errorf("back on the right chain: %v, %v", head, err)
	}
}

// TestBatchStaysOnOneNode: all answers to a batch come from one node. If a node fails, the partial answers that it gave
// before are discarded.
func TestBatchStaysOnOneNode(t *testing.T) {
	t.Parallel()
	first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
	first.Set(nil, func(method string, params []json.RawMessage) (any, any) {
		if method == "eth_getBlockByNumber" && string(params[0]) == `"0x3"` {
			return nil, chaintest.Error{Code: -32000, Message: "unknown block"}
		}
		return nil, nil
	})
	c := newStubPool(t, first, second)
	read := func() (a, b *Block, errs [2]error) {
		t.Helper()
		elems := []rpc.BatchElem{
			{Method: "eth_getBlockByNumber", Args: []any{"0x2", false}, Result: &a},
			{Method: "eth_getBlockByNumber", Args: []any{"0x3", false}, Result: &b},
		}
		_, err := c.SendBatch(t.Context(), "asking", elems)
		heraldtest.Must(t, err)
		return a, b, [2]error{elems[0].Error, elems[1].Error}
	}
	if a, b, errs := read(); a == nil || a.Hash != first.Hash(2) || b != nil || errs[0] != nil || errs[1] == nil {
		t.Errorf("of the first node: %v, %v, %v", a, b, errs)
	}
	first.Set(chaintest.Failures()["503"], nil)
	if a, b, errs := read(); a.Hash != second.Hash(2) || b.Hash != second.Hash(3) || errs != [2]error{} {
		t.Errorf("of the second node: %v, %v, %v", a, b, errs)
	}
	if asked := second.Requests(); len(asked) != 1 || len(asked[0]) != 3 { // chain id and two blocks
		t.Errorf("the second node was asked %v", asked)
	}
}

// TestInabilityFailsOver: a call that a node does not support, or whose data it has pruned, or that it refuses with an
// error of its own, is sent to the next node. This does not demote the node. The refusal is returned only if the last node
// refuses too.
func TestInabilityFailsOver(t *testing.T) {
	t.Parallel()
	for _, refusal := range []chaintest.Error{{Code: -32601, Message: "the method eth_getBlockByNumber does not exist"}, {Code: -32603, Message: "internal"},
		{Code: 4444, Message: "pruned history unavailable"}, {Code: -32000, Message: "missing trie node"},
		{Code: -32000, Message: "transaction indexing is in progress"}} {
		first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
		refuse := chaintest.AnswerTo("eth_getBlockByNumber", nil, refusal)
		first.Set(nil, refuse)
		c := newStubPool(t, first, second)
		var b *Block
		elems := []rpc.BatchElem{{Method: "eth_getBlockByNumber", Args: []any{"0x2", false}, Result: &b}}
		if _, err := c.SendBatch(t.Context(), "asking", elems); err != nil || elems[0].Error != nil || b.Hash != second.Hash(2) {
			t.Errorf("%v: %v, %v, %v", refusal, b, err, elems[0].Error)
		}
		heraldtest.Equal(t, "the first node", c.orderNodes(time.Now())[0].number, 1)
		second.Set(nil, refuse)
		if _, err := c.SendBatch(t.Context(), "asking", elems); err != nil || elems[0].Error == nil {
			t.Errorf("%v of both: %v, %v", refusal, err, elems[0].Error)
		}
		second.Set(chaintest.Failures()["503"], nil)
		if _, err := c.SendBatch(t.Context(), "asking", elems); !as[*UnavailableError](err) {
			t.Errorf("%v, the other one is away: %v", refusal, err)
		}
	}
}

// TestSendToAny: a batch with a refused call is sent to the next node, and succeeds there. If all nodes refuse, the
// error counts as final only if all refusals are.
func TestSendToAny(t *testing.T) {
	t.Parallel()
	const limitExceeded, methodNotFound = -32005, -32601
	first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
	refuse := func(code int) func(string, []json.RawMessage) (any, any) {
		return chaintest.AnswerTo("eth_getLogs", nil, chaintest.Error{Code: code, Message: "limit exceeded"})
	}
	c := newStubPool(t, first, second)
	var b *Block
	send := func() (int, error) { return c.SendToAny(t.Context(), "asking", logsCall, BlockCall(2, &b)) }
	first.Set(nil, refuse(limitExceeded))
	if number, err := send(); err != nil || number != 2 || b.Hash != second.Hash(2) {
		t.Errorf("node %d, block %+v, %v", number, b, err)
	}
	for codes, isFinal := range map[[2]int]bool{{limitExceeded, methodNotFound}: false, {methodNotFound, limitExceeded}: false,
		{methodNotFound, methodNotFound}: true} {
		first.Set(nil, refuse(codes[0]))
		second.Set(nil, refuse(codes[1]))
		if _, err := send(); err == nil || IsRefusedForGood(err) != isFinal {
			t.Errorf("%v: %v", codes, err)
		}
	}
}

// TestStatusOfSingleBlock: the first node answers 400 to each request for logs, and the second one returns them.
func TestStatusOfSingleBlock(t *testing.T) {
	t.Parallel()
	first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
	first.Set(func(rw http.ResponseWriter, _ *http.Request) bool {
		refuses := slices.Contains(first.Asked[len(first.Asked)-1], "eth_getLogs")
		if refuses {
			rw.WriteHeader(http.StatusBadRequest)
		}
		return refuses
	}, nil)
	c := newStubPool(t, first, second)
	if _, err := c.SendAll(t.Context(), "asking", logsCall); !IsRangeLimit(err) {
		t.Errorf("a range is not narrowed: %v", err)
	}
	if number, err := c.SendToAny(t.Context(), "asking", logsCall); err != nil || number != 2 {
		t.Errorf("node %d, %v", number, err)
	}
}

// TestAllNodesFail: the error names the failure of each node, and does not show parts of the nodes' URLs.
func TestAllNodesFail(t *testing.T) {
	t.Parallel()
	first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
	first.Set(chaintest.Failures()["503"], nil)
	second.Set(chaintest.Failures()["another chain"], nil)
	first.URL += "/v3/KEY-of-ours"
	second.URL += "/v3/KEY-of-yours"
	c := newStubPool(t, first, second)
	_, err := c.ReadHead(t.Context())
	if !errors.As(err, new(*UnavailableError)) || !strings.Contains(err.Error(), "node 1: the node answered 503") ||
		!strings.Contains(err.Error(), "node 2: the node that RPC_URL_1 names serves chain 2") ||
		strings.Contains(err.Error(), "KEY") {
		t.Errorf("%v", err)
	}
	nodes, err := c.PingNodes(t.Context())
	if err == nil || nodes[0].Err == nil || nodes[1].Err == nil {
		t.Errorf("%v, %v", nodes, err)
	}
	first.Set(nil, nil)
	if nodes, err := c.PingNodes(t.Context()); err != nil || nodes[0].Err != nil || nodes[1].Err == nil {
		t.Errorf("%v, %v", nodes, err)
	}
	first.Set(chaintest.Failures()["another chain"], nil)
	if err := c.Ping(t.Context()); !errors.As(err, new(*WrongChainError)) {
		t.Errorf("both of another chain: %v", err)
	}
}

// TestViewOfNewBlock: the node reaches a block while it answers. CallView does not return the state before that block.
func TestViewOfNewBlock(t *testing.T) {
	t.Parallel()
	for _, most := range []int{MostCalls, 1} { // with one call in a request, calls are further apart
		n := chaintest.NewNode(t, 1)
		c := newStubPool(t, n)
		var head atomic.Uint64
		head.Store(9)
		n.Set(chaintest.RefuseBatches(n, most, chaintest.RefuseStatus(400, "", "")), func(method string, _ []json.RawMessage) (any, any) {
			state := hexutil.Uint64(head.Add(1))
			switch method {
			case "eth_call":
				return hexutil.Bytes{byte(state)}, nil
			case "eth_getBlockByNumber":
				return map[string]any{"number": state, "hash": n.Hash(uint64(state)), "timestamp": "0x1"}, nil
			}
			return nil, nil
		})
		for i := range uint64(20) {
			since := head.Load() + 1 + i%2
			ret, err := c.CallView(t.Context(), "asking", common.Address{1}, nil, since)
			if err == nil && uint64(ret[0]) < since || err != nil && (i%2 == 0 || !errors.Is(err, ErrOutdated)) {
				t.Errorf("%d calls in a request, since block %d: the state of block %v, %v", most, since, ret, err)
			}
		}
	}
}

// TestFinalAnswersDoNotFailOver: a contract's revert and a refused block range are final answers. The call is not sent
// to the next node.
func TestFinalAnswersDoNotFailOver(t *testing.T) {
	t.Parallel()
	first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
	first.Set(nil, func(method string, _ []json.RawMessage) (any, any) {
		switch method {
		case "eth_call":
			return nil, chaintest.Error{Code: 3, Message: "execution reverted"}
		case "eth_getLogs":
			return nil, chaintest.Error{Code: -32602, Message: "block range too large"}
		}
		return nil, nil
	})
	c := newStubPool(t, first, second)
	if _, err := c.CallView(t.Context(), "asking", common.Address{1}, nil, 0); !errors.As(err, new(*Revert)) {
		t.Errorf("%v", err)
	}
	if _, err := c.SendAll(t.Context(), "asking", logsCall); err == nil || !IsRangeLimit(err) {
		t.Errorf("%v", err)
	}
	if asked := second.Requests(); len(asked) > 0 {
		t.Errorf("the second node was asked %v", asked)
	}
}
