package follower

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/trie"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// chainStub is a stub node whose chain makes a block every pace. Requests to it do not use the network, so that the
// fake clock of testing/synctest advances while a test waits for an answer.
type chainStub struct {
	*chaintest.Node
	pace     time.Duration
	began    time.Time
	fork     uint64        // blocks from this number on belong to another branch; 0: no fork
	finality time.Duration // age of the finalized block; 0: the stub has no finalized block
	full     bool          // every bloom is full
	carries  int           // number of transactions in a block
	every    uint64        // a block has a log if its number is a multiple of every; 0: no logs
	hides    func(n uint64) bool
	behind   uint64                 // number of newest blocks that the stub lacks
	frozen   time.Time              // the stub lacks the blocks after this time; zero: it lacks none
	asked    []string               // requested block numbers and tags
	numbers  map[common.Hash]uint64 // numbers of the requested blocks
	most     int                    // largest number of calls in one request
	calls    int
}

func newChainStub(t *testing.T, pace time.Duration) *chainStub {
	s := &chainStub{Node: &chaintest.Node{T: t, Number: 1, URL: "http://node.invalid"}, pace: pace, began: time.Now().Add(-12 * time.Hour),
		numbers: map[common.Hash]uint64{}}
	s.Set(nil, s.answerCall)
	return s
}

// RoundTrip passes the request to the stub's handler without a network.
func (s *chainStub) RoundTrip(req *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, req)
	s.most, s.calls = max(s.most, s.LastCalls()), s.calls+s.LastCalls()
	return answer.Result(), nil
}

// stubTransport answers requests to hosts without a network.
type stubTransport map[string]http.RoundTripper

func (stubs stubTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return stubs[req.URL.Host].RoundTrip(req)
}

// newStubReader returns a reader whose nodes are the stubs.
func newStubReader(t *testing.T, trusted bool, stubs ...*chainStub) *eventlog.Reader {
	t.Helper()
	transport := stubTransport{}
	cfg := node.Config{ChainID: 1, Transport: transport}
	for i, s := range stubs {
		host := fmt.Sprintf("node%d.invalid", i+1)
		transport[host] = s
		cfg.URLs = append(cfg.URLs, secret.New("http://"+host))
	}
	return eventlog.New(newPool(t, cfg), trusted)
}

func (s *chainStub) hashOf(n uint64) common.Hash {
	h := chaintest.BlockHash(n)
	if s.fork > 0 && n >= s.fork {
		h[0] ^= 0xff
	}
	return h
}

func (s *chainStub) head() uint64 {
	now := time.Now()
	if !s.frozen.IsZero() {
		now = s.frozen
	}
	return uint64(now.Sub(s.began)/s.pace) - s.behind
}

func (s *chainStub) seconds(n uint64) uint64 {
	return uint64(s.began.Add(time.Duration(n) * s.pace).Unix())
}

var stubRegistry = common.Address{1}

// logsOf returns the logs of block n.
func (s *chainStub) logsOf(n uint64) []*types.Log {
	if s.every == 0 || n%s.every != 0 {
		return []*types.Log{}
	}
	return []*types.Log{{Address: stubRegistry, Topics: erc8004.Topics(erc8004.NewFeedback)[:1], Data: []byte{}, BlockNumber: n,
		BlockHash: s.hashOf(n), BlockTimestamp: s.seconds(n), TxHash: common.Hash{3}}}
}

func (s *chainStub) receiptsOf(n uint64) types.Receipts {
	logs := s.logsOf(n)
	if len(logs) == 0 {
		return types.Receipts{}
	}
	return types.Receipts{{BlockHash: s.hashOf(n), BlockNumber: new(big.Int), Type: 2, Status: 1, CumulativeGasUsed: 21_000, Logs: logs,
		Bloom: types.CreateBloom(&types.Receipt{Logs: logs})}}
}

func (s *chainStub) answerCall(method string, params []json.RawMessage) (any, any) {
	switch method {
	case "eth_getBlockByNumber":
		return s.answerBlock(strings.Trim(string(params[0]), `"`)), nil
	case "eth_getLogs":
		var filter eventlog.Filter
		if err := json.Unmarshal(params[0], &filter); err != nil {
			s.T.Error(err)
		}
		logs := []*types.Log{}
		for n := uint64(filter.FromBlock); s.every > 0 && n <= min(uint64(filter.ToBlock), s.head()); n++ {
			if s.hides == nil || !s.hides(n) {
				logs = append(logs, s.logsOf(n)...)
			}
		}
		return logs, nil
	case "eth_getBlockReceipts":
		var hash common.Hash
		if err := json.Unmarshal(params[0], &hash); err != nil {
			s.T.Error(err)
		}
		n, known := s.numbers[hash]
		if !known || s.hashOf(n) != hash {
			return json.RawMessage("null"), nil
		}
		return s.receiptsOf(n), nil
	}
	return nil, nil
}

func (s *chainStub) answerBlock(tag string) any {
	s.asked = append(s.asked, tag)
	number := s.head()
	switch tag {
	case node.Latest:
	case node.Finalized:
		if s.finality == 0 {
			return json.RawMessage("null")
		}
		number -= min(number, uint64(s.finality/s.pace))
	default:
		number = hexutil.MustDecodeUint64(tag)
	}
	if number > s.head() {
		return json.RawMessage("null")
	}
	s.numbers[s.hashOf(number)] = number
	receipts := s.receiptsOf(number)
	var bloom types.Bloom
	for _, r := range receipts {
		bloom = r.Bloom
	}
	if s.full {
		for i := range bloom {
			bloom[i] = 0xff
		}
	}
	return map[string]any{"number": hexutil.Uint64(number), "hash": s.hashOf(number), "parentHash": s.hashOf(number - 1),
		"timestamp": hexutil.Uint64(s.seconds(number)), "logsBloom": bloom, "receiptsRoot": types.DeriveSha(receipts, trie.NewListHasher()),
		"transactions": make([]common.Hash, s.carries)}
}

// ledger stores the ranges that a follower hands over, as the store does.
type ledger struct {
	next     uint64          // the block after the last range
	rewinds  int             // ranges that replaced blocks
	events   map[uint64]int  // the number of events by block, except of replaced blocks
	orphaned map[uint64]bool // blocks of events that were replaced and not handed over again
	taken    []uint64        // blocks whose orphaned events were taken back
	found    map[uint64]int  // the number of events that checks found, by block
}

func (l *ledger) handle(_ context.Context, r Range) error {
	if r.From < l.next {
		l.rewinds++
	}
	l.next = r.To + 1
	for n := range l.events {
		if n >= r.From {
			delete(l.events, n)
			l.orphaned[n] = true
		}
	}
	for _, e := range r.Events {
		l.events[e.Log.BlockNumber]++
		delete(l.orphaned, e.Log.BlockNumber)
	}
	if r.AtHead {
		l.taken = slices.AppendSeq(l.taken, maps.Keys(l.orphaned))
		clear(l.orphaned)
	}
	return nil
}

// newStubFollower returns a follower of the stubs' chain, and the ledger that it fills.
func newStubFollower(t *testing.T, r *eventlog.Reader, cfg Config) (*Follower, *ledger) {
	t.Helper()
	l := &ledger{next: cfg.From, events: map[uint64]int{}, orphaned: map[uint64]bool{}, found: map[uint64]int{}}
	cfg.Deployment, cfg.Limits, cfg.Poll = erc8004.Deployment{Reputation: stubRegistry}, limits, cmp.Or(cfg.Poll, 2*time.Second)
	cfg.Handle = l.handle
	cfg.Found = func(_ context.Context, events []eventlog.Entry) (unknown int, _ error) {
		for _, e := range events {
			if l.found[e.Log.BlockNumber]++; l.events[e.Log.BlockNumber] == 0 {
				unknown++
			}
		}
		return unknown, nil
	}
	return New(r, cfg), l
}

// readToHead calls readNext until the follower is at the head.
func readToHead(t *testing.T, f *Follower) {
	t.Helper()
	for more := true; more; {
		var err error
		more, err = f.readNext(t.Context())
		heraldtest.Must(t, err)
	}
}

// countRequests returns the number of requests to the stub and of the calls in them. It ignores requests that only ask
// for the chain id.
func (s *chainStub) countRequests() (requests, calls int) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, methods := range s.Node.Asked {
		if !slices.Equal(methods, []string{"eth_chainId"}) {
			requests, calls = requests+1, calls+len(methods)
		}
	}
	return requests, calls
}
