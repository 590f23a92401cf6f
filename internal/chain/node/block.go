package node

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/base/text"
)

// Block tags of JSON-RPC.
const (
	Latest    = "latest"
	Finalized = "finalized"
)

// Block holds the fields of a block that this package uses.
type Block struct {
	Number     Quantity    `json:"number"`
	Hash       common.Hash `json:"hash"`
	ParentHash common.Hash `json:"parentHash"`
	Time       Quantity    `json:"timestamp"`
}

// Quantity is a number in a node's answer. JSON-RPC encodes it in hex; the nodes of some chains send decimal numbers.
type Quantity uint64

// UnmarshalJSON accepts "0x1f", "31" and 31.
func (q *Quantity) UnmarshalJSON(raw []byte) error {
	n, err := strconv.ParseUint(strings.Trim(string(raw), `"`), 0, 64)
	if err != nil {
		return &json.UnmarshalTypeError{Value: "quantity " + text.Excerpt(string(raw), 20),
			Type: reflect.TypeFor[Quantity]()}
	}
	*q = Quantity(n)
	return nil
}

// Logs is a list of logs whose numbers may be decimal.
type Logs []types.Log

// UnmarshalJSON decodes the logs as go-ethereum does. If that fails, it converts all numbers to hex and decodes
// again.
func (logs *Logs) UnmarshalJSON(raw []byte) error {
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
			var n Quantity
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

func (b *Block) hasHash() bool { return b.Hash != (common.Hash{}) }

var errNoHash = errors.New("the node returned a block without a hash")

// checkBlock returns errNoHash if the answer to a call is a block without a hash, which would look like a reorg. Types
// that embed Block are blocks too.
func checkBlock(e rpc.BatchElem) error {
	result := reflect.Indirect(reflect.ValueOf(e.Result))
	if e.Error != nil || result.Kind() != reflect.Pointer || result.IsNil() {
		return nil
	}
	if b, isBlock := result.Interface().(interface{ hasHash() bool }); isBlock && !b.hasHash() {
		return errNoHash
	}
	return nil
}

// lacksBlock reports whether a node answered one of the calls that it does not have the block with a number. If another
// call returned the node's newest block, blocks above it do not count. Otherwise a node that invents such blocks would
// be believed.
func lacksBlock(elems []rpc.BatchElem) bool {
	head := uint64(math.MaxUint64)
	for _, e := range elems {
		if b, ok := e.Result.(**Block); ok && e.Args[0] == Latest && *b != nil {
			head = uint64((*b).Number)
		}
	}
	return slices.ContainsFunc(elems, func(e rpc.BatchElem) bool {
		if e.Error != nil || e.Method != "eth_getBlockByNumber" {
			return false
		}
		at, _ := e.Args[0].(string)
		number, err := hexutil.DecodeUint64(at)
		result := reflect.Indirect(reflect.ValueOf(e.Result))
		return err == nil && number <= head && result.Kind() == reflect.Pointer && result.IsNil()
	})
}

// Age returns the age of a block by the local clock. It is negative if the block's timestamp is in the future.
func (b Block) Age() time.Duration {
	return time.Since(time.Unix(int64(min(b.Time, math.MaxInt64)), 0))
}

// IsChildOf reports whether the block's parent is the block with the given hash. It returns true if the node did not
// send a parent hash.
func (b Block) IsChildOf(parent common.Hash) bool {
	return b.ParentHash == parent || b.ParentHash == (common.Hash{})
}

// Receipt holds the fields of a receipt that this package uses. go-ethereum's own type rejects the receipts of
// several chains.
type Receipt struct {
	BlockHash   common.Hash     `json:"blockHash"`
	BlockNumber Quantity        `json:"blockNumber"`
	Status      *hexutil.Uint64 `json:"status"` // 1 or 0; nil in receipts from before Byzantium
	Logs        Logs            `json:"logs"`
}

func (r *Receipt) IsFailed() bool { return r.Status != nil && *r.Status == 0 }

// Errors for data that a node does not have. They are no faults of the node.
var (
	ErrNoBlock   = errors.New("the node does not have the block")
	ErrNoReceipt = errors.New("the node does not have the receipt")
)

// TaggedCall returns the call that reads the block of a tag into result.
func TaggedCall(tag string, result any) rpc.BatchElem {
	return rpc.BatchElem{Method: "eth_getBlockByNumber", Args: []any{tag, false}, Result: result}
}

// BlockCall returns the call that reads the block with a number into result.
func BlockCall(number uint64, result any) rpc.BatchElem {
	return TaggedCall(hexutil.EncodeUint64(number), result)
}

// ReadBlock reads a block. It returns nil if the node does not have the block.
func (p *Pool) ReadBlock(ctx context.Context, number uint64) (*Block, error) {
	return p.askBlock(ctx, hexutil.EncodeUint64(number))
}

// askBlock reads a block by its number or tag. It returns nil if the node does not have the block.
func (p *Pool) askBlock(ctx context.Context, at string) (b *Block, _ error) {
	elems := []rpc.BatchElem{TaggedCall(at, &b)}
	_, err := p.SendToAny(ctx, "reading block "+at, elems...)
	return b, err
}

// ReadHead reads the newest block. It fails if the node returns none.
func (p *Pool) ReadHead(ctx context.Context) (Block, error) {
	b, err := p.askBlock(ctx, Latest)
	if err != nil {
		return Block{}, err
	}
	if b == nil {
		return Block{}, p.NewUnavailable("reading the head", ErrNoBlock)
	}
	return *b, nil
}
