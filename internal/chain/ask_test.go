package chain

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestFailover: the second node answers requests that the first one fails. It stays preferred until the first one had
// time to recover.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, spoil := range failures() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newStubNode(t, 1), newStubNode(t, 2)
			first.set(spoil, nil)
			c := newStubPool(t, first, second)
			head, err := c.readHead(t.Context())
			if err != nil || head.Hash != second.hash(9) {
				t.Fatalf("%v, %v", head.Hash, err)
			}

			until := c.nodes[0].health.demoted
			if got := c.orderNodes(until.Add(-time.Nanosecond)); got[0].number != 2 || got[1].number != 1 {
				t.Error("the node that failed is not demoted")
			}
			if got := c.orderNodes(until); got[0].number != 1 {
				t.Error("the demotion does not end")
			}

			first.set(nil, nil)
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

// TestFailedConnectionReadsChainIDAgain: after a failed connection the address may lead to another node, so the
// client asks for the chain id again.
func TestFailedConnectionReadsChainIDAgain(t *testing.T) {
	t.Parallel()
	n := newStubNode(t, 1)
	c := newStubPool(t, n)
	if _, err := c.readHead(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.set(failures()["503"], nil)
	if _, err := c.readHead(t.Context()); err == nil {
		t.Fatal("the node did not fail")
	}
	n.set(nil, answerTo("eth_chainId", "0x2", nil))
	var wrong *WrongChainError
	if _, err := c.readHead(t.Context()); !errors.As(err, &wrong) || wrong.Got != 2 {
		t.Errorf("%v", err)
	}
	if asked := n.requests(); len(asked) > 0 {
		t.Errorf("a node of another chain was asked %v", asked)
	}
}

// TestErrorsFailOver: a call that one node refuses with an error of its own is sent to the next node. The error does
// not demote the first node.
func TestErrorsFailOver(t *testing.T) {
	t.Parallel()
	first, second := newStubNode(t, 1), newStubNode(t, 2)
	first.set(nil, answerTo("eth_getBlockByNumber", nil, nodeError{-32603, "internal error"}))
	c := newStubPool(t, first, second)
	if head, err := c.readHead(t.Context()); err != nil || head.Hash != second.hash(9) {
		t.Errorf("%v, %v", head, err)
	}
	if c.orderNodes(time.Now())[0].number != 1 {
		t.Error("the node was demoted")
	}
}

// logsCall is a call whose result the tests ignore.
var logsCall = rpc.BatchElem{Method: "eth_getLogs", Args: []any{}, Result: new(any)}

// TestNodeSwitchesChain: an address starts to serve another chain without any failed request. The client rejects its
// answers; otherwise every block would look replaced and every event refuted.
func TestNodeSwitchesChain(t *testing.T) {
	t.Parallel()
	first, second := newStubNode(t, 1), newStubNode(t, 2)
	alone, both := newStubPool(t, first), newStubPool(t, first, second)
	other := answerTo("eth_chainId", "0x2", nil)
	for _, c := range []*Pool{alone, both} {
		if head, err := c.readHead(t.Context()); err != nil || head.Hash != first.hash(9) {
			t.Fatalf("%v, %v", head, err)
		}
	}
	first.set(nil, other)
	var wrong *WrongChainError
	if head, err := alone.readHead(t.Context()); !errors.As(err, &wrong) || wrong.Got != 2 {
		t.Errorf("%v, %v", head, err)
	}
	if _, err := alone.sendAll(t.Context(), "asking", logsCall); !errors.As(err, &wrong) {
		t.Errorf("%v", err)
	}
	if b, err := alone.readFinalized(t.Context()); !errors.As(err, &wrong) {
		t.Errorf("%v, %v", b, err)
	}
	if head, err := both.readHead(t.Context()); err != nil || head.Hash != second.hash(9) {
		t.Errorf("%v, %v", head, err)
	}
	first.set(nil, nil)
	if head, err := alone.readHead(t.Context()); err != nil || head.Hash != first.hash(9) {
		t.Errorf("back on the right chain: %v, %v", head, err)
	}
}

// TestBatchStaysOnOneNode: all answers to a batch come from one node. If a node fails, the partial answers that it gave
// before are discarded.
func TestBatchStaysOnOneNode(t *testing.T) {
	t.Parallel()
	first, second := newStubNode(t, 1), newStubNode(t, 2)
	first.set(nil, func(method string, params []json.RawMessage) (any, any) {
		if method == "eth_getBlockByNumber" && string(params[0]) == `"0x3"` {
			return nil, nodeError{-32000, "unknown block"}
		}
		return nil, nil
	})
	c := newStubPool(t, first, second)
	read := func() (a, b *block, errs [2]error) {
		t.Helper()
		elems := []rpc.BatchElem{
			{Method: "eth_getBlockByNumber", Args: []any{"0x2", false}, Result: &a},
			{Method: "eth_getBlockByNumber", Args: []any{"0x3", false}, Result: &b},
		}
		heraldtest.Must(t, c.sendBatch(t.Context(), "asking", elems))
		return a, b, [2]error{elems[0].Error, elems[1].Error}
	}
	if a, b, errs := read(); a == nil || a.Hash != first.hash(2) || b != nil || errs[0] != nil || errs[1] == nil {
		t.Errorf("of the first node: %v, %v, %v", a, b, errs)
	}
	first.set(failures()["503"], nil)
	if a, b, errs := read(); a.Hash != second.hash(2) || b.Hash != second.hash(3) || errs != [2]error{} {
		t.Errorf("of the second node: %v, %v, %v", a, b, errs)
	}
	if asked := second.requests(); len(asked) != 1 || len(asked[0]) != 3 { // chain id and two blocks
		t.Errorf("the second node was asked %v", asked)
	}
}

// TestInabilityFailsOver: a call that a node does not support, or whose data it has pruned, is sent to the next node.
// The refusal is returned only if the last node refuses too.
func TestInabilityFailsOver(t *testing.T) {
	t.Parallel()
	for _, refusal := range []nodeError{{-32601, "the method eth_getBlockByNumber does not exist"}, {-32603, "internal"},
		{4444, "pruned history unavailable"}, {-32000, "missing trie node"},
		{-32000, "transaction indexing is in progress"}} {
		first, second := newStubNode(t, 1), newStubNode(t, 2)
		refuse := answerTo("eth_getBlockByNumber", nil, refusal)
		first.set(nil, refuse)
		c := newStubPool(t, first, second)
		var b *block
		elems := []rpc.BatchElem{{Method: "eth_getBlockByNumber", Args: []any{"0x2", false}, Result: &b}}
		if err := c.sendBatch(t.Context(), "asking", elems); err != nil || elems[0].Error != nil || b.Hash != second.hash(2) {
			t.Errorf("%v: %v, %v, %v", refusal, b, err, elems[0].Error)
		}
		second.set(nil, refuse)
		if err := c.sendBatch(t.Context(), "asking", elems); err != nil || elems[0].Error == nil {
			t.Errorf("%v of both: %v, %v", refusal, err, elems[0].Error)
		}
		second.set(failures()["503"], nil)
		var away *UnavailableError
		if err := c.sendBatch(t.Context(), "asking", elems); !errors.As(err, &away) {
			t.Errorf("%v, the other one is away: %v", refusal, err)
		}
	}
}

// TestAllNodesFail: the error names the failure of each node, and does not show parts of the nodes' URLs.
func TestAllNodesFail(t *testing.T) {
	t.Parallel()
	first, second := newStubNode(t, 1), newStubNode(t, 2)
	first.set(failures()["503"], nil)
	second.set(failures()["another chain"], nil)
	first.url += "/v3/KEY-of-ours"
	second.url += "/v3/KEY-of-yours"
	c := newStubPool(t, first, second)
	_, err := c.readHead(t.Context())
	var away *UnavailableError
	if !errors.As(err, &away) || !strings.Contains(err.Error(), "node 1: the node answered 503") ||
		!strings.Contains(err.Error(), "node 2: the node that RPC_URL_1 names serves chain 2") ||
		strings.Contains(err.Error(), "KEY") {
		t.Errorf("%v", err)
	}
	nodes, err := c.PingNodes(t.Context())
	if err == nil || nodes[0].Err == nil || nodes[1].Err == nil {
		t.Errorf("%v, %v", nodes, err)
	}
	first.set(nil, nil)
	if nodes, err := c.PingNodes(t.Context()); err != nil || nodes[0].Err != nil || nodes[1].Err == nil {
		t.Errorf("%v, %v", nodes, err)
	}
	first.set(failures()["another chain"], nil)
	var wrong *WrongChainError
	if err := c.Ping(t.Context()); !errors.As(err, &wrong) {
		t.Errorf("both of another chain: %v", err)
	}
}

// TestFinalAnswersDoNotFailOver: a contract's revert and a refused block range are final answers. The call is not sent
// to the next node.
func TestFinalAnswersDoNotFailOver(t *testing.T) {
	t.Parallel()
	first, second := newStubNode(t, 1), newStubNode(t, 2)
	first.set(nil, func(method string, _ []json.RawMessage) (any, any) {
		switch method {
		case "eth_call":
			return nil, nodeError{3, "execution reverted"}
		case "eth_getLogs":
			return nil, nodeError{-32602, "block range too large"}
		}
		return nil, nil
	})
	c := newStubPool(t, first, second)
	var reverted *revert
	if _, err := c.callView(t.Context(), "asking", common.Address{1}, nil); !errors.As(err, &reverted) {
		t.Errorf("%v", err)
	}
	if _, err := c.sendAll(t.Context(), "asking", logsCall); err == nil || !isRangeLimit(err) {
		t.Errorf("%v", err)
	}
	if asked := second.requests(); len(asked) > 0 {
		t.Errorf("the second node was asked %v", asked)
	}
}
