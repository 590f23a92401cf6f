package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
)

// Reader reads the event logs of one chain. It is safe for concurrent use.
type Reader struct {
	*node.Pool
	Trusted bool // the nodes leave out no logs of a range

	mu     sync.Mutex
	proofs proofs
}

// New returns a reader of the logs of nodes. trusted means that the nodes leave out no logs of a range. Otherwise
// a follower compares the logs with those of another node, and with blooms and receipts.
func New(nodes *node.Pool, trusted bool) *Reader { return &Reader{Pool: nodes, Trusted: trusted} }

// ErrReorganised means that the chain reorganised while a range was being read.
var ErrReorganised = errors.New("the chain reorganised while it was read")

// Filter is the parameter of eth_getLogs.
type Filter struct {
	Address   []common.Address `json:"address"`
	Topics    [][]common.Hash  `json:"topics"`
	FromBlock hexutil.Uint64   `json:"fromBlock"`
	ToBlock   hexutil.Uint64   `json:"toBlock"`
}

// NewFilter returns the filter of the events of contracts that become jobs.
func NewFilter(contracts []common.Address) Filter {
	return Filter{Address: contracts, Topics: [][]common.Hash{erc8004.Topics(erc8004.NewFeedback,
		erc8004.FeedbackRevoked, erc8004.ResponseAppended, erc8004.ValidationResponse, erc8004.Registered,
		erc8004.URIUpdated, erc8004.MetadataSet, erc8004.MetadataUpdate, erc8004.BatchMetadataUpdate,
		erc8004.Transfer)}}
}

// Ends are the first and the last block of a range.
type Ends struct {
	First, Last node.Block
	Node        int // the node that answered, by its position in RPC_URL_<chain>
}

// ReadLogs reads the logs of a range, and its ends. One request returns both: several nodes may answer at one
// address, and a node that has not reached the last block would answer with fewer logs. If a node refuses a range, the
// caller must narrow it. If a node refuses a single block, ReadLogs asks the other nodes.
func (r *Reader) ReadLogs(ctx context.Context, filter Filter) (logs []types.Log, ends Ends, err error) {
	var first, last *node.Block
	elems := []rpc.BatchElem{
		{Method: "eth_getLogs", Args: []any{filter}, Result: (*node.Logs)(&logs)},
		node.BlockCall(uint64(filter.ToBlock), &last),
	}
	if filter.FromBlock < filter.ToBlock {
		elems = append(elems, node.BlockCall(uint64(filter.FromBlock), &first))
	}
	op := fmt.Sprintf("reading the logs of blocks %d to %d", uint64(filter.FromBlock), uint64(filter.ToBlock))
	send := r.SendAll
	if filter.FromBlock == filter.ToBlock { // no narrower range is left to ask for
		send = r.SendToAny
	}
	if ends.Node, err = send(ctx, op, elems...); err != nil {
		return nil, ends, err
	}
	if len(elems) == 2 {
		first = last
	}
	if first == nil || last == nil {
		return nil, ends, r.NewUnavailable(op, node.ErrNoBlock)
	}
	ends.First, ends.Last = *first, *last
	return logs, ends, nil
}

// BlockFilter is the parameter of eth_getLogs for one block, with the addresses and topics of a range's filter.
type BlockFilter struct {
	BlockHash common.Hash      `json:"blockHash"`
	Address   []common.Address `json:"address"`
	Topics    [][]common.Hash  `json:"topics"`
}

// AtBlock returns the filter of one block with the addresses and topics of f.
func (f Filter) AtBlock(hash common.Hash) BlockFilter { return BlockFilter{hash, f.Address, f.Topics} }

// readBlockLogs reads the logs of blocks by the blocks' hashes.
func (r *Reader) readBlockLogs(
	ctx context.Context, blocks []*Header, filter Filter,
) (logs []types.Log, _ error) {
	var elems []rpc.BatchElem
	for _, b := range blocks {
		elems = append(elems, rpc.BatchElem{Method: "eth_getLogs", Result: new(node.Logs),
			Args: []any{filter.AtBlock(b.Hash)}})
	}
	if err := r.SendParts(ctx, "reading the logs of blocks by hash", elems); err != nil {
		return nil, err
	}
	for i, e := range elems {
		read, _ := e.Result.(*node.Logs)
		for _, l := range *read {
			l.BlockNumber, l.BlockHash = uint64(blocks[i].Number), blocks[i].Hash
			logs = append(logs, l)
		}
	}
	return logs, nil
}

// Sort sorts logs into the chain's order and removes duplicates, which some nodes send.
func Sort(logs []types.Log) []types.Log {
	slices.SortStableFunc(logs, func(a, b types.Log) int {
		return cmp.Or(cmp.Compare(a.BlockNumber, b.BlockNumber), cmp.Compare(a.TxIndex, b.TxIndex),
			cmp.Compare(a.Index, b.Index), a.TxHash.Cmp(b.TxHash))
	})
	return slices.CompactFunc(logs, func(a, b types.Log) bool { return PositionOf(a) == PositionOf(b) })
}

// Position identifies a log. It contains the transaction, because some nodes count the logs of each transaction instead
// of those of the block.
type Position struct {
	block, transaction common.Hash
	index              uint
}

// PositionOf returns the position of a log.
func PositionOf(l types.Log) Position { return Position{l.BlockHash, l.TxHash, l.Index} }

// FindDifferences returns the blocks of a range whose logs differ from the known ones, in ascending order.
func FindDifferences(known map[uint64][]Position, logs []types.Log, from, to uint64) (blocks []uint64) {
	others := map[uint64]map[Position]bool{}
	for _, l := range logs {
		if l.BlockNumber < from || l.BlockNumber > to || l.Removed {
			continue
		}
		if others[l.BlockNumber] == nil {
			others[l.BlockNumber] = map[Position]bool{}
		}
		others[l.BlockNumber][PositionOf(l)] = true
	}
	for n, positions := range known {
		if n < from || n > to {
			continue
		}
		same := len(positions) == len(others[n])
		for _, p := range positions {
			same = same && others[n][p]
		}
		if !same {
			blocks = append(blocks, n)
		}
		delete(others, n)
	}
	for n := range others {
		blocks = append(blocks, n)
	}
	slices.Sort(blocks)
	return blocks
}

// ReadOtherLogs asks a node other than the node number not for the logs of a range and for its last block. last is
// nil if that node does not have the block.
func (r *Reader) ReadOtherLogs(
	ctx context.Context, filter Filter, not int,
) (logs []types.Log, last *node.Block, _ error) {
	op := fmt.Sprintf("comparing the logs of blocks %d to %d", uint64(filter.FromBlock), uint64(filter.ToBlock))
	err := r.SendToOther(ctx, op, not,
		rpc.BatchElem{Method: "eth_getLogs", Args: []any{filter}, Result: (*node.Logs)(&logs)},
		node.BlockCall(uint64(filter.ToBlock), &last))
	return filter.KeepMatching(logs), last, err
}

// matchesLog reports whether a log matches the filter.
func (f Filter) matchesLog(l types.Log) bool {
	if len(f.Address) > 0 && !slices.Contains(f.Address, l.Address) || len(l.Topics) < len(f.Topics) {
		return false
	}
	for i, wanted := range f.Topics {
		if len(wanted) > 0 && !slices.Contains(wanted, l.Topics[i]) {
			return false
		}
	}
	return true
}

// KeepMatching returns the logs that match the filter. It changes the argument.
func (f Filter) KeepMatching(logs []types.Log) []types.Log {
	return slices.DeleteFunc(logs, func(l types.Log) bool { return !f.matchesLog(l) })
}
