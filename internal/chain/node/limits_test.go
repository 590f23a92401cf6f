package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestLimitsOfProviders checks how the client classifies the eth_getLogs errors of providers, as users reported them.
func TestLimitsOfProviders(t *testing.T) {
	t.Parallel()
	const narrow, wait, behind = "narrow", "wait", "behind"
	for _, c := range []struct {
		source  string
		code    int
		message string
		want    string
		width   uint64 // the next range width after a refused range of 20,000 blocks
	}{
		{"Alchemy, risc0/risc0-ethereum#656, 2025-08", -32600, "You can make eth_getLogs requests with up to a 500 block range. Based on your parameters, this block range should work: [0x1be4213, 0x1be4406]", narrow, 500},
		{"Alchemy, by results; bancorprotocol/webapp#523 and later", -32602, "Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range and no limit on the response size, or you can request any block range with a cap of 10K logs in the response. Based on your parameters and the response size limit, this block range should work: [0xc5dc00, 0xc614a7]", narrow, 14504},
		{"Alchemy, latticexyz/mud#1522", 429, "Your app has exceeded its compute units per second capacity. If you have retries enabled, you can safely ignore this message.", wait, 0},
		{"Infura, INFURA/infura#237, 2026-08", -32602, "range 1000000 exceeds limit of 10000", narrow, 10000},
		{"Infura by results, INFURA/infura#237 (documentation)", -32005, "query returned more than 10000 results", narrow, 10000},
		{"Infura by results, ponder-sh/ponder getLogsRetryHelper", -32005, "query returned more than 10000 results. Try with this block range [0x10, 0x1F].", narrow, 16},
		{"QuickNode, OffchainLabs/arbitrum-sdk#609, 2025-08", -32614, "eth_getLogs is limited to a 10,000 range", narrow, 10000},
		{"QuickNode, latticexyz/mud#1522", -32012, "credits limited to 6000/sec", wait, 0},
		{"reth, paradigmxyz/reth#8558", -32602, "query exceeds max block range 5000", narrow, 5000},
		{"reth by results, paradigmxyz/reth#23810, 2026-04", -32602, "query exceeds max results 20000, retry with the range 25766988-25770000", narrow, 3013},
		{"reth says the range that it refused, paradigmxyz/reth#23810", -32602, "query exceeds max results 20000, retry with the range 25750000-25769999", narrow, 10000},
		{"BNB chain, AlphaWallet/alpha-wallet-android#2736", -32000, "exceed maximum block range: 5000", narrow, 5000},
		{"Morph, enviodev/hyperindex#605, 2025-06", -32000, "block range is larger than max block range, block range = 5120, max block range = 5000", narrow, 5000},
		{"Moonbeam, moonbeam-foundation/moonbeam#3250, 2025-04", -32603, "block range is too wide (maximum 1024)", narrow, 1024},
		{"Ankr, ponder-sh/ponder#1940, 2025-07", -32602, "maximum [from, to] blocks distance: 10000", narrow, 10000},
		{"Ankr before, getLogsRetryHelper", -32600, "block range is too wide", narrow, 10000},
		{"Scroll, scroll-tech/go-ethereum#529", -32000, "block range is bigger than maxBlockRange", narrow, 10000},
		{"Candle, AlphaWallet/alpha-wallet-ios#5277", -32600, "block range too high", narrow, 10000},
		{"Tenderly, bobanetwork/boba_legacy#827: the limit is in the data", -32602, "invalid params", narrow, 10000},
		{"BNB chain's own, bnb-chain/docs-site#621: too many of what it does not say", -32005, "limit exceeded", "half", 10000},
		{"Base, base/node#368, 2024-12", -32016, "over rate limit", wait, 0},
		{"Base behind a proxy, base/node#368", -32000, `429 Too Many Requests: {"jsonrpc":"2.0","error":{"code":-32016,"message":"over rate limit"}}`, wait, 0},
		{"geth, Nethermind, Besu, Erigon: ethereum/execution-apis#875, 2026-08", -32602, "block range extends beyond current head block", behind, 0},
		// The patterns of ponder-sh/ponder getLogsRetryHelper, as of 2026.
		{"Avalanche", -32000, "requested too many blocks from 1 to 20000, maximum is set to 2048", narrow, 2048},
		{"Cloudflare", -32047, "Invalid eth_getLogs request. 'fromBlock'-'toBlock' range too large. Max range: 800", narrow, 800},
		{"thirdweb", -32602, "Maximum allowed number of requested blocks is 1000", narrow, 1000},
		{"BlockPI", -32602, "eth_getLogs is limited to 1024 block range", narrow, 1024},
		{"1RPC", -32602, "response size should not greater than 10000000 bytes", narrow, 10000},
		{"LlamaRPC", -32602, "query exceeds max results 20000", narrow, 10000},
		{"Optimism", -32011, "backend response too large", narrow, 10000},
		{"Base's public one", -32614, "block range too large", narrow, 10000},
		{"Arbitrum", -32000, "logs matched by query exceeds limit of 10000", narrow, 10000},
		{"Blast, paid", -32600, "exceeds the range allowed for your plan (20000 > 3000)", narrow, 3000},
		{"Chainstack", -32602, "Block range limit exceeded. See more details at https://docs.chainstack.com", narrow, 10000},
		{"Coinbase", -32602, "please limit the query to at most 1,000 blocks", narrow, 1000},
		{"PublicNode", -32701, "exceed maximum block range: 50000", narrow, 10000},
		{"Hyperliquid", -32603, "query exceeds max block range 50", narrow, 50},
		{"Swell", -32000, "block range greater than 10000 max", narrow, 10000},
		{"Somnia", -32000, "block range exceeds 1000", narrow, 1000},
		{"Merkle", -32000, "eth_getLogs range is too large, max is 10k blocks", narrow, 10000},
		{"Harmony", -32000, "query must be smaller than size 1024", narrow, 1024},
	} {
		err := error(&UnavailableError{ChainID: 1, Op: "asking", Err: &rpcError{c.code, c.message}})
		got := "half" // ambiguous: the client tries fewer blocks and treats the error as temporary
		switch {
		case isRateLimit(err):
			got = wait
		case isBehind(err):
			got = behind
		case IsRangeLimit(err):
			got = narrow
		}
		heraldtest.Equal(t, c.source, got, c.want)
		if narrows := got == narrow || got == "half"; IsRefusedRange(err) != narrows {
			t.Errorf("%s: isRefusedRange is %t", c.source, !narrows)
		} else if width := NarrowWidth(err, 20_000); narrows && width != c.width {
			t.Errorf("%s: asks for %d blocks then, want %d", c.source, width, c.width)
		}
	}
}

// TestLimitInStatus: QuickNode sends the refusal of a range with an HTTP error status. The client reads the body for
// the limit, but does not show it.
func TestLimitInStatus(t *testing.T) {
	t.Parallel()
	n := chaintest.NewNode(t, 1)
	n.Set(func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.WriteHeader(http.StatusRequestEntityTooLarge)
		_, _ = io.WriteString(rw, `{"jsonrpc":"2.0","id":1,"error":{"code":-32614,"message":"eth_getLogs is limited to a 10,000 range"}}`)
		return true
	}, func(string, []json.RawMessage) (any, any) { return nil, nil })
	c := newStubPool(t, n)
	c.nodes[0].verified = true
	conn, err := c.nodes[0].dial(t.Context())
	heraldtest.Must(t, err)
	c.nodes[0].conn = conn
	_, err = c.SendAll(t.Context(), "asking", logsCall)
	if !IsRangeLimit(err) || NarrowWidth(err, 20_001) != 10_000 {
		t.Errorf("%v", err)
	}
	if want := "chain 1: asking: the node answered 413 Request Entity Too Large"; err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestRetryAfterIsRespected: a node that sent Retry-After gets no request before that time; another node does.
func TestRetryAfterIsRespected(t *testing.T) {
	t.Parallel()
	for name, stated := range map[string]string{
		"seconds": "600", "a date": time.Now().Add(time.Hour).UTC().Format(http.TimeFormat),
	} {
		first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
		first.Set(chaintest.Refuse(stated), nil)
		alone, both := newStubPool(t, first), newStubPool(t, first, second)
		for range 3 {
			if head, err := both.ReadHead(t.Context()); err != nil || head.Hash != second.Hash(9) {
				t.Errorf("%s: %v, %v", name, head, err)
			}
		}
		heraldtest.Equal(t, fmt.Sprintf("%s: the node was asked", name), first.Count(), 1)
		first.Set(chaintest.Refuse(stated), nil)
		for range 3 {
			if _, err := alone.ReadHead(t.Context()); !as[*UnavailableError](err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		heraldtest.Fails(t, name+": the ping", alone.Ping(t.Context()), ErrResting)
		heraldtest.Equal(t, fmt.Sprintf("%s: the only node was asked", name), first.Count(), 1)
		_, err := alone.ReadHead(t.Context())
		heraldtest.Fails(t, name, err, ErrResting)
	}
}

// TestRetryAfterOfAnOutage: a node that answered 503 may be well again long before the time that it stated.
func TestRetryAfterOfAnOutage(t *testing.T) {
	t.Parallel()
	n := chaintest.NewNode(t, 1)
	c := newStubPool(t, n)
	for stated, want := range map[string]time.Duration{"20": 20 * time.Second, "3600": maxRest} {
		c.nodes[0].rest.until = time.Time{}
		n.Set(func(rw http.ResponseWriter, _ *http.Request) bool {
			chaintest.RefuseStatus(http.StatusServiceUnavailable, stated, "maintenance")(rw, nil)
			return true
		}, nil)
		if head, err := c.ReadHead(t.Context()); err == nil {
			t.Errorf("%v", head)
		}
		if rests := c.nodes[0].rest.remaining(time.Now()); rests <= want-5*time.Second || rests > want {
			t.Errorf("Retry-After %s: it rests %s, want %s", stated, rests, want)
		}
	}
}

// TestRefusedCallPausesNode: if a node refuses one call of a batch because of its rate limit, it pauses, and the batch
// is sent to the next node.
func TestRefusedCallPausesNode(t *testing.T) {
	t.Parallel()
	first, second := chaintest.NewNode(t, 1), chaintest.NewNode(t, 2)
	first.Set(nil, chaintest.AnswerTo("eth_getLogs", nil, chaintest.Error{Code: -32016, Message: "over rate limit"}))
	c := newStubPool(t, first, second)
	if node, err := c.SendAll(t.Context(), "asking", logsCall); err != nil || node != 2 {
		t.Errorf("node %d, %v", node, err)
	}
	if c.nodes[0].rest.until.IsZero() || !c.nodes[0].health.demoted.IsZero() {
		t.Error("the node does not rest, or is taken to be ill")
	}
}

// TestPauseAfterRefusals: without Retry-After, each further refusal lengthens the node's pause until it answers.
// Callers wait for the end of a short pause.
func TestPauseAfterRefusals(t *testing.T) {
	t.Parallel()
	var r rest
	now := time.Now()
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		r.noteRefusal(now)
		r.noteRefusal(now) // the refusal of a concurrent request
		heraldtest.Equal(t, "the rest", r.remaining(now), want*time.Second)
		now = r.until
	}
	r.noteAnswer()
	r.noteRefusal(now)
	heraldtest.Equal(t, "the rest", r.remaining(now), time.Second)
	r.noteStated(now, 48*time.Hour)
	heraldtest.Equal(t, "the rest", r.remaining(now), maxStatedRest)

	n := chaintest.NewNode(t, 1)
	c := newStubPool(t, n)
	until := time.Now().Add(50 * time.Millisecond)
	c.nodes[0].rest.until = until
	if _, err := c.ReadHead(t.Context()); err != nil || time.Now().Before(until) {
		t.Errorf("asked too early, or %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	c.nodes[0].rest.until = time.Now().Add(time.Second)
	_, err := c.ReadHead(gone)
	heraldtest.Fails(t, "the error", err, context.Canceled)
}
