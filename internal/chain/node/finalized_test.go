package node

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestFinalized: one node alone cannot decide which block is final if other nodes contradict it.
func TestFinalized(t *testing.T) {
	t.Parallel()
	type spoil = func(http.ResponseWriter, *http.Request) bool
	type answer = func(string, []json.RawMessage) (any, any)
	names := func(n uint64) answer {
		return chaintest.AnswerTo("eth_getBlockByNumber", map[string]any{"number": hexutil.Uint64(n), "hash": common.Hash{byte(n)}, "timestamp": "0x1"}, nil)
	}
	refuses := func(code int) answer {
		return chaintest.AnswerTo("eth_getBlockByNumber", nil, chaintest.Error{Code: code, Message: "no"})
	}
	none := chaintest.AnswerTo("eth_getBlockByNumber", json.RawMessage("null"), nil)
	away := chaintest.Failures()["503"]
	for name, c := range map[string]struct {
		answers []answer
		spoils  map[int]spoil // by the node's number
		want    uint64        // 0: none
		fails   bool
		asked   int
	}{
		"one":                         {answers: []answer{names(7)}, want: 7, asked: 1},
		"one names none":              {answers: []answer{refuses(-32602)}, asked: 1},
		"one is asked too often":      {answers: []answer{refuses(429)}, fails: true, asked: 1},
		"the first of two lies":       {answers: []answer{names(9), names(3)}, want: 3, asked: 2},
		"the second of two lies":      {answers: []answer{names(3), names(9)}, want: 3, asked: 2},
		"one of two names none":       {answers: []answer{none, names(9)}, want: 9, asked: 2},
		"none of two names one":       {answers: []answer{none, refuses(-39001)}, asked: 2},
		"one of two is away":          {answers: []answer{names(9), names(3)}, spoils: map[int]spoil{2: away}, want: 9, asked: 2},
		"two of three are asked":      {answers: []answer{names(9), names(8), names(3)}, want: 8, asked: 2},
		"four of six are asked":       {answers: []answer{names(9), names(8), names(7), names(6), names(5), names(4)}, want: 6, asked: 4},
		"who was asked is away":       {answers: []answer{names(9), names(8), names(3)}, spoils: map[int]spoil{1: away, 2: away}, want: 3, asked: 3},
		"all are away":                {answers: []answer{names(9), names(8)}, spoils: map[int]spoil{1: away, 2: away}, fails: true, asked: 2},
		"another chain says nothing":  {answers: []answer{names(9), names(3)}, spoils: map[int]spoil{2: chaintest.Failures()["another chain"]}, want: 9, asked: 2},
		"all are nodes of another":    {answers: []answer{names(9)}, spoils: map[int]spoil{1: chaintest.Failures()["another chain"]}, fails: true, asked: 1},
		"one of two answers by limit": {answers: []answer{refuses(429), names(4)}, want: 4, asked: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var nodes []*chaintest.Node
			for i, answer := range c.answers {
				n := chaintest.NewNode(t, byte(i+1))
				n.Set(c.spoils[i+1], answer)
				nodes = append(nodes, n)
			}
			got, err := newStubPool(t, nodes...).ReadTagged(t.Context(), Finalized)
			number := uint64(0)
			if got != nil {
				number = uint64(got.Number)
			}
			if number != c.want || (err != nil) != c.fails {
				t.Errorf("block %d, %v; want %d", number, err, c.want)
			}
			asked := 0
			for _, n := range nodes {
				if n.Count() > 0 {
					asked++
				}
			}
			heraldtest.Equal(t, "nodes were asked", asked, c.asked)
		})
	}
}

// TestLaggardIsDemoted: a node that answers, but whose head stopped at an old block, is asked after the others.
func TestLaggardIsDemoted(t *testing.T) {
	t.Parallel()
	first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
	var newest atomic.Uint64
	newest.Store(10) // the chain's next block, a minute after block 9
	first.Set(nil, func(method string, params []json.RawMessage) (any, any) {
		if method != "eth_getBlockByNumber" || string(params[0]) != `"latest"` {
			return nil, nil
		}
		return map[string]any{"number": hexutil.Uint64(9), "hash": first.Hash(9), "timestamp": "0x1000"}, nil
	})
	second.Set(nil, func(method string, params []json.RawMessage) (any, any) {
		if method != "eth_getBlockByNumber" || string(params[0]) != `"latest"` {
			return nil, nil
		}
		return map[string]any{"number": hexutil.Uint64(newest.Load()), "hash": second.Hash(99), "timestamp": "0x103d"}, nil
	})
	c := newStubPool(t, first, second)
	if head, err := c.ReadHead(t.Context()); err != nil || head.Number != 9 {
		t.Fatalf("%v, %v", head, err)
	}
	for _, newestBlock := range []uint64{10, 99} {
		newest.Store(newestBlock)
		if head, err := c.ReadHead(t.Context()); err != nil || head.Number != 9 {
			t.Fatalf("demoted for one block, or before it was seen: %v, %v", head, err)
		}
		if _, err := c.ReadTagged(t.Context(), Finalized); err != nil {
			t.Fatal(err)
		}
	}
	if head, err := c.ReadHead(t.Context()); err != nil || head.Number != 99 {
		t.Errorf("%v, %v", head, err)
	}
}
