package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/devnet/registry"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

import ()

// scriptedNode is a node with scripted answers. It supports batches.
type scriptedNode struct {
	head   uint64
	chain  uint64                                  // default 1
	pace   time.Duration                           // between its blocks; 0: all blocks have the timestamp 1
	headAt time.Time                               // the time of its head
	tags   map[string]uint64                       // the blocks of tags other than latest; nil: all tags name the head
	logs   func(from, to uint64) (any, *nodeError) // the answer to eth_getLogs
	stored []byte                                  // result of readFeedback; nil: the call reverts
	last   uint64                                  // result of getLastIndex; 0: the call reverts
	hidden bool                                    // the registry reports no identity registry: the call reverts
	hangs  bool                                    // it never answers eth_getLogs
	dies   bool                                    // after an eth_getLogs request it answers nothing
	lags   bool                                    // it lacks the blocks that it names
	pruned func(block uint64) (any, *nodeError)    // replaces the answer to eth_getBlockByNumber; nil: the block
	status func(from, to uint64) int               // HTTP status of a request with eth_getLogs; 0: OK

	mu    sync.Mutex
	dead  bool
	asked [][2]uint64 // requested ranges
}

func (s *scriptedNode) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var requests []nodeRequest
	batch := bytes.HasPrefix(body, []byte("["))
	if !batch {
		body = append(append([]byte("["), body...), ']')
	}
	if err := json.Unmarshal(body, &requests); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	answers := make([]map[string]any, len(requests))
	for i, q := range requests {
		s.mu.Lock()
		s.dead = s.dead || s.dies && q.Method == "eth_getLogs"
		mute := s.dead || s.hangs && q.Method == "eth_getLogs"
		s.mu.Unlock()
		if mute {
			<-r.Context().Done()
			return
		}
		result, failure, status := s.answer(q)
		if status != 0 {
			http.Error(rw, "no", status)
			return
		}
		answers[i] = map[string]any{"jsonrpc": "2.0", "id": q.ID, "result": result}
		if failure != nil {
			answers[i] = map[string]any{"jsonrpc": "2.0", "id": q.ID, "error": failure}
		}
	}
	var out any = answers
	if !batch {
		out = answers[0]
	}
	_ = json.NewEncoder(rw).Encode(out)
}

func (s *scriptedNode) answer(q nodeRequest) (result any, failure *nodeError, status int) {
	switch q.Method {
	case "eth_chainId":
		return hexutil.Uint64(max(s.chain, 1)), nil, 0
	case "eth_getBlockByNumber":
		name := strings.Trim(string(q.Params[0]), `"`)
		n, err := hexutil.DecodeUint64(name)
		tagged, named := s.tags[name]
		switch {
		case err != nil && named:
			n = tagged
		case err != nil && s.tags != nil && name != "latest":
			return nil, nil, 0
		case err != nil:
			n = s.head
		case s.lags || n > s.head:
			return nil, nil, 0
		case s.pruned != nil:
			result, failure = s.pruned(n)
			return result, failure, 0
		}
		at := uint64(1)
		if s.pace > 0 {
			at = uint64(s.headAt.Add(-time.Duration(s.head-n) * s.pace).Unix())
		}
		return map[string]any{"number": hexutil.Uint64(n), "hash": blockHash(n), "timestamp": hexutil.Uint64(at)}, nil, 0
	case "eth_getLogs":
		var f struct{ FromBlock, ToBlock hexutil.Uint64 }
		var of struct{ BlockHash common.Hash }
		if err := errors.Join(json.Unmarshal(q.Params[0], &f), json.Unmarshal(q.Params[0], &of)); err != nil {
			return nil, &nodeError{-32602, err.Error()}, 0
		}
		if of.BlockHash != (common.Hash{}) {
			logs, failure := s.logs(0, s.head)
			found, _ := logs.([]types.Log)
			return slices.DeleteFunc(found, func(l types.Log) bool { return l.BlockHash != of.BlockHash }), failure, 0
		}
		from, to := uint64(f.FromBlock), uint64(f.ToBlock)
		s.mu.Lock()
		s.asked = append(s.asked, [2]uint64{from, to})
		s.mu.Unlock()
		if s.status != nil {
			if code := s.status(from, to); code != 0 {
				return nil, nil, code
			}
		}
		result, failure = s.logs(from, to)
		return result, failure, 0
	case "eth_call":
		asksIdentity := strings.Contains(string(q.Params[0]), hexutil.Encode(erc8004.PackGetIdentityRegistry()))
		if asksIdentity && s.hidden {
			break
		}
		if asksIdentity {
			return hexutil.Bytes(common.LeftPadBytes(scriptedRegistries().Identity.Bytes(), 32)), nil, 0
		}
		call, _ := erc8004.PackGetLastIndex(big.NewInt(0), common.Address{})
		switch isLast := strings.Contains(string(q.Params[0]), hexutil.Encode(call[:4])); {
		case isLast && s.last > 0:
			return hexutil.Bytes(common.LeftPadBytes(new(big.Int).SetUint64(s.last).Bytes(), 32)), nil, 0
		case !isLast && s.stored != nil:
			return hexutil.Bytes(s.stored), nil, 0
		}
	}
	return nil, &nodeError{3, "execution reverted"}, 0
}

func scriptedRegistries() erc8004.Deployment {
	d, _ := erc8004.KnownDeployment(1)
	return d
}

// scriptedLog returns a NewFeedback log of the current form, and its job without transaction and block.
func scriptedLog(t *testing.T, block uint64) (types.Log, job.Job) {
	t.Helper()
	spec, err := registry.ReputationRegistryMetaData.ParseABI()
	heraldtest.Must(t, err)
	j := job.Job{Kind: job.KindNewFeedback, ChainID: 1, IdentityRegistry: scriptedRegistries().Identity,
		ReputationRegistry: scriptedRegistries().Reputation,
		AgentID:            big.NewInt(42), ClientAddress: common.Address{0xc1}, FeedbackIndex: 7, Value: big.NewInt(9977),
		ValueDecimals: 2, Tag1: "uptime",
		Endpoint: "https://a", FeedbackURI: "ipfs://x", FeedbackHash: common.Hash{1}}
	event := spec.Events["NewFeedback"]
	data, err := event.Inputs.NonIndexed().Pack(j.FeedbackIndex, j.Value, j.ValueDecimals, j.Tag1, j.Tag2, j.Endpoint,
		j.FeedbackURI, j.FeedbackHash)
	heraldtest.Must(t, err)
	return types.Log{Address: j.ReputationRegistry, Data: data, BlockNumber: block, BlockHash: blockHash(block),
		TxHash: common.Hash{9},
		Topics: append([]common.Hash{event.ID}, common.BigToHash(j.AgentID), common.BytesToHash(j.ClientAddress.Bytes()),
			crypto.Keccak256Hash([]byte(j.Tag1)))}, j
}

// serve starts the node and returns its address.
func (s *scriptedNode) serve(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server.URL
}

// RoundTrip answers without a network.
func (s *scriptedNode) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return answer.Result(), nil
}

// holding answers with the logs that lie in the range.
func holding(logs ...types.Log) func(from, to uint64) (any, *nodeError) {
	return func(from, to uint64) (any, *nodeError) {
		out := []types.Log{}
		for _, l := range logs {
			if from <= l.BlockNumber && l.BlockNumber <= to {
				out = append(out, l)
			}
		}
		return out, nil
	}
}

// limited wraps next and refuses ranges of more than blocks blocks, as nodes do.
func limited(blocks uint64, next func(from, to uint64) (any, *nodeError)) func(from, to uint64) (any, *nodeError) {
	return func(from, to uint64) (any, *nodeError) {
		if to-from >= blocks {
			return nil, &nodeError{-32602, "block range too large"}
		}
		return next(from, to)
	}
}
