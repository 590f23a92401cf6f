package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

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

// laggingNode is a stub node whose head a test sets.
type laggingNode struct {
	*chaintest.Node
	number, seconds atomic.Uint64
}

// newLaggingNode returns a stub node with that head.
func newLaggingNode(t *testing.T, name byte, number, seconds uint64) *laggingNode {
	n := &laggingNode{Node: chaintest.NewNode(t, name)}
	n.setHead(number, seconds)
	n.Set(nil, n.answerCall)
	return n
}

func (n *laggingNode) setHead(number, seconds uint64) {
	n.number.Store(number)
	n.seconds.Store(seconds)
}

func (n *laggingNode) answerCall(method string, params []json.RawMessage) (any, any) {
	if method != "eth_getBlockByNumber" || string(params[0]) != `"latest"` {
		return nil, nil
	}
	return map[string]any{"number": hexutil.Uint64(n.number.Load()), "hash": n.Hash(0), "timestamp": hexutil.Uint64(n.seconds.Load())}, nil
}

// TestLaggardIsDemoted: a node that answers, but whose head stopped at an old block, is asked after the others until
// its head is new again. Its other answers, and failures of the others, do not end that.
func TestLaggardIsDemoted(t *testing.T) {
	t.Parallel()
	for count := 2; count <= 3; count++ {
		first, second := newLaggingNode(t, 1, 9, 1000), newLaggingNode(t, 2, 10, 1061) // the chain's next block, a minute after block 9
		nodes := []*chaintest.Node{first.Node, second.Node}
		if count == 3 {
			nodes = append(nodes, newLaggingNode(t, 3, 99, 1061).Node)
		}
		c := newStubPool(t, nodes...)
		expectHead := func(when string, want uint64) {
			t.Helper()
			if head, err := c.ReadHead(t.Context()); err != nil || uint64(head.Number) != want {
				t.Fatalf("%d nodes, %s: %v, %v; want block %d", count, when, head, err, want)
			}
		}
		compare := func() {
			t.Helper()
			if _, err := c.ReadTagged(t.Context(), Finalized); err != nil {
				t.Fatal(err)
			}
		}
		compare()
		expectHead("one block behind", 9)
		second.setHead(99, 1061)
		expectHead("before it was seen", 9)
		compare()
		expectHead("two blocks and a minute behind", 99)
		for _, n := range nodes[1:] {
			n.Set(chaintest.Failures()["503"], nil)
		}
		compare()
		expectHead("the others are away", 9)
		second.Set(nil, second.answerCall)
		c.nodes[1].health.noteAnswer()
		expectHead("the second answers again", 99)
		first.setHead(99, 1061)
		compare()
		heraldtest.Equal(t, fmt.Sprintf("%d nodes: the first node", count), c.orderNodes(time.Now())[0].number, 1)
	}
}

// TestCompareHeads: a process that reads no tagged block compares the heads of all nodes once a minute while the head
// that it reads is old, and while a node counts as behind.
func TestCompareHeads(t *testing.T) {
	t.Parallel()
	now := uint64(time.Now().Unix())
	stuck, also, fresh := newLaggingNode(t, 1, 9, now-600), newLaggingNode(t, 2, 9, now-600), newLaggingNode(t, 3, 99, now)
	c := newStubPool(t, stuck.Node, also.Node, fresh.Node)
	for _, step := range []struct {
		when  string
		due   bool
		first int // the node that is asked first afterwards
		asked int // requests to the first node, with that for its head
	}{
		{"the head is old", true, 3, 2}, {"within the same minute", false, 3, 0}, {"it is still stuck", true, 3, 1},
		{"it is fresh again", true, 1, 1}, {"no node is behind", true, 1, 1},
	} {
		if step.when == "it is fresh again" {
			stuck.setHead(100, now)
			also.setHead(100, now)
		}
		if step.due {
			c.compared = time.Time{}
		}
		stuck.Set(nil, stuck.answerCall)
		head, err := c.ReadHead(t.Context())
		heraldtest.Must(t, err)
		c.CompareHeads(t.Context(), head)
		heraldtest.Equal(t, step.when+": the node that is asked first", c.orderNodes(time.Now())[0].number, step.first)
		heraldtest.Equal(t, step.when+": requests to the first node", len(stuck.Requests()), step.asked)
	}
}

// TestHeadlessIsDemoted: a node that answers, but returns no newest block, is asked after another one that returns one,
// until it returns one too.
func TestHeadlessIsDemoted(t *testing.T) {
	t.Parallel()
	first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
	c := newStubPool(t, first, second)
	expectFirst := func(when string, want int) {
		t.Helper()
		_, err := c.ReadTagged(t.Context(), Finalized)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, when+": the node that is asked first", c.orderNodes(time.Now())[0].number, want)
	}
	for _, failure := range []any{nil, chaintest.Error{Code: -32000, Message: "header not found"}} {
		none := chaintest.AnswerTo("eth_getBlockByNumber", json.RawMessage("null"), failure)
		first.Set(nil, none)
		expectFirst("the first has no head", 2)
		first.Set(nil, nil)
		expectFirst("the first has a head again", 1)
		first.Set(nil, none)
		second.Set(nil, none)
		expectFirst("no node has a head", 1)
		second.Set(nil, nil)
	}
}

// TestHeadInTheFutureDemotesNobody: a node that names a head in the future does not make others count as behind.
func TestHeadInTheFutureDemotesNobody(t *testing.T) {
	t.Parallel()
	now := uint64(time.Now().Unix())
	c := newStubPool(t, newLaggingNode(t, 1, 9, now).Node, newLaggingNode(t, 2, 99, now+3600).Node)
	_, err := c.ReadTagged(t.Context(), Finalized)
	heraldtest.Must(t, err)
	if head, err := c.ReadHead(t.Context()); err != nil || head.Number != 9 {
		t.Errorf("%v, %v", head, err)
	}
}
