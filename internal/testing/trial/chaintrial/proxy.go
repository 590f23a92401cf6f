package chaintrial

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/testing/chaintest"
)

// Fault is one way in which a node misbehaves.
type Fault string

// The faults. A Proxy has one of them at a time, for a few requests.
const (
	Errs       Fault = "errs"       // failing statuses, 429 with Retry-After, JSON-RPC errors, closed connections
	Slow       Fault = "slow"       // answers late
	Cuts       Fault = "cuts"       // sends only the beginning of the answer
	Behind     Fault = "behind"     // is some blocks behind the head, and silently returns no logs above its head
	Ahead      Fault = "ahead"      // reports a head that does not exist
	Repeats    Fault = "repeats"    // returns every log twice
	Forgets    Fault = "forgets"    // returns only a part of the logs
	OtherChain Fault = "otherchain" // answers for another chain: its id, its hashes, no logs
	Limits     Fault = "limits"     // refuses ranges and answers above a limit
)

// Faults are all faults.
var Faults = []Fault{Errs, Slow, Cuts, Behind, Ahead, Repeats, Forgets, OtherChain, Limits}

const (
	mostOfMood    = 12 // requests
	mostBlocks    = 40 // maximum range while Limits lasts
	mostLogs      = 300
	mostBehind    = 6
	proxyTimeout  = 10 * time.Second
	mostSlow      = 300 * time.Millisecond
	largestAsking = 8 << 20
)

// Proxy forwards requests to an honest node and misbehaves half of the time.
type Proxy struct {
	node     string
	faults   []Fault
	finality uint64

	mu     sync.Mutex
	random *rand.Rand
	mood   Fault // empty while it is honest
	left   int   // remaining requests of this mood
	counts map[Fault]int
}

// NewProxy returns a Proxy. Without faults it is always honest. The block that it reports as finalized is finality
// blocks behind the head, because development chains finalise blocks that they replace a moment later.
func NewProxy(node string, seed, finality uint64, faults ...Fault) *Proxy {
	return &Proxy{node: node, faults: faults, finality: finality, random: rand.New(rand.NewPCG(seed, 2)),
		counts: map[Fault]int{}}
}

// Counts returns the number of requests per fault.
func (p *Proxy) Counts() map[Fault]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// Repent makes the proxy honest from now on.
func (p *Proxy) Repent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults, p.mood, p.left = nil, "", 0
}

// lie is the treatment of one request, with the random numbers for it.
type lie struct {
	fault Fault
	roll  int // 0 to 999
	seed  uint64
}

func (p *Proxy) next() lie {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 {
		p.mood = ""
		if len(p.faults) > 0 && p.random.IntN(2) == 0 {
			p.mood = p.faults[p.random.IntN(len(p.faults))]
		}
		p.left = 1 + p.random.IntN(mostOfMood)
	}
	p.left--
	if p.mood != "" {
		p.counts[p.mood]++
	}
	return lie{p.mood, p.random.IntN(1000), p.random.Uint64()}
}

type question = chaintest.Request

// ServeHTTP answers one request, which is a single question or a batch.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), proxyTimeout)
	defer cancel()
	l := p.next()
	if l.fault == Errs && fail(w, l.roll) {
		return
	}
	if l.fault == Slow {
		wait(ctx, mostSlow*time.Duration(l.roll)/1000)
	}
	body, err := p.answer(ctx, http.MaxBytesReader(w, r.Body, largestAsking), l)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if l.fault == Cuts {
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		_, _ = w.Write(body[:len(body)*l.roll/1000]) // the client receives the truncated body
		_ = http.NewResponseController(w).Flush()    // without it, the client would receive nothing
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body) // a client that disconnected needs no answer
}

// fail answers without asking the node. For one roll in five it returns false, and answerOne returns the error.
func fail(w http.ResponseWriter, roll int) bool {
	switch roll % 5 {
	case 0:
		http.Error(w, "internal", http.StatusInternalServerError)
	case 1:
		http.Error(w, "<html>bad gateway</html>", http.StatusBadGateway)
	case 2:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "slow down", http.StatusTooManyRequests)
	case 3:
		panic(http.ErrAbortHandler)
	default:
		return false
	}
	return true
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// answer asks the node one question after the other and distorts the answers.
func (p *Proxy) answer(ctx context.Context, asked io.Reader, l lie) ([]byte, error) {
	questions, isBatch, err := chaintest.ReadRequests(asked)
	if err != nil {
		return nil, fmt.Errorf("read the question: %w", err)
	}
	head, err := Head(ctx, p.node) // read once, so that all answers of a batch show the same head
	if err != nil {
		return nil, err
	}
	node, err := rpc.DialContext(ctx, p.node)
	if err != nil {
		return nil, err
	}
	defer node.Close()
	v := view{lie: l, random: rand.New(rand.NewPCG(l.seed, 3)), head: head, finality: p.finality}
	answers := make([]map[string]any, len(questions))
	for i, q := range questions {
		answers[i] = q.Answer(v.answerQuestion(ctx, node, q))
	}
	if isBatch {
		return json.Marshal(answers)
	}
	return json.Marshal(answers[0])
}

// answerQuestion returns the result of a question, or the refusal.
func (v view) answerQuestion(ctx context.Context, node *rpc.Client, q question) (json.RawMessage, *chaintest.Error) {
	if v.fault == Errs {
		return nil, &chaintest.Error{Code: -32000, Message: "header not found"}
	}
	params, known := v.bend(q)
	switch {
	case known != nil:
		return known, nil
	case params == nil:
		return nil, &chaintest.Error{Code: -32005, Message: fmt.Sprintf("query exceeds max block range %d", mostBlocks)}
	}
	result, refused := question{Method: q.Method, Params: params}.Forward(ctx, node)
	switch {
	case refused != nil:
		return nil, refused
	case isRemoved(ctx, node, q):
		return nil, &chaintest.Error{Code: -32000, Message: "header not found"}
	}
	return v.distortResult(q.Method, result)
}

// isRemoved reports whether the chain no longer has the block that the question names by its hash. anvil turns the hash
// into a height first, and then answers with the state of that height. During a reorg that is another block's state, which
// no node may return. If the block still exists after the answer, the answer is of that block.
func isRemoved(ctx context.Context, node *rpc.Client, q question) bool {
	for _, param := range q.Params {
		var named struct{ BlockHash *common.Hash }
		if json.Unmarshal(param, &named) != nil || named.BlockHash == nil {
			continue
		}
		var block json.RawMessage
		err := node.CallContext(ctx, &block, "eth_getBlockByHash", named.BlockHash, false)
		return err != nil || string(block) == "null"
	}
	return false
}

// view is the chain as one request sees it.
type view struct {
	lie
	random   *rand.Rand
	head     uint64
	finality uint64
}

// top returns the head that is reported.
func (v view) top() uint64 {
	if v.fault == Behind {
		return v.head - min(v.head, uint64(1+v.roll%mostBehind))
	}
	return v.head
}

// bend changes a question's parameters. If answered is set, it is the answer. If params is nil, the range is refused.
func (v view) bend(q question) (params []json.RawMessage, answered json.RawMessage) {
	params = slices.Clone(q.Params)
	if params == nil {
		params = []json.RawMessage{}
	}
	switch q.Method {
	case "eth_chainId":
		if v.fault == OtherChain {
			return params, quote(uint64(424242))
		}
	case "eth_blockNumber":
		if v.fault == Behind {
			return params, quote(v.top())
		}
	case "eth_getBlockByNumber":
		if len(params) == 0 {
			return params, nil
		}
		n := v.number(params[0])
		if v.fault == Behind && n > v.top() {
			return params, json.RawMessage("null")
		}
		params[0] = quote(n)
	case "eth_getLogs":
		return v.bendFilter(params)
	}
	return params, nil
}

// bendFilter changes the range in the filter of eth_getLogs.
func (v view) bendFilter(params []json.RawMessage) ([]json.RawMessage, json.RawMessage) {
	filter := map[string]json.RawMessage{}
	if len(params) != 1 || json.Unmarshal(params[0], &filter) != nil || filter["blockHash"] != nil {
		return params, nil
	}
	from, to := v.number(filter["fromBlock"]), v.number(filter["toBlock"])
	switch {
	case v.fault == Limits && to >= from+mostBlocks:
		return nil, nil
	case from > v.top():
		return params, json.RawMessage("[]")
	}
	filter["fromBlock"], filter["toBlock"] = quote(from), quote(min(to, v.top()))
	bent, err := json.Marshal(filter)
	if err != nil {
		return params, nil
	}
	return []json.RawMessage{bent}, nil
}

// number parses a block number or a block tag.
func (v view) number(raw json.RawMessage) uint64 {
	var n hexutil.Uint64
	switch name := strings.Trim(string(raw), `"`); name {
	case "earliest":
		return 0
	case "finalized", "safe":
		return v.top() - min(v.top(), v.finality)
	default:
		if json.Unmarshal(raw, &n) != nil {
			return v.top() // latest, pending, or no number
		}
	}
	return uint64(n)
}

// fields are those of a JSON object; nil: null.
type fields = map[string]json.RawMessage

// rewrite decodes raw and encodes what change returns of it. It returns raw if raw has another form.
func rewrite[T any](raw json.RawMessage, change func(T) T) json.RawMessage {
	var decoded T
	if json.Unmarshal(raw, &decoded) != nil {
		return raw
	}
	if bent, err := json.Marshal(change(decoded)); err == nil {
		return bent
	}
	return raw
}

// distortResult changes the node's answer.
func (v view) distortResult(method string, result json.RawMessage) (json.RawMessage, *chaintest.Error) {
	ahead := quote(v.head + uint64(1+v.roll%mostBehind))
	isBlock := method == "eth_getBlockByNumber" || method == "eth_getBlockByHash"
	switch {
	case v.fault == Ahead && method == "eth_blockNumber":
		return ahead, nil
	case v.fault == Ahead && isBlock:
		return rewrite(result, func(block fields) fields {
			if block != nil && v.number(block["number"]) == v.head {
				block["number"] = ahead
			}
			return block
		}), nil
	case v.fault == OtherChain && isBlock:
		return rewrite(result, func(block fields) fields {
			if block != nil {
				block["hash"], block["parentHash"] = otherHash(block["hash"]), otherHash(block["parentHash"])
			}
			return block
		}), nil
	case v.fault == Limits && method == "eth_getLogs":
		if logs := []json.RawMessage(nil); json.Unmarshal(result, &logs) == nil && len(logs) > mostLogs {
			return nil, &chaintest.Error{Code: -32005, Message: fmt.Sprintf("query returned more than %d results", mostLogs)}
		}
	case method == "eth_getLogs":
		return v.distortLogs(result), nil
	case method == "eth_getBlockReceipts" && v.fault == Forgets:
		return rewrite(result, func(receipts []fields) []fields {
			for _, r := range receipts {
				r["logs"] = v.distortLogs(r["logs"])
			}
			return receipts
		}), nil
	}
	return result, nil
}

func (v view) distortLogs(raw json.RawMessage) json.RawMessage {
	switch v.fault {
	case OtherChain:
		return json.RawMessage("[]")
	case Repeats:
		return rewrite(raw, func(logs []json.RawMessage) []json.RawMessage {
			twice := make([]json.RawMessage, 0, 2*len(logs))
			for _, l := range logs {
				twice = append(twice, l, l)
			}
			return twice
		})
	case Forgets:
		all := v.roll%3 == 0
		return rewrite(raw, func(logs []json.RawMessage) []json.RawMessage {
			return slices.DeleteFunc(logs, func(json.RawMessage) bool { return all || v.random.IntN(3) == 0 })
		})
	}
	return raw
}

// otherHash returns a hash of the other chain. It is always the same for the same block.
func otherHash(raw json.RawMessage) json.RawMessage {
	if len(raw) < 5 {
		return raw
	}
	other := slices.Clone(raw)
	if at := len(other) - 2; other[at] == 'f' {
		other[at] = '0'
	} else {
		other[at] = 'f'
	}
	return other
}

func quote(n uint64) json.RawMessage { return json.RawMessage(`"` + hexutil.EncodeUint64(n) + `"`) }
