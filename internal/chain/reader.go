package chain

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

	"github.com/agentherald/herald/internal/erc8004"
)

// Reader reads the event logs of one chain. It is safe for concurrent use.
type Reader struct {
	*Pool
	trusted bool

	mu     sync.Mutex
	proofs proofs
}

// NewReader returns a reader of the logs of nodes. trusted means that the nodes leave out no logs of a range. Otherwise
// a follower compares the logs with those of another node, and with blooms and receipts.
func NewReader(nodes *Pool, trusted bool) *Reader { return &Reader{Pool: nodes, trusted: trusted} }

// Trusts reports whether the nodes leave out no logs of a range.
func (r *Reader) Trusts() bool { return r.trusted }

// errReorganised means that the chain reorganised while a range was being read.
var errReorganised = errors.New("the chain reorganised while it was read")

// logFilter is the parameter of eth_getLogs.
type logFilter struct {
	Address   []common.Address `json:"address"`
	Topics    [][]common.Hash  `json:"topics"`
	FromBlock hexutil.Uint64   `json:"fromBlock"`
	ToBlock   hexutil.Uint64   `json:"toBlock"`
}

// newFilter returns the filter of the events of kinds that contracts emit. Without contracts, these are all of d.
// Without kinds, these are all that become jobs.
func (r *Reader) newFilter(d erc8004.Deployment, contracts []common.Address, kinds []erc8004.Kind) (logFilter, error) {
	if len(contracts) == 0 {
		contracts = d.Contracts()
	}
	if len(contracts) == 0 {
		return logFilter{}, fmt.Errorf("chain: no registry of chain %d is known: set IDENTITY_REGISTRY_%d and "+
			"REPUTATION_REGISTRY_%d", r.chainID, r.chainID, r.chainID)
	}
	if len(kinds) == 0 {
		kinds = []erc8004.Kind{erc8004.NewFeedback, erc8004.FeedbackRevoked, erc8004.ResponseAppended,
			erc8004.ValidationResponse, erc8004.Registered, erc8004.URIUpdated, erc8004.MetadataSet,
			erc8004.MetadataUpdate, erc8004.BatchMetadataUpdate, erc8004.Transfer}
	}
	return logFilter{Address: contracts, Topics: [][]common.Hash{erc8004.Topics(kinds...)}}, nil
}

// rangeEnds are the first and the last block of a range.
type rangeEnds struct {
	first, last block
	node        int // the node that answered, by its position in RPC_URL_<chain>
}

// readLogs reads the logs of a range, and its ends. One request returns both: several nodes may answer at one
// address, and a node that has not reached the last block would answer with fewer logs.
func (r *Reader) readLogs(ctx context.Context, filter logFilter) (logs []types.Log, ends rangeEnds, err error) {
	var first, last *block
	elems := []rpc.BatchElem{
		{Method: "eth_getLogs", Args: []any{filter}, Result: (*nodeLogs)(&logs)},
		blockCall(uint64(filter.ToBlock), &last),
	}
	if filter.FromBlock < filter.ToBlock {
		elems = append(elems, blockCall(uint64(filter.FromBlock), &first))
	}
	op := fmt.Sprintf("reading the logs of blocks %d to %d", uint64(filter.FromBlock), uint64(filter.ToBlock))
	if ends.node, err = r.sendAll(ctx, op, elems...); err != nil {
		return nil, ends, err
	}
	if len(elems) == 2 {
		first = last
	}
	if first == nil || last == nil {
		return nil, ends, r.newUnavailable(op, errNoBlock)
	}
	ends.first, ends.last = *first, *last
	return logs, ends, nil
}

// hashFilter is the parameter of eth_getLogs for one block, with the addresses and topics of a range's filter.
type hashFilter struct {
	BlockHash common.Hash      `json:"blockHash"`
	Address   []common.Address `json:"address"`
	Topics    [][]common.Hash  `json:"topics"`
}

// readBlockLogs reads the logs of blocks by the blocks' hashes.
func (r *Reader) readBlockLogs(
	ctx context.Context, blocks []*bloomBlock, filter logFilter,
) (logs []types.Log, _ error) {
	var elems []rpc.BatchElem
	for _, b := range blocks {
		elems = append(elems, rpc.BatchElem{Method: "eth_getLogs", Result: new(nodeLogs),
			Args: []any{hashFilter{b.Hash, filter.Address, filter.Topics}}})
	}
	if err := r.sendParts(ctx, "reading the logs of blocks by hash", elems); err != nil {
		return nil, err
	}
	for i, e := range elems {
		read, _ := e.Result.(*nodeLogs)
		for _, l := range *read {
			l.BlockNumber, l.BlockHash = uint64(blocks[i].Number), blocks[i].Hash
			logs = append(logs, l)
		}
	}
	return logs, nil
}

// sortLogs sorts logs into the chain's order and removes duplicates, which some nodes send.
func sortLogs(logs []types.Log) []types.Log {
	slices.SortStableFunc(logs, func(a, b types.Log) int {
		return cmp.Or(cmp.Compare(a.BlockNumber, b.BlockNumber), cmp.Compare(a.Index, b.Index))
	})
	return slices.CompactFunc(logs, func(a, b types.Log) bool {
		return a.BlockHash == b.BlockHash && a.Index == b.Index
	})
}

// logPosition identifies a log.
type logPosition struct {
	block common.Hash
	index uint
}

// findDifferences returns the blocks of a range whose logs differ from the known ones, in ascending order.
func findDifferences(known map[uint64][]logPosition, logs []types.Log, from, to uint64) (blocks []uint64) {
	others := map[uint64]map[logPosition]bool{}
	for _, l := range logs {
		if l.BlockNumber < from || l.BlockNumber > to || l.Removed {
			continue
		}
		if others[l.BlockNumber] == nil {
			others[l.BlockNumber] = map[logPosition]bool{}
		}
		others[l.BlockNumber][logPosition{l.BlockHash, l.Index}] = true
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

// readOtherLogs asks a node other than the node number not for the logs of a range and for its last block. last is
// nil if that node does not have the block.
func (r *Reader) readOtherLogs(
	ctx context.Context, filter logFilter, not int,
) (logs []types.Log, last *block, _ error) {
	op := fmt.Sprintf("comparing the logs of blocks %d to %d", uint64(filter.FromBlock), uint64(filter.ToBlock))
	err := r.sendToOther(ctx, op, not,
		rpc.BatchElem{Method: "eth_getLogs", Args: []any{filter}, Result: (*nodeLogs)(&logs)},
		blockCall(uint64(filter.ToBlock), &last))
	return filter.keepMatching(logs), last, err
}

// matchesLog reports whether a log matches the filter.
func (f logFilter) matchesLog(l types.Log) bool {
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

// keepMatching returns the logs that match the filter. It changes the argument.
func (f logFilter) keepMatching(logs []types.Log) []types.Log {
	return slices.DeleteFunc(logs, func(l types.Log) bool { return !f.matchesLog(l) })
}
