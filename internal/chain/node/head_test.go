package node

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/chaintest"
)

// headNode is a node that reports a head, and returns the blocks up to has.
type headNode struct {
	chainID uint64
	head    uint64
	has     uint64    // it does not return higher blocks by number or hash
	time    time.Time // of every block
}

func (n headNode) serve(t *testing.T) secret.Secret {
	t.Helper()
	stub := chaintest.NewNode(t, 1)
	stub.Set(nil, func(method string, params []json.RawMessage) (any, any) {
		if method == "eth_chainId" {
			return hexutil.EncodeUint64(n.chainID), nil
		}
		number := n.head
		switch at := strings.Trim(string(params[0]), `"`); {
		case method == "eth_getBlockByHash":
			for number = 0; number <= n.has && chaintest.BlockHash(number) != common.HexToHash(at); number++ {
			}
		case at != Latest:
			number = hexutil.MustDecodeUint64(at)
		default:
			return n.block(number), nil
		}
		if number > n.has {
			return json.RawMessage("null"), nil
		}
		return n.block(number), nil
	})
	return secret.New(stub.URL)
}

func (n headNode) block(number uint64) Block {
	return Block{Number: Quantity(number), Hash: chaintest.BlockHash(number), ParentHash: chaintest.BlockHash(number - 1), Time: Quantity(n.time.Unix())}
}

func TestStartHead(t *testing.T) {
	t.Parallel()
	now, old := time.Now(), time.Now().Add(-time.Hour)
	const base, arbitrum, unknown = 8453, 42161, 31337
	for name, c := range map[string]struct {
		nodes []headNode
		want  uint64 // 0: refused
		why   string
	}{
		"one node":                             {[]headNode{{base, 90, 90, now}}, 90, ""},
		"the lowest of several":                {[]headNode{{base, 90, 90, now}, {base, 88, 88, now}}, 88, ""},
		"a head that the node does not return": {[]headNode{{base, 5000, 90, now}}, 0, "names block 5000 as its head"},
		"another node has a true head":         {[]headNode{{base, 5000, 90, now}, {base, 90, 90, now}}, 90, ""},
		"a head of an hour ago":                {[]headNode{{base, 90, 90, old}}, 0, "is 1h"},
		"a head in an hour":                    {[]headNode{{base, 90, 90, now.Add(time.Hour)}}, 0, "from this machine's"},
		"a quiet chain":                        {[]headNode{{arbitrum, 90, 90, old}}, 90, ""},
		"a chain of which nothing is known":    {[]headNode{{unknown, 90, 90, old}}, 90, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{ChainID: c.nodes[0].chainID}
			for _, n := range c.nodes {
				cfg.URLs = append(cfg.URLs, n.serve(t))
			}
			got, err := newPool(t, cfg).StartHead(t.Context())
			if got != c.want || (err == nil) != (c.want > 0) || err != nil && !strings.Contains(err.Error(), c.why) {
				t.Errorf("%d, %v; want %d, %q", got, err, c.want, c.why)
			}
		})
	}
}

// TestLagAboveTheHead: the lag of a block above the head is unknown.
func TestLagAboveTheHead(t *testing.T) {
	t.Parallel()
	client := newPool(t, Config{ChainID: 1, URLs: []secret.Secret{headNode{1, 90, 90, time.Now()}.serve(t)}})
	if lag, err := client.Lag(t.Context(), 91); err == nil || !strings.Contains(err.Error(), "newest block is 90, below block 91") {
		t.Errorf("the lag of a block above the head: %+v, %v", lag, err)
	}
	if lag, err := client.Lag(t.Context(), 90); err != nil || lag.Blocks != 0 {
		t.Errorf("the lag of the head: %+v, %v", lag, err)
	}
}
