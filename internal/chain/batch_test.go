package chain

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/agentherald/herald/internal/erc8004"
)

// lastCalls returns the number of calls in the current request.
func (s *stubNode) lastCalls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked[len(s.asked)-1])
}

// refuseBatches returns a spoil function for s that answers requests of more than most calls with answer.
func refuseBatches(s *stubNode, most int, answer func(http.ResponseWriter, *http.Request)) func(
	http.ResponseWriter, *http.Request) bool {
	return func(rw http.ResponseWriter, r *http.Request) bool {
		if s.lastCalls() <= most {
			return false
		}
		answer(rw, r)
		return true
	}
}

func refuseStatus(code int, retryAfter, body string) func(http.ResponseWriter, *http.Request) {
	return func(rw http.ResponseWriter, _ *http.Request) {
		if retryAfter != "" {
			rw.Header().Set("Retry-After", retryAfter)
		}
		rw.WriteHeader(code)
		_, _ = io.WriteString(rw, body)
	}
}

// TestBatchSizeAdaptsToNode: nodes refuse a request with too many calls in different ways. The client sends the same
// calls in smaller requests, and later requests fit at once.
func TestBatchSizeAdaptsToNode(t *testing.T) {
	t.Parallel()
	const base = `{"jsonrpc":"2.0","id":null,"error":{"code":-32014,"message":"maximum 10 calls in 1 batch"}}`
	for name, c := range map[string]struct {
		most   int
		answer func(http.ResponseWriter, *http.Request)
		waits  bool // the first request fails and the node asks for a pause
	}{
		"OP Mainnet: 413":                    {10, refuseStatus(413, "", ""), false},
		"Base: 200 and one error object":     {10, refuseStatus(200, "", "\n "+base), false},
		"400":                                {10, refuseStatus(400, "", `{"error":"batch too large"}`), false},
		"geth: an array of one error object": {10, refuseStatus(200, "", "["+base+"]"), false},
		"one call in a request":              {1, refuseStatus(400, "", ""), false},
		"429 and Retry-After":                {10, refuseStatus(429, "1", ""), true},
		"413 and Retry-After":                {10, refuseStatus(413, "1", ""), true},
		"over the rate limit, as one object": {10, refuseStatus(200, "1", strings.Replace(base, "maximum 10 calls in 1 batch",
			"over rate limit", 1)), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newStubNode(t, 1)
			client := newPool(t, n)
			n.set(refuseBatches(n, c.most, c.answer), nil)
			for range 6 {
				if _, err := client.readBlooms(t.Context(), firstForty); err == nil {
					break
				} else if !c.waits {
					t.Fatal(err)
				} else if rest := client.nodes[0].rest.remaining(time.Now()); rest == 0 || rest > time.Second {
					t.Fatalf("the node rests %s after %v", rest, err)
				}
				client.nodes[0].rest.until = time.Time{}
			}
			n.set(refuseBatches(n, c.most, c.answer), nil)
			if _, err := client.readBlooms(t.Context(), firstForty); err != nil {
				t.Fatal(err)
			}
			refused := 0
			for _, calls := range n.requests() {
				if len(calls) > c.most {
					refused++
				}
			}
			if refused > 1 { // after growAfter full requests the client tries one larger request
				t.Errorf("%d requests are refused", refused)
			}
		})
	}
}

// firstForty contains the block numbers 1 to 40.
var firstForty = func() (all []uint64) {
	for n := range uint64(40) {
		all = append(all, n+1)
	}
	return all
}()

// TestBatchRefusalIsShown: the error contains the node's own text, without the key from its URL.
func TestBatchRefusalIsShown(t *testing.T) {
	t.Parallel()
	n := newStubNode(t, 1)
	n.url += "/v2/0123456789abcdef"
	c := newPool(t, n)
	n.set(refuseBatches(n, 0, refuseStatus(200, "",
		`{"error":{"code":-32090,"message":"no credits left for key 0123456789abcdef"}}`)), nil)
	_, err := c.readHead(t.Context())
	if err == nil || !strings.Contains(err.Error(), "error -32090: no credits left for key") ||
		strings.Contains(err.Error(), "0123456789abcdef") {
		t.Errorf("%v", err)
	}
}

// TestBatchLimit: a refusal halves the limit, but not below a size that the node accepted. The limit grows slowly.
func TestBatchLimit(t *testing.T) {
	t.Parallel()
	var b batchLimit
	b.noteAnswer(4)
	b.noteRefusal(50, 1)
	heraldtest.Equal(t, "after 50 were refused", b.readSize(), 25)
	b.noteRefusal(25, 1)
	b.noteRefusal(12, 1)
	b.noteRefusal(6, 1)
	if got := b.readSize(); got != 4 {
		t.Errorf("%d: 4 were answered", got)
	}
	refused := 0
	for range 20 * growAfter {
		if calls := b.readSize(); calls > 10 {
			refused++
			b.noteRefusal(calls, 1)
		} else {
			b.noteAnswer(calls)
		}
	}
	if got := b.readSize(); got < 9 || got > 10 || refused > 20 {
		t.Errorf("%d, %d refusals", got, refused)
	}
	for range 30 {
		b.noteRefusal(b.readSize(), leastRated)
	}
	heraldtest.Equal(t, "by rate limits", b.readSize(), leastRated)
}

// provider is a node of 3,000 blocks with a log in every 100th. It refuses ranges and batches as providers do.
type provider struct {
	*stubNode
	width      uint64 // widest accepted range in blocks; 0: no limit
	refusal    nodeError
	silently   bool // answers only the accepted part of a wide range, without an error
	inStatus   int
	decimal    bool
	noTags     bool
	mostInOne  int
	widest     uint64
	violations int
}

const providerHead = 3000

func (p *provider) isWide(params []json.RawMessage) (filter logFilter, wide bool) {
	if err := json.Unmarshal(params[0], &filter); err != nil {
		p.t.Error(err)
	}
	blocks := uint64(filter.ToBlock-filter.FromBlock) + 1
	p.widest = max(p.widest, blocks)
	return filter, p.width > 0 && blocks > p.width
}

func (p *provider) number(n uint64) any {
	if p.decimal {
		return n
	}
	return hexutil.Uint64(n)
}

func (p *provider) log(n uint64) any {
	return map[string]any{"address": common.Address{1}, "topics": erc8004.Topics(erc8004.NewFeedback)[:1], "data": "0x",
		"blockNumber": p.number(n), "blockHash": blockHash(n), "blockTimestamp": p.number(2*n + 1),
		"transactionHash": common.Hash{3}, "transactionIndex": p.number(0), "logIndex": p.number(0)}
}

func (p *provider) answerCall(method string, params []json.RawMessage) (any, any) {
	switch method {
	case "eth_getBlockByNumber":
		tag := strings.Trim(string(params[0]), `"`)
		number := uint64(providerHead)
		switch {
		case tag == finalized && p.noTags:
			return nil, nodeError{-32602, "invalid argument 0: hex string without 0x prefix"}
		case tag == finalized:
			number -= 50
		case tag != latest:
			number = hexutil.MustDecodeUint64(tag)
		}
		return map[string]any{"number": p.number(number), "hash": blockHash(number), "parentHash": blockHash(number - 1),
			"timestamp": p.number(2*number + 1)}, nil
	case "eth_getBlockReceipts":
		return nil, nodeError{-32601, "the method does not exist"}
	case "eth_getLogs":
		var of hashFilter
		if err := json.Unmarshal(params[0], &of); err == nil && of.BlockHash != (common.Hash{}) {
			for n := uint64(0); n <= providerHead; n += 100 {
				if blockHash(n) == of.BlockHash {
					return []any{p.log(n)}, nil
				}
			}
			return []any{}, nil
		}
		filter, wide := p.isWide(params)
		if wide && !p.silently {
			p.violations++
			return nil, p.refusal
		}
		to := uint64(filter.ToBlock)
		if wide {
			to = uint64(filter.FromBlock) + p.width - 1
		}
		logs := []any{}
		for n := (uint64(filter.FromBlock) + 99) / 100 * 100; n <= to; n += 100 {
			logs = append(logs, p.log(n))
		}
		return logs, nil
	}
	return nil, nil
}

// TestFollowsProviders: a follower reads the chain from nodes with the known limits of every provider, trusted or not,
// and finds every log.
func TestFollowsProviders(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]provider{
		"no limits": {},
		"OP Mainnet's public node: 413 above 10 calls":        {mostInOne: 10, inStatus: 413},
		"Base's public node: 200 and one object, 10 calls":    {mostInOne: 10, inStatus: 200},
		"Hedera: 1,000 blocks, with more than one address":    {width: 1000, refusal: nodeError{-32000, "Exceeded maximum block range: 1000"}},
		"Alchemy, free: 10 blocks":                            {width: 10, refusal: nodeError{-32600, "Under the Free tier plan, you can make eth_getLogs requests with up to a 10 block range. Upgrade to PAYG for expanded block range."}},
		"QuickNode, trial: 5 blocks":                          {width: 5, refusal: nodeError{-32614, "eth_getLogs is limited to a 5 range"}},
		"Infura: -32602":                                      {width: 500, refusal: nodeError{-32602, "range 1000 exceeds limit of 500"}},
		"cut silently at 50,000 blocks":                       {width: 50_000, silently: true},
		"SKALE: decimal numbers, no tags":                     {decimal: true, noTags: true, width: 2000, refusal: nodeError{-32000, "block range is larger than 2000"}},
		"a node that refuses all batches":                     {mostInOne: 1, inStatus: 400},
		"a node that refuses batches and limits ranges by it": {mostInOne: 3, inStatus: 400, width: 10, refusal: nodeError{-32600, "up to a 10 block range"}},
	} {
		for _, trusted := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%t", name, trusted), func(t *testing.T) {
				t.Parallel()
				p := p
				p.stubNode = newStubNode(t, 1)
				p.set(func(rw http.ResponseWriter, r *http.Request) bool {
					if p.mostInOne <= 0 || p.lastCalls() <= p.mostInOne {
						return false
					}
					body := ""
					if p.inStatus == 200 {
						body = `{"error":{"code":-32014,"message":"too many calls in one batch"}}`
					}
					refuseStatus(p.inStatus, "", body)(rw, r)
					return true
				}, p.answerCall)
				c := newPool(t, p.stubNode)
				c.trusted = trusted
				next, events := uint64(0), 0
				f, err := c.NewFollower(FollowConfig{Deployment: erc8004.Deployment{Identity: common.Address{1}, Reputation: common.Address{2},
					Validation: common.Address{3}}, Limits: limits, Handle: func(_ context.Context, r Range) error {
					if r.From != next {
						t.Errorf("%d follows %d", r.From, next)
					}
					next, events = r.To+1, events+len(r.Events)
					return nil
				}})
				heraldtest.Must(t, err)
				for failed := 0; next <= providerHead && failed < 3; {
					if _, err := f.readNext(t.Context()); err != nil {
						failed++
					}
				}
				if next != providerHead+1 || events != providerHead/100+1 {
					t.Errorf("read up to %d, %d events", next, events)
				}
				if p.widest > 10_000 || p.violations > 12 {
					t.Errorf("the widest range has %d blocks, %d are refused", p.widest, p.violations)
				}
			})
		}
	}
}
