//go:build chain

package chaintrial

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/big"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/trie"
	"github.com/jackc/pgx/v5"

	"github.com/agentherald/herald/internal/testing/trial"
)

var followFlag = flag.Duration("follow", 10*time.Minute, "how long the stub of a public node is followed")

const (
	publicPace  = 200 * time.Millisecond
	publicCalls = 10   // in one request
	publicFirst = 5000 // the head at the start
	publicEvery = 7    // every seventh block has an event
	publicBurst = 20   // events of one block each minute
)

// publicNode answers like Base's public node, as users reported it. It makes five blocks a second whose blooms are
// full, and refuses more than ten calls in a request with HTTP 200 and one error object.
type publicNode struct {
	*chaintest.Node
	began      time.Time
	reputation common.Address

	mu    sync.Mutex
	known map[common.Hash]uint64
}

func newPublicNode(t *testing.T) *publicNode {
	n := &publicNode{Node: chaintest.NewNode(t, 1), began: time.Now(),
		reputation: common.HexToAddress("0x8004BAa17C55a88189AE136b182e5fdA19dE9b63"), known: map[common.Hash]uint64{}}
	n.Set(chaintest.RefuseBatches(n.Node, publicCalls, chaintest.RefuseStatus(http.StatusOK, "",
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32014,"message":"maximum 10 calls in 1 batch"}}`)),
		func(method string, params []json.RawMessage) (any, any) {
			if result := n.answer(method, params); result != nil {
				return result, nil
			}
			return json.RawMessage("null"), nil
		})
	return n
}

// count returns the numbers of requests, of the calls in them, and of requests that were refused.
func (n *publicNode) count() (requests, calls, refused int) {
	n.Mu.Lock()
	defer n.Mu.Unlock()
	for _, methods := range n.Asked {
		if requests, calls = requests+1, calls+len(methods); len(methods) > publicCalls {
			refused++
		}
	}
	return requests, calls, refused
}

func (n *publicNode) head() uint64 { return publicFirst + uint64(time.Since(n.began)/publicPace) }

func publicHash(number uint64) common.Hash {
	return crypto.Keccak256Hash(new(big.Int).SetUint64(number).Bytes())
}

// countEvents returns the number of events in a block.
func countEvents(number uint64) int {
	switch {
	case number%300 == 0:
		return publicBurst
	case number%publicEvery == 0:
		return 1
	}
	return 0
}

func (n *publicNode) logs(number uint64) (logs []*types.Log) {
	for i := range countEvents(number) {
		values := map[string]any{"agentId": new(big.Int).SetUint64(number), "client": addressOf(uint64(1 + i)), "index": uint64(1),
			"value": big.NewInt(5), "decimals": uint8(0), "tag1": "", "tag2": "", "endpoint": "", "uri": "", "hash": common.Hash{}}
		made, err := forms[0].encode(func(name, _ string) any { return values[name] })
		if err != nil {
			panic(err) // the tests of this package encode only valid forms
		}
		logs = append(logs, &types.Log{Address: n.reputation, Topics: made.Topics, Data: made.Data, BlockNumber: number,
			BlockHash: publicHash(number), BlockTimestamp: n.seconds(number), TxHash: publicHash(number + 1<<40), Index: uint(i)})
	}
	return logs
}

func (n *publicNode) receipts(number uint64) types.Receipts {
	deposit := &types.Receipt{Type: 2, Status: 1, CumulativeGasUsed: 21_000, Logs: []*types.Log{}}
	event := &types.Receipt{Type: 2, Status: 1, CumulativeGasUsed: 90_000, Logs: n.logs(number)}
	event.Bloom = types.CreateBloom(event)
	return types.Receipts{deposit, event}
}

// seconds returns a block's timestamp. Five blocks share one.
func (n *publicNode) seconds(number uint64) uint64 {
	return uint64(n.began.Add(time.Duration(int64(number)-publicFirst) * publicPace).Unix())
}

func (n *publicNode) answer(method string, params []json.RawMessage) any {
	head := n.head()
	switch method {
	case "eth_chainId":
		return hexutil.Uint64(ChainID)
	case "eth_getBlockByNumber":
		return n.block(strings.Trim(string(params[0]), `"`), head)
	case "eth_getLogs":
		var filter struct{ FromBlock, ToBlock hexutil.Uint64 }
		if err := json.Unmarshal(params[0], &filter); err != nil {
			return nil
		}
		logs := []*types.Log{}
		for b := uint64(filter.FromBlock); b <= min(uint64(filter.ToBlock), head); b++ {
			logs = append(logs, n.logs(b)...)
		}
		return logs
	case "eth_getBlockReceipts":
		var hash common.Hash
		if err := json.Unmarshal(params[0], &hash); err != nil {
			return nil
		}
		n.mu.Lock()
		number, known := n.known[hash]
		n.mu.Unlock()
		if !known {
			return nil
		}
		receipts := []map[string]any{}
		for _, r := range n.receipts(number) {
			receipts = append(receipts, map[string]any{"blockHash": hash, "type": "0x2", "status": "0x1",
				"cumulativeGasUsed": hexutil.Uint64(r.CumulativeGasUsed), "logs": r.Logs})
		}
		return receipts
	}
	return nil
}

func (n *publicNode) block(tag string, head uint64) any {
	number := head
	switch tag {
	case "latest":
	case "finalized":
		number -= 150 // half a minute; the real delay is far longer than this trial
	default:
		var err error
		if number, err = hexutil.DecodeUint64(tag); err != nil || number > head {
			return nil
		}
	}
	n.mu.Lock()
	n.known[publicHash(number)] = number
	n.mu.Unlock()
	var full types.Bloom
	for i := range full {
		full[i] = 0xff
	}
	return map[string]any{"number": hexutil.Uint64(number), "hash": publicHash(number), "parentHash": publicHash(number - 1),
		"timestamp": hexutil.Uint64(n.seconds(number)), "logsBloom": full,
		"receiptsRoot": types.DeriveSha(n.receipts(number), trie.NewListHasher()),
		"transactions": []common.Hash{publicHash(number + 2<<40), publicHash(number + 1<<40)}}
}

// TestPublicNode follows a node like Base's public one, trusted and untrusted. No event may be missing, and the
// requests and calls must stay within the budgets of docs/operator/chain.md.
func TestPublicNode(t *testing.T) {
	shared.Programs(t) // may compile them, so this comes before the time limit
	var running sync.WaitGroup
	for name, trust := range map[string]string{"trusted": "all", "untrusted": ""} {
		running.Go(func() {
			t.Run(name, func(t *testing.T) { followPublicNode(t, name, trust) })
		})
	}
	running.Wait()
}

func followPublicNode(t *testing.T, name, trust string) {
	ctx, cancel := context.WithTimeout(t.Context(), *followFlag+2*time.Minute)
	defer cancel()
	node := newPublicNode(t)
	site := shared.Open(ctx, t, trial.Config{Database: "public_" + name, Logs: filepath.Join(t.TempDir(), name)})
	id := fmt.Sprint(ChainID)
	first := node.head()
	began := time.Now()
	p, err := site.StartEnqueue("watch", []string{"RPC_URL_" + id + "=" + node.URL, "HERALD_RPC_TRUST=" + trust,
		"IDENTITY_REGISTRY_" + id + "=0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", "REPUTATION_REGISTRY_" + id + "=" + node.reputation.Hex()},
		"watch", id, "--from", fmt.Sprint(first))
	heraldtest.Must(t, err)
	select {
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	case <-p.Done():
		t.Fatal("the follower has ended by itself")
	case <-time.After(*followFlag):
	}
	last := node.head()
	wanted := 0
	for b := first; b <= last; b++ {
		wanted += countEvents(b)
	}
	var rows, blocks int
	counted := trial.Until(ctx, time.Second, "all events to be accepted", func() (bool, error) {
		err := site.SQL(ctx, func(ctx context.Context, c *pgx.Conn) error {
			return c.QueryRow(ctx, `SELECT count(*), count(DISTINCT agent_id) FROM herald.deliveries
				WHERE (job->>'blockNumber')::bigint <= $1`, int64(last)).Scan(&rows, &blocks)
		})
		return rows >= wanted, err
	})
	took := time.Since(began)
	requests, calls, refused := node.count()
	fmt.Println(trial.NewFigures("public", name).Add("blocks", last-first+1).Add("events", wanted).Add("rows", rows).
		Add("requests", requests).Add("calls", calls).Add("refused", refused).Add("took", took))
	if counted != nil || rows != wanted {
		t.Errorf("%d rows of %d events: %v", rows, wanted, counted)
	}
	polls := int(took/(2*time.Second)) + 1
	mostRequests, mostCalls := 2*polls, 7*polls
	if trust == "" {
		mostRequests, mostCalls = mostRequests+polls, mostCalls+10*polls
	}
	minutes := int(took/time.Minute) + 1 // once a minute the follower also reads the finalized block and the head
	mostRequests, mostCalls = mostRequests+minutes+5, mostCalls+3*minutes+15
	if requests > mostRequests || calls > mostCalls || refused > 0 {
		t.Errorf("%d requests of %d, %d calls of %d, %d refused", requests, mostRequests, calls, mostCalls, refused)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
}
