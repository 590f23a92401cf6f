package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
)

// UncountableError means that an event's feedback index cannot be determined: its form has none, and the node does
// not return the state of its block.
type UncountableError struct{ Err error }

func (e *UncountableError) Error() string {
	return fmt.Sprintf("this form of NewFeedback has no feedbackIndex, and the node does not return what the registry "+
		"counted at that block: point RPC_URL at an archive node (%s)", e.Err)
}

func (e *UncountableError) Unwrap() error { return e.Err }

// clientInBlock identifies the feedback of one client to one agent in one block. Indexes count per agent and client.
type clientInBlock struct {
	block    common.Hash
	registry common.Address
	agent    string // decimal agentId
	client   common.Address
}

// CountFeedback sets the feedback index of NewFeedback events of 2025, which do not contain it. It reads the
// registry's getLastIndex at the end of the event's block and counts down over the feedback that the same client gave
// the same agent in the block. events must be all logs of whole blocks, in the chain's order.
//
// uncountable maps positions in events to an *UncountableError: the contract has no such function, or the node has
// dropped the block's state, so a retry fails as well. For any other problem, CountFeedback returns err and changes
// no event.
func (r *Reader) CountFeedback(ctx context.Context, events []erc8004.Event) (uncountable map[int]error, err error) {
	given := make(map[clientInBlock][]int) // positions of all NewFeedback events, with and without an index
	var asked []clientInBlock
	for i, e := range events {
		if e.Kind != erc8004.NewFeedback || e.AgentID == nil {
			continue
		}
		k := clientInBlock{e.BlockHash, e.Address, e.AgentID.String(), e.Client}
		given[k] = append(given[k], i)
		if !e.HasIndex && !slices.Contains(asked, k) {
			asked = append(asked, k)
		}
	}
	uncountable = make(map[int]error)
	counts := make(map[int]uint64)
	for part := range slices.Chunk(asked, r.PartSize()) {
		answers, err := r.readLastIndexes(ctx, part)
		if err != nil {
			return nil, err
		}
		for i, k := range part {
			positions, last := given[k], answers[i]
			if last.err == nil && last.index < uint64(len(positions)) {
				last.err = fmt.Errorf("it counted %d, and the block has %d", last.index, len(positions))
			}
			for n, at := range positions {
				if last.err != nil {
					uncountable[at] = &UncountableError{last.err}
				} else {
					counts[at] = last.index - uint64(len(positions)-1-n)
				}
			}
		}
	}
	for at, index := range counts {
		events[at].FeedbackIndex, events[at].HasIndex = index, true
	}
	for at := range uncountable {
		if events[at].HasIndex {
			delete(uncountable, at) // the event contains its own index
		}
	}
	return uncountable, nil
}

// maxCountedBlocks bounds the blocks whose feedback is counted for one check.
const maxCountedBlocks = 100

// CountFound returns found, which is feedback of one client to one agent, with the indexes that the registry counted.
// filter selects this feedback. uncountable reports whether the node lacks the state that is needed.
func (r *Reader) CountFound(
	ctx context.Context, filter Filter, found []erc8004.Event,
) (counted []erc8004.Event, uncountable bool, _ error) {
	var blocks []*Header
	at := make(map[Position]bool, len(found))
	for _, e := range found {
		at[Position{e.BlockHash, e.TxHash, e.LogIndex}] = true
		if n := len(blocks); n == 0 || blocks[n-1].Hash != e.BlockHash {
			blocks = append(blocks, &Header{Block: node.Block{Number: node.Quantity(e.BlockNumber), Hash: e.BlockHash}})
		}
	}
	if len(blocks) > maxCountedBlocks {
		return nil, true, nil
	}
	logs, err := r.readBlockLogs(ctx, blocks, filter)
	if err != nil {
		return nil, false, err
	}
	var events []erc8004.Event
	for _, l := range Sort(filter.KeepMatching(logs)) {
		if e, err := erc8004.Decode(l); err == nil {
			events = append(events, e)
		}
	}
	failed, err := r.CountFeedback(ctx, events)
	if err != nil {
		return nil, false, err
	}
	for i, e := range events {
		if at[Position{e.BlockHash, e.TxHash, e.LogIndex}] {
			counted, uncountable = append(counted, e), uncountable || failed[i] != nil
		}
	}
	return counted, uncountable, nil
}

// lastIndex is the answer of getLastIndex, or the reason why the call failed.
type lastIndex struct {
	index uint64
	err   error
}

// readLastIndexes reads the number of feedbacks of each client at the end of its block. It names the block by its
// hash (EIP-1898), so that after a reorg the node cannot return the state of another block.
func (r *Reader) readLastIndexes(ctx context.Context, of []clientInBlock) ([]lastIndex, error) {
	const op = "reading getLastIndex"
	elems := make([]rpc.BatchElem, len(of))
	for i, k := range of {
		agent, _ := new(big.Int).SetString(k.agent, 10)
		call, err := erc8004.PackGetLastIndex(agent, k.client)
		if err != nil {
			return nil, err
		}
		elems[i] = rpc.BatchElem{Method: "eth_call", Result: new(hexutil.Bytes), Args: []any{
			map[string]any{"to": k.registry, "data": hexutil.Bytes(call)}, map[string]any{"blockHash": k.block}}}
	}
	if _, err := r.SendBatch(ctx, op, elems); err != nil {
		return nil, err
	}
	answers := make([]lastIndex, len(of))
	for i, elem := range elems {
		ret, err := r.ReadAnswer(op, of[i].registry, *elem.Result.(*hexutil.Bytes), elem.Error)
		if err == nil {
			answers[i].index, err = erc8004.UnpackGetLastIndex(ret)
		} else if !isUncountable(err) {
			return nil, err
		}
		answers[i].err = err
	}
	return answers, nil
}

// isUncountable reports whether every later getLastIndex call would return the same error: a revert, no contract, or
// a node without the block's state.
func isUncountable(err error) bool {
	var reverted *node.Revert
	var none *node.NoContractError
	return errors.As(err, &reverted) || errors.As(err, &none) || node.IsStateMissing(err)
}
