package follower

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// provider is a node of 3,000 blocks with a log in every 100th. It refuses ranges and batches as providers do.
type provider struct {
	*chaintest.Node
	width      uint64 // widest accepted range in blocks; 0: no limit
	refusal    chaintest.Error
	states     bool // the refusal states the width
	silently   bool // answers only the accepted part of a wide range, without an error
	inStatus   int
	decimal    bool
	noTags     bool
	mostInOne  int
	widest     uint64
	violations int
}

const providerHead = 1500

func (p *provider) isWide(params []json.RawMessage) (filter eventlog.Filter, wide bool) {
	if err := json.Unmarshal(params[0], &filter); err != nil {
		p.T.Error(err)
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
		"blockNumber": p.number(n), "blockHash": chaintest.BlockHash(n), "blockTimestamp": p.number(2*n + 1),
		"transactionHash": common.Hash{3}, "transactionIndex": p.number(0), "logIndex": p.number(0)}
}

func (p *provider) answerCall(method string, params []json.RawMessage) (any, any) {
	switch method {
	case "eth_getBlockByNumber":
		tag := strings.Trim(string(params[0]), `"`)
		number := uint64(providerHead)
		switch {
		case tag == node.Finalized && p.noTags:
			return nil, chaintest.Error{Code: -32602, Message: "invalid argument 0: hex string without 0x prefix"}
		case tag == node.Finalized:
			number -= 50
		case tag != node.Latest:
			number = hexutil.MustDecodeUint64(tag)
		}
		return map[string]any{"number": p.number(number), "hash": chaintest.BlockHash(number), "parentHash": chaintest.BlockHash(number - 1),
			"timestamp": p.number(2*number + 1)}, nil
	case "eth_getBlockReceipts":
		return nil, chaintest.Error{Code: -32601, Message: "the method does not exist"}
	case "eth_getLogs":
		var of eventlog.BlockFilter
		if err := json.Unmarshal(params[0], &of); err == nil && of.BlockHash != (common.Hash{}) {
			for n := uint64(0); n <= providerHead; n += 100 {
				if chaintest.BlockHash(n) == of.BlockHash {
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

// TestFollowsProviders: a follower reads the chain from nodes with the known limits of every provider, trusted or not. It
// finds every log, and skips no block. After one refusal that states the accepted width, it asks for that width.
func TestFollowsProviders(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]provider{
		"no limits": {},
		"OP Mainnet's public node: 413 above 10 calls":        {mostInOne: 10, inStatus: 413},
		"Base's public node: 200 and one object, 10 calls":    {mostInOne: 10, inStatus: 200},
		"dRPC's free tier: 500 above 3 calls":                 {mostInOne: 3, inStatus: 500},
		"Hedera: 1,000 blocks, with more than one address":    {width: 1000, states: true, refusal: chaintest.Error{Code: -32000, Message: "Exceeded maximum block range: 1000"}},
		"Alchemy, free: 10 blocks":                            {width: 10, refusal: chaintest.Error{Code: -32600, Message: "Under the Free tier plan, you can make eth_getLogs requests with up to a 10 block range. Upgrade to PAYG for expanded block range."}},
		"QuickNode, trial: 5 blocks":                          {width: 5, refusal: chaintest.Error{Code: -32614, Message: "eth_getLogs is limited to a 5 range"}},
		"Infura: -32602":                                      {width: 500, states: true, refusal: chaintest.Error{Code: -32602, Message: "range 1000 exceeds limit of 500"}},
		"cut silently at 50,000 blocks":                       {width: 50_000, silently: true},
		"SKALE: decimal numbers, no tags":                     {decimal: true, noTags: true, width: 2000, refusal: chaintest.Error{Code: -32000, Message: "block range is larger than 2000"}},
		"a node that refuses all batches":                     {mostInOne: 1, inStatus: 400},
		"a node that refuses batches and limits ranges by it": {mostInOne: 3, inStatus: 400, width: 10, refusal: chaintest.Error{Code: -32600, Message: "up to a 10 block range"}},
	} {
		for _, trusted := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%t", name, trusted), func(t *testing.T) {
				t.Parallel()
				p := p
				p.Node = chaintest.NewNode(t, 1)
				p.Set(func(rw http.ResponseWriter, r *http.Request) bool {
					if p.mostInOne <= 0 || p.LastCalls() <= p.mostInOne {
						return false
					}
					body := ""
					switch p.inStatus {
					case 500:
						body = `{"error":{"code":31,"message":"Batch of more than 3 requests are not allowed on free tier"}}`
					case 200:
						body = `{"error":{"code":-32014,"message":"too many calls in one batch"}}`
					}
					chaintest.RefuseStatus(p.inStatus, "", body)(rw, r)
					return true
				}, p.answerCall)
				c := newReader(t, 1, trusted, p.URL)
				next, events := uint64(0), 0
				f := New(c, Config{Deployment: erc8004.Deployment{Identity: common.Address{1}, Reputation: common.Address{2},
					Validation: common.Address{3}}, Limits: limits, Handle: func(_ context.Context, r Range) error {
					heraldtest.Equal(t, "the first block that is asked for", r.From, next)
					next, events = r.To+1, events+len(r.Events)
					return nil
				}})
				for failed := 0; next <= providerHead && failed < 3; {
					if _, err := f.readNext(t.Context()); err != nil {
						failed++
					}
				}
				heraldtest.Equal(t, "read up to", next, providerHead+1)
				heraldtest.Equal(t, "events read", events, providerHead/100+1)
				if p.widest > 10_000 || p.violations > 12 || p.states && p.violations != 1 {
					t.Errorf("the widest range has %d blocks, %d are refused", p.widest, p.violations)
				}
			})
		}
	}
}

// TestDefectiveFirstNode: a follower reads the events and stays near the head although the first node answers in a way
// that does not help. It reads from the second node, or the receipts of blocks. It notices no reorg, and reports no stall.
func TestDefectiveFirstNode(t *testing.T) {
	t.Parallel()
	null := json.RawMessage("null")
	noHead := func(failure any) func(*chainStub, string, string) (any, any) {
		return func(_ *chainStub, method, _ string) (any, any) {
			return chaintest.AnswerTo("eth_getBlockByNumber", null, failure)(method, nil)
		}
	}
	// lacks returns null for the blocks that the node does not have.
	lacks := func(isMissing func(s *chainStub, n uint64) bool) func(*chainStub, string, string) (any, any) {
		return func(s *chainStub, method, tag string) (any, any) {
			if n, err := hexutil.DecodeUint64(tag); method == "eth_getBlockByNumber" && err == nil && isMissing(s, n) {
				return null, nil
			}
			return nil, nil
		}
	}
	for name, c := range map[string]struct {
		alone  bool                                                         // there is no second node
		spoil  func(s *chainStub, method, tag string) (result, failure any) // of the first node; nil, nil: its usual answer
		behind uint64                                                       // most blocks between the follower and the head
	}{
		"it returns no newest block":   {spoil: noHead(nil), behind: 2},
		"its newest block is an error": {spoil: noHead(chaintest.Error{Code: -32001, Message: "quota exceeded"}), behind: 2},
		"it has dropped old blocks":    {spoil: lacks(func(s *chainStub, n uint64) bool { return n < s.head()-400 }), behind: 30},
		"it lacks its newest blocks":   {spoil: lacks(func(s *chainStub, n uint64) bool { return n+20 > s.head() }), behind: 30},
		"it refuses logs, as BNB Smart Chain's official nodes do": {spoil: func(_ *chainStub, method, _ string) (any, any) {
			return chaintest.AnswerTo("eth_getLogs", nil, chaintest.Error{Code: -32005, Message: "limit exceeded"})(method, nil)
		}, behind: 5},
		"its logs lack fields": {spoil: func(_ *chainStub, method, _ string) (any, any) {
			return chaintest.AnswerTo("eth_getLogs", json.RawMessage(`[{"data":"0x"}]`), nil)(method, nil)
		}, behind: 2},
		"its logs are no list": {spoil: func(_ *chainStub, method, _ string) (any, any) {
			return chaintest.AnswerTo("eth_getLogs", json.RawMessage(`{"logs":[]}`), nil)(method, nil)
		}, behind: 2},
		// Null instead of an empty list does not show that the node has the logs of the range.
		"it returns null for logs": {alone: true, spoil: func(_ *chainStub, method, _ string) (any, any) {
			return chaintest.AnswerTo("eth_getLogs", null, nil)(method, nil)
		}, behind: 2},
		"it invents its head": {spoil: func(s *chainStub, method, tag string) (any, any) {
			if method != "eth_getBlockByNumber" || tag != node.Latest {
				return nil, nil
			}
			n := s.head() + 1_000_000
			return map[string]any{"number": hexutil.Uint64(n), "hash": s.hashOf(n), "parentHash": s.hashOf(n - 1), "timestamp": hexutil.Uint64(s.seconds(n - 1_000_000))}, nil
		}, behind: 30},
		"its head is always old": {spoil: func(s *chainStub, _, _ string) (any, any) { s.behind = 100; return nil, nil }, behind: 2},
		"its head stops": {spoil: func(s *chainStub, _, _ string) (any, any) {
			if stops := s.began.Add(12*time.Hour + 3*time.Minute); time.Now().After(stops) {
				s.frozen = stops
			}
			return nil, nil
		}, behind: 2},
	} {
		for _, trusted := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%t", name, trusted), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					stubs := []*chainStub{newChainStub(t, 2*time.Second)}
					if !c.alone {
						stubs = append(stubs, newChainStub(t, 2*time.Second))
					}
					for _, s := range stubs {
						s.every, s.finality = 5, 10*time.Minute
					}
					first, good := stubs[0], stubs[len(stubs)-1]
					first.Set(nil, func(method string, params []json.RawMessage) (any, any) {
						tag := ""
						if len(params) > 0 {
							tag = strings.Trim(string(params[0]), `"`)
						}
						if result, failure := c.spoil(first, method, tag); result != nil || failure != nil {
							return result, failure
						}
						return first.answerCall(method, params)
					})
					from := good.head() - 1000
					f, got := newStubFollower(t, newStubReader(t, trusted, stubs...), Config{From: from,
						Stalled: func(_ context.Context, why error, _ time.Time) {
							if why != nil {
								t.Error(why)
							}
						}})
					followFor(t, f, 13*time.Minute)
					if behind := good.head() - (f.next - 1); behind > c.behind || uint64(len(got.events)) < (f.next-from)/5 || got.rewinds > 0 {
						t.Errorf("%d blocks behind, %d events in blocks %d to %d, %d rewinds", behind, len(got.events), from, f.next-1, got.rewinds)
					}
				})
			})
		}
	}
}

// TestFirstReadingLeavesNoNode: no node returns the first node's newest block for 3 s after the start. The follower asks
// the second node first only after 30 s.
func TestFirstReadingLeavesNoNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		first, second := newChainStub(t, 2*time.Second), newChainStub(t, 2*time.Second)
		for _, s := range []*chainStub{first, second} {
			s.Set(nil, func(method string, params []json.RawMessage) (any, any) {
				if method == "eth_getBlockByNumber" && strings.HasPrefix(string(params[0]), `"0x`) && time.Since(began) < 3*time.Second {
					return json.RawMessage("null"), nil
				}
				return s.answerCall(method, params)
			})
		}
		f, _ := newStubFollower(t, newStubReader(t, true, first, second), Config{From: first.head()})
		followFor(t, f, 21*time.Second) // in the middle between two blocks
		heads := 0
		for _, tag := range second.asked {
			if tag == node.Latest {
				heads++
			}
		}
		heraldtest.Equal(t, "requests to the second node for its head", heads, 1) // with the finalized block
		heraldtest.Equal(t, "blocks behind", first.head()-(f.next-1), 0)
	})
}

// TestNullLogsOfWideRange: a node answers null for ranges without logs, and refuses every 20th request because of its rate
// limit. The follower reads so few blocks at a time that their requests succeed, and reaches the head.
func TestNullLogsOfWideRange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newChainStub(t, 2*time.Second)
		requests, mined := 0, s.head()-1000
		s.Set(nil, func(method string, params []json.RawMessage) (any, any) {
			switch method {
			case "eth_chainId": // ends each request
				if requests++; requests%20 == 0 {
					return nil, chaintest.Error{Code: 429, Message: "too many requests"}
				}
			case "eth_getLogs":
				return json.RawMessage("null"), nil
			}
			return s.answerCall(method, params)
		})
		s.every = mined
		f, got := newStubFollower(t, newStubReader(t, true, s), Config{From: s.head() - 5000})
		followFor(t, f, 10*time.Minute)
		if behind := s.head() - (f.next - 1); behind > 2 || got.events[mined] != 1 {
			t.Errorf("%d blocks behind, %d events in block %d", behind, got.events[mined], mined)
		}
	})
}
