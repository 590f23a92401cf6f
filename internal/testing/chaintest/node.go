package chaintest

import (
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
)

// Node is a node of chain 1 with its own blocks. A test can replace its answers.
type Node struct {
	T      *testing.T
	URL    string
	Number byte // in the hashes of its blocks

	Mu     sync.Mutex
	spoil  func(http.ResponseWriter, *http.Request) bool            // if it returns true, it has answered the whole request
	answer func(method string, params []json.RawMessage) (any, any) // returns result and error; nil, nil: the default answer
	Asked  [][]string                                               // methods of each request
}

func NewNode(t *testing.T, number byte) *Node {
	t.Helper()
	s := &Node{T: t, Number: number}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

func (s *Node) Hash(n uint64) common.Hash { return common.Hash{s.Number, 31: byte(n)} }

func (s *Node) Set(
	spoil func(http.ResponseWriter, *http.Request) bool, answer func(string, []json.RawMessage) (any, any),
) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.spoil, s.answer, s.Asked = spoil, answer, nil
}

// AnswerTo returns an answer for set: to one method a result or an error, to the others the default answer.
func AnswerTo(method string, result, failure any) func(string, []json.RawMessage) (any, any) {
	return func(asked string, _ []json.RawMessage) (any, any) {
		if asked == method {
			return result, failure
		}
		return nil, nil
	}
}

// Requests returns the methods of each request since the last set, without requests that only ask for the chain id.
func (s *Node) Requests() (out [][]string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, methods := range s.Asked {
		if !slices.Equal(methods, []string{"eth_chainId"}) {
			out = append(out, methods)
		}
	}
	return out
}

// Count returns the number of requests since the last set.
func (s *Node) Count() int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return len(s.Asked)
}

func (s *Node) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	requests, isBatch, err := ReadRequests(r.Body)
	if err != nil {
		if r.Context().Err() == nil {
			s.T.Error(err)
		}
		return
	}
	var methods []string
	for _, q := range requests {
		methods = append(methods, q.Method)
	}
	s.Mu.Lock()
	s.Asked = append(s.Asked, methods)
	spoil, answer := s.spoil, s.answer
	s.Mu.Unlock()

	rw.Header().Set("Content-Type", "application/json")
	if spoil != nil && spoil(rw, r) {
		return
	}
	var answers []map[string]any
	for _, q := range requests {
		var result, failure any
		if answer != nil {
			result, failure = answer(q.Method, q.Params)
		}
		if result == nil && failure == nil {
			result = s.answerUsually(q)
		}
		answers = append(answers, q.Answer(result, failure))
	}
	WriteAnswers(rw, isBatch, answers)
}

// answerUsually returns the default answers: a node whose head is block 9 and whose finalized block is 5.
func (s *Node) answerUsually(q Request) any {
	switch q.Method {
	case "eth_chainId":
		return "0x1"
	case "eth_getBlockByNumber":
		n := uint64(9)
		if tag := strings.Trim(string(q.Params[0]), `"`); tag == "finalized" {
			n = 5
		} else if tag != "latest" {
			n = hexutil.MustDecodeUint64(tag)
		}
		return map[string]any{"number": hexutil.Uint64(n), "hash": s.Hash(n), "timestamp": "0x1"}
	case "eth_getLogs", "eth_getBlockReceipts":
		return []any{}
	}
	return nil
}

func BlockHash(n uint64) common.Hash { return crypto.Keccak256Hash(new(big.Int).SetUint64(n).Bytes()) }

// Failures returns ways in which an unreachable or wrong node fails, by name.
func Failures() map[string]func(http.ResponseWriter, *http.Request) bool {
	write := func(text string) func(http.ResponseWriter, *http.Request) bool {
		return always(RefuseStatus(http.StatusOK, "", text))
	}
	status := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return always(RefuseStatus(code, "", "no"))
	}
	return map[string]func(http.ResponseWriter, *http.Request) bool{
		"503":           status(http.StatusServiceUnavailable),
		"401":           status(http.StatusUnauthorized),
		"a page":        write("<html>"),
		"nothing":       write(""),
		"cut":           func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
		"half an":       write(`{"jsonrpc":"2.0","id":1,"resu`),
		"another chain": write(`{"jsonrpc":"2.0","id":1,"result":"0x2"}`),
	}
}

// Refuse returns a spoil function that answers 429 Too Many Requests, with Retry-After if it is not empty.
func Refuse(retryAfter string) func(http.ResponseWriter, *http.Request) bool {
	return always(RefuseStatus(http.StatusTooManyRequests, retryAfter, "no"))
}

// always returns a spoil function that answers every request with answer.
func always(answer func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request) bool {
	return func(rw http.ResponseWriter, r *http.Request) bool {
		answer(rw, r)
		return true
	}
}

// LastCalls returns the number of calls in the current request.
func (s *Node) LastCalls() int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return len(s.Asked[len(s.Asked)-1])
}

// RefuseBatches returns a spoil function for s that answers requests of more than most calls with answer.
func RefuseBatches(s *Node, most int, answer func(http.ResponseWriter, *http.Request)) func(
	http.ResponseWriter, *http.Request) bool {
	return func(rw http.ResponseWriter, r *http.Request) bool {
		if s.LastCalls() <= most {
			return false
		}
		answer(rw, r)
		return true
	}
}

func RefuseStatus(code int, retryAfter, body string) func(http.ResponseWriter, *http.Request) {
	return func(rw http.ResponseWriter, _ *http.Request) {
		if retryAfter != "" {
			rw.Header().Set("Retry-After", retryAfter)
		}
		rw.WriteHeader(code)
		_, _ = io.WriteString(rw, body)
	}
}
