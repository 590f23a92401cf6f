package chain

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/base/text"
)

// Block tags of JSON-RPC.
const (
	latest    = "latest"
	finalized = "finalized"
)

// block holds the fields of a block that this package uses.
type block struct {
	Number     quantity    `json:"number"`
	Hash       common.Hash `json:"hash"`
	ParentHash common.Hash `json:"parentHash"`
	Time       quantity    `json:"timestamp"`
}

// quantity is a number in a node's answer. JSON-RPC encodes it in hex; the nodes of some chains send decimal numbers.
type quantity uint64

// UnmarshalJSON accepts "0x1f", "31" and 31.
func (q *quantity) UnmarshalJSON(raw []byte) error {
	n, err := strconv.ParseUint(strings.Trim(string(raw), `"`), 0, 64)
	if err != nil {
		return &json.UnmarshalTypeError{Value: "quantity " + text.Excerpt(string(raw), 20),
			Type: reflect.TypeFor[quantity]()}
	}
	*q = quantity(n)
	return nil
}

// nodeLogs is a list of logs whose numbers may be decimal.
type nodeLogs []types.Log

// UnmarshalJSON decodes the logs as go-ethereum does. If that fails, it converts all numbers to hex and decodes
// again.
func (logs *nodeLogs) UnmarshalJSON(raw []byte) error {
	strict := json.Unmarshal(raw, (*[]types.Log)(logs))
	if strict == nil {
		return nil
	}
	var loose []map[string]json.RawMessage
	if json.Unmarshal(raw, &loose) != nil {
		return strict
	}
	for _, l := range loose {
		for _, name := range []string{"blockNumber", "blockTimestamp", "transactionIndex", "logIndex"} {
			var n quantity
			if l[name] != nil && json.Unmarshal(l[name], &n) == nil {
				l[name] = json.RawMessage(strconv.Quote(hexutil.EncodeUint64(uint64(n))))
			}
		}
	}
	again, err := json.Marshal(loose)
	if err != nil {
		return strict
	}
	*logs = nil
	return json.Unmarshal(again, (*[]types.Log)(logs))
}

// isChildOf reports whether the block's parent is the block with the given hash. It returns true if the node did not
// send a parent hash.
func (b block) isChildOf(parent common.Hash) bool {
	return b.ParentHash == parent || b.ParentHash == (common.Hash{})
}

// receipt holds the fields of a receipt that this package uses. go-ethereum's own type rejects the receipts of
// several chains.
type receipt struct {
	BlockHash   common.Hash     `json:"blockHash"`
	BlockNumber quantity        `json:"blockNumber"`
	Status      *hexutil.Uint64 `json:"status"` // 1 or 0; nil in receipts from before Byzantium
	Logs        nodeLogs        `json:"logs"`
}

func (r *receipt) isFailed() bool { return r.Status != nil && *r.Status == 0 }

var errNoBlock = errors.New("the node does not have the block")

// readBlock reads a block by its number or tag. It returns nil if the node does not have the block.
func (c *Client) readBlock(ctx context.Context, at string) (*block, error) {
	var b *block
	op := "reading block " + at
	elems := []rpc.BatchElem{{Method: "eth_getBlockByNumber", Args: []any{at, false}, Result: &b}}
	failure, err := c.askNode(ctx, op, func(ctx context.Context, conn nodeConn) error {
		if err := c.callBatch(ctx, conn, elems); err != nil {
			return err
		}
		return elems[0].Error
	})
	if err := c.typeFailure(op, failure, err); err != nil {
		return nil, err
	}
	return b, nil
}

// readHead reads the newest block. It fails if the node returns none.
func (c *Client) readHead(ctx context.Context) (block, error) {
	b, err := c.readBlock(ctx, latest)
	if err != nil {
		return block{}, err
	}
	if b == nil {
		return block{}, c.newUnavailable("reading the head", errNoBlock)
	}
	return *b, nil
}

// Head returns the number of the node's newest block.
func (c *Client) Head(ctx context.Context) (uint64, error) {
	b, err := c.readHead(ctx)
	return uint64(b.Number), err
}

func formatNumber(n uint64) string { return hexutil.EncodeUint64(n) }
