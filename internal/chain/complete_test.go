package chain

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

	"github.com/agentherald/herald/internal/erc8004"
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
	w := newWorld(t, 0)
	first := w.feedback()
	w.mine(120) // more blocks than one request may ask for
	second := w.feedback()
	for _, trusted := range []bool{false, true} {
		c := newReader(t, w.net.ChainID(), trusted, omitRanges(t, w.net.URL()))
		filter := logFilter{Address: []common.Address{w.net.Deployment().Reputation},
			Topics: [][]common.Hash{erc8004.Topics(erc8004.NewFeedback)}, FromBlock: 1}
		head, err := c.readHead(w.ctx)
		heraldtest.Must(t, err)
		filter.ToBlock = hexutil.Uint64(head.Number)
		logs, ends, err := c.readLogs(w.ctx, filter)
		heraldtest.Must(t, err)
		logs, err = c.verifyLogs(w.ctx, filter, ends, logs, false)
		heraldtest.Must(t, err)
		if trusted {
			if len(logs) != 0 {
				t.Errorf("the proxy omits nothing: %v", logs)
			}
			continue
		}
		if len(logs) != 2 || logs[0].TxHash != first.TransactionHash || logs[1].TxHash != second.TransactionHash {
			t.Errorf("%d logs: %v", len(logs), logs)
		}
		whole, err := newCompleted(t, w, filter)
		if err != nil || len(whole) != 2 {
			t.Errorf("of a node that omits nothing: %d logs, %v", len(whole), err)
		}
	}
}

// newCompleted reads and completes a range of the unmodified node. No log may appear twice.
func newCompleted(t *testing.T, w *world, filter logFilter) ([]types.Log, error) {
	t.Helper()
	logs, ends, err := w.client.readLogs(w.ctx, filter)
	if err != nil {
		return nil, err
	}
	return w.client.completeLogs(w.ctx, filter, ends, logs)
}

// TestSortLogs: repeated and shuffled logs are returned once and in order.
func TestSortLogs(t *testing.T) {
	t.Parallel()
	at := func(block uint64, index uint) types.Log {
		return types.Log{BlockNumber: block, BlockHash: blockHash(block), Index: index}
	}
	got := sortLogs([]types.Log{at(2, 0), at(1, 7), at(1, 3), at(2, 0), at(1, 3)})
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
	n := newStubNode(t, 1)
	c := newReader(t, 1, false, n.url)
	filter := logFilter{FromBlock: 2, ToBlock: 4}
	ends := rangeEnds{first: block{Number: 2, Hash: n.hash(2)}, last: block{Number: 4, Hash: n.hash(4)}}
	if _, err := c.completeLogs(t.Context(), filter, ends, []types.Log{{BlockNumber: 3, BlockHash: n.hash(3)}}); err != nil {
		t.Error(err)
	}
	if _, err := c.completeLogs(t.Context(), filter, ends, []types.Log{{BlockNumber: 3, BlockHash: n.hash(2)}}); err != errReorganised {
		t.Errorf("of another block: %v", err)
	}
	other := rangeEnds{first: ends.first, last: block{Number: 4, Hash: n.hash(5)}}
	if _, err := c.completeLogs(t.Context(), filter, other, nil); err != errReorganised {
		t.Errorf("of another branch's end: %v", err)
	}
	n.set(nil, func(method string, params []json.RawMessage) (any, any) {
		if method == "eth_getBlockByNumber" && string(params[0]) == `"0x4"` {
			return map[string]any{"number": "0x4", "hash": n.hash(4), "parentHash": n.hash(7), "timestamp": "0x1"}, nil
		}
		return nil, nil
	})
	if _, err := c.completeLogs(t.Context(), filter, ends, nil); err != errReorganised {
		t.Errorf("of another branch in the middle: %v", err)
	}
	for name, answer := range map[string]func(string, []json.RawMessage) (any, any){
		"a block that is missing":        answerTo("eth_getBlockByNumber", json.RawMessage("null"), nil),
		"another block than asked for":   answerTo("eth_getBlockByNumber", map[string]any{"number": "0x7", "hash": n.hash(7), "timestamp": "0x1"}, nil),
		"a block whose logs are unknown": answerTo("eth_getLogs", nil, nodeError{-32000, "unknown block"}),
	} {
		n.set(nil, answer)
		if logs, err := c.completeLogs(t.Context(), filter, ends, nil); !as[*UnavailableError](err) {
			t.Errorf("%s: %v, %v", name, logs, err)
		}
	}
}
