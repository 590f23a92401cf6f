package eventlog

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// omitRanges starts a proxy of a node that omits all logs of ranges, but returns complete blocks by hash.
func omitRanges(t *testing.T, target string) string {
	t.Helper()
	u, err := url.Parse(target)
	heraldtest.Must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(u)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		body = bytes.ReplaceAll(body, []byte(`"topics":[[`), []byte(`"topics":[["0x`+strings.Repeat("ee", 32)+`"],[`))
		if bytes.Contains(body, []byte(`"blockHash"`)) {
			body = bytes.ReplaceAll(body, []byte(`["0x`+strings.Repeat("ee", 32)+`"],`), nil)
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		proxy.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestOmittedLogsAreRead: the follower finds logs that a node omits from a range, unless the node is trusted.
func TestOmittedLogsAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.Feedback()
	w.Mine(120) // more blocks than one request may ask for
	second := w.Feedback()
	for _, trusted := range []bool{false, true} {
		c := newReader(t, w.Net.ChainID(), trusted, omitRanges(t, w.Net.URL()))
		filter := Filter{Address: []common.Address{w.Net.Deployment().Reputation},
			Topics: [][]common.Hash{erc8004.Topics(erc8004.NewFeedback)}, FromBlock: 1}
		head, err := c.ReadHead(w.Ctx)
		heraldtest.Must(t, err)
		filter.ToBlock = hexutil.Uint64(head.Number)
		logs, ends, err := c.ReadLogs(w.Ctx, filter)
		heraldtest.Must(t, err)
		logs, err = c.VerifyLogs(w.Ctx, filter, ends, logs, false)
		heraldtest.Must(t, err)
		if trusted {
			heraldtest.Equal(t, "logs that the proxy passes", len(logs), 0)
			continue
		}
		if len(logs) != 2 || logs[0].TxHash != first.TransactionHash || logs[1].TxHash != second.TransactionHash {
			t.Errorf("%d logs: %v", len(logs), logs)
		}
		whole, err := newCompleted(t, w, filter)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "logs of a node that omits nothing", len(whole), 2)
	}
}

// newCompleted reads and completes a range of the unmodified node. No log may appear twice.
func newCompleted(t *testing.T, w *world, filter Filter) ([]types.Log, error) {
	t.Helper()
	logs, ends, err := w.client.ReadLogs(w.Ctx, filter)
	if err != nil {
		return nil, err
	}
	return w.client.CompleteLogs(w.Ctx, filter, ends, logs)
}

// TestSortLogs: repeated and shuffled logs are returned once and in order.
func TestSortLogs(t *testing.T) {
	t.Parallel()
	at := func(block uint64, index uint) types.Log {
		return types.Log{BlockNumber: block, BlockHash: chaintest.BlockHash(block), Index: index}
	}
	got := Sort([]types.Log{at(2, 0), at(1, 7), at(1, 3), at(2, 0), at(1, 3)})
	if want := []types.Log{at(1, 3), at(1, 7), at(2, 0)}; !slices.EqualFunc(got, want, func(a, b types.Log) bool {
		return a.BlockHash == b.BlockHash && a.Index == b.Index
	}) {
		t.Errorf("%v", got)
	}
}

// TestCompleteLogsRefuses: a range is not complete if its blocks are not those of the logs, or if the node lacks a
// block.
func TestCompleteLogsRefuses(t *testing.T) {
	t.Parallel()
	n := chaintest.NewNode(t, 1)
	c := newReader(t, 1, false, n.URL)
	filter := Filter{FromBlock: 2, ToBlock: 4}
	ends := Ends{First: node.Block{Number: 2, Hash: n.Hash(2)}, Last: node.Block{Number: 4, Hash: n.Hash(4)}}
	_, err := c.CompleteLogs(t.Context(), filter, ends, []types.Log{{BlockNumber: 3, BlockHash: n.Hash(3)}})
	heraldtest.Must(t, err)
	if _, err := c.CompleteLogs(t.Context(), filter, ends, []types.Log{{BlockNumber: 3, BlockHash: n.Hash(2)}}); err != ErrReorganised {
		t.Errorf("of another block: %v", err)
	}
	other := Ends{First: ends.First, Last: node.Block{Number: 4, Hash: n.Hash(5)}}
	if _, err := c.CompleteLogs(t.Context(), filter, other, nil); err != ErrReorganised {
		t.Errorf("of another branch's end: %v", err)
	}
	n.Set(nil, func(method string, params []json.RawMessage) (any, any) {
		if method == "eth_getBlockByNumber" && string(params[0]) == `"0x4"` {
			return map[string]any{"number": "0x4", "hash": n.Hash(4), "parentHash": n.Hash(7), "timestamp": "0x1"}, nil
		}
		return nil, nil
	})
	if _, err := c.CompleteLogs(t.Context(), filter, ends, nil); err != ErrReorganised {
		t.Errorf("of another branch in the middle: %v", err)
	}
	for name, answer := range map[string]func(string, []json.RawMessage) (any, any){
		"a block that is missing":        chaintest.AnswerTo("eth_getBlockByNumber", json.RawMessage("null"), nil),
		"another block than asked for":   chaintest.AnswerTo("eth_getBlockByNumber", map[string]any{"number": "0x7", "hash": n.Hash(7), "timestamp": "0x1"}, nil),
		"a block whose logs are unknown": chaintest.AnswerTo("eth_getLogs", nil, chaintest.Error{Code: -32000, Message: "unknown block"}),
	} {
		n.Set(nil, answer)
		if logs, err := c.CompleteLogs(t.Context(), filter, ends, nil); !as[*node.UnavailableError](err) {
			t.Errorf("%s: %v, %v", name, logs, err)
		}
	}
}
