package chaintest

import (
	"encoding/json"
	"errors"
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
	"github.com/agentherald/herald/internal/testing/devnet/contracts"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// Script is a node with scripted answers. It supports batches.
type Script struct {
	Head   uint64
	Chain  uint64                              // default 1
	Pace   time.Duration                       // between its blocks; 0: all blocks have the time of the head
	HeadAt time.Time                           // the time of its head; zero: its timestamp is 1
	Tags   map[string]uint64                   // the blocks of tags other than latest; nil: all tags name the head
	Logs   func(from, to uint64) (any, *Error) // the answer to eth_getLogs
	Stored []byte                              // result of readFeedback; nil: the call reverts
	State  *Error                              // answers calls of readFeedback at other blocks than latest; nil: Stored
	Last   uint64                              // result of getLastIndex; 0: the call reverts
	Hidden bool                                // the registry reports no identity registry: the call reverts
	Hangs  bool                                // it never answers eth_getLogs
	Dies   bool                                // after an eth_getLogs request it answers nothing
	Lags   bool                                // it lacks the blocks that it names
	Pruned func(block uint64) (any, *Error)    // replaces the answer to eth_getBlockByNumber; nil: the block
	Status func(from, to uint64) int           // HTTP status of a request with eth_getLogs; 0: OK

	mu    sync.Mutex
	dead  bool
	Asked [][2]uint64 // requested ranges
}

func (s *Script) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	requests, isBatch, err := ReadRequests(r.Body)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	answers := make([]map[string]any, len(requests))
	for i, q := range requests {
		s.mu.Lock()
		s.dead = s.dead || s.Dies && q.Method == "eth_getLogs"
		mute := s.dead || s.Hangs && q.Method == "eth_getLogs"
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
		answers[i] = q.Answer(result, failure)
	}
	WriteAnswers(rw, isBatch, answers)
}

func (s *Script) answer(q Request) (result any, failure *Error, status int) {
	switch q.Method {
	case "eth_chainId":
		return hexutil.Uint64(max(s.Chain, 1)), nil, 0
	case "eth_getBlockByNumber":
		name := strings.Trim(string(q.Params[0]), `"`)
		n, err := hexutil.DecodeUint64(name)
		tagged, named := s.Tags[name]
		switch {
		case err != nil && named:
			n = tagged
		case err != nil && s.Tags != nil && name != "latest":
			return nil, nil, 0
		case err != nil:
			n = s.Head
		case s.Lags || n > s.Head:
			return nil, nil, 0
		case s.Pruned != nil:
			result, failure = s.Pruned(n)
			return result, failure, 0
		}
		at := uint64(1)
		if !s.HeadAt.IsZero() {
			at = uint64(s.HeadAt.Add(-time.Duration(s.Head-n) * s.Pace).Unix())
		}
		return map[string]any{"number": hexutil.Uint64(n), "hash": BlockHash(n), "timestamp": hexutil.Uint64(at)}, nil, 0
	case "eth_getLogs":
		var f struct{ FromBlock, ToBlock hexutil.Uint64 }
		var of struct{ BlockHash common.Hash }
		if err := errors.Join(json.Unmarshal(q.Params[0], &f), json.Unmarshal(q.Params[0], &of)); err != nil {
			return nil, &Error{Code: -32602, Message: err.Error()}, 0
		}
		if of.BlockHash != (common.Hash{}) {
			logs, failure := s.Logs(0, s.Head)
			found, _ := logs.([]types.Log)
			return slices.DeleteFunc(found, func(l types.Log) bool { return l.BlockHash != of.BlockHash }), failure, 0
		}
		from, to := uint64(f.FromBlock), uint64(f.ToBlock)
		s.mu.Lock()
		s.Asked = append(s.Asked, [2]uint64{from, to})
		s.mu.Unlock()
		if s.Status != nil {
			if code := s.Status(from, to); code != 0 {
				return nil, nil, code
			}
		}
		result, failure = s.Logs(from, to)
		return result, failure, 0
	case "eth_call":
		asksIdentity := strings.Contains(string(q.Params[0]), hexutil.Encode(erc8004.PackGetIdentityRegistry()))
		if asksIdentity && s.Hidden {
			break
		}
		if asksIdentity {
			return hexutil.Bytes(common.LeftPadBytes(ScriptedRegistries().Identity.Bytes(), 32)), nil, 0
		}
		call, _ := erc8004.PackGetLastIndex(big.NewInt(0), common.Address{})
		switch isLast := strings.Contains(string(q.Params[0]), hexutil.Encode(call[:4])); {
		case isLast && s.Last > 0:
			return hexutil.Bytes(common.LeftPadBytes(new(big.Int).SetUint64(s.Last).Bytes(), 32)), nil, 0
		case !isLast && s.State != nil && string(q.Params[1]) != `"latest"`:
			return nil, s.State, 0
		case !isLast && s.Stored != nil:
			return hexutil.Bytes(s.Stored), nil, 0
		}
	}
	return nil, &Error{Code: 3, Message: "execution reverted"}, 0
}

func ScriptedRegistries() erc8004.Deployment {
	d, _ := erc8004.KnownDeployment(1)
	return d
}

// ScriptedLog returns a NewFeedback log of the current form, and its job without transaction and block.
func ScriptedLog(t *testing.T, block uint64) (types.Log, job.Job) {
	t.Helper()
	j := job.Job{Kind: job.KindNewFeedback, ChainID: 1, IdentityRegistry: ScriptedRegistries().Identity,
		ReputationRegistry: ScriptedRegistries().Reputation,
		AgentID:            big.NewInt(42), ClientAddress: common.Address{0xc1}, FeedbackIndex: 7, Value: big.NewInt(9977),
		ValueDecimals: 2, Tag1: "uptime",
		Endpoint: "https://a", FeedbackURI: "ipfs://x", FeedbackHash: common.Hash{1}}
	event := contracts.Reputation().ABI.Events["NewFeedback"]
	data, err := event.Inputs.NonIndexed().Pack(j.FeedbackIndex, j.Value, j.ValueDecimals, j.Tag1, j.Tag2, j.Endpoint,
		j.FeedbackURI, j.FeedbackHash)
	heraldtest.Must(t, err)
	return types.Log{Address: j.ReputationRegistry, Data: data, BlockNumber: block, BlockHash: BlockHash(block),
		TxHash: common.Hash{9},
		Topics: append([]common.Hash{event.ID}, common.BigToHash(j.AgentID), common.BytesToHash(j.ClientAddress.Bytes()),
			crypto.Keccak256Hash([]byte(j.Tag1)))}, j
}

// Serve starts the node and returns its address.
func (s *Script) Serve(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server.URL
}

// RoundTrip answers without a network.
func (s *Script) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return answer.Result(), nil
}

// Holding answers with the logs that lie in the range.
func Holding(logs ...types.Log) func(from, to uint64) (any, *Error) {
	return func(from, to uint64) (any, *Error) {
		outside := func(l types.Log) bool { return l.BlockNumber < from || to < l.BlockNumber }
		return slices.DeleteFunc(append([]types.Log{}, logs...), outside), nil
	}
}

// Limited wraps next and refuses ranges of more than blocks blocks, as nodes do.
func Limited(blocks uint64, next func(from, to uint64) (any, *Error)) func(from, to uint64) (any, *Error) {
	return func(from, to uint64) (any, *Error) {
		if to-from >= blocks {
			return nil, &Error{Code: -32602, Message: "block range too large"}
		}
		return next(from, to)
	}
}
