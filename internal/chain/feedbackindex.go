package chain

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/erc8004"
)

// UncountableError says that an event's feedback index cannot be found: its form has none, and the node does not answer
// for the state of its block.
type UncountableError struct{ Err error }

func (e *UncountableError) Error() string {
	return fmt.Sprintf("this form of NewFeedback has no feedbackIndex, and the node does not tell what the registry "+
		"counted at that block: point RPC_URL at an archive node (%s)", e.Err)
}

func (e *UncountableError) Unwrap() error { return e.Err }

// clientInBlock is who gave feedback to an agent in a block: indexes count for each agent and client.
type clientInBlock struct {
	block    common.Hash
	registry common.Address
	agent    string // agentId, decimal
	client   common.Address
}

// CountFeedback gives the NewFeedback events of 2025, which have no index, theirs: the registry's getLastIndex at the end
// of their block, counted down over what the same client gave the same agent in it. events are all logs of whole blocks,
// in the chain's order.
//
// uncountable, by position in events, is an *UncountableError: the contract has no such function, or the node has dropped
// the block's state, and so will both ever answer. Any other trouble is err, and changes nothing.
func (c *Client) CountFeedback(ctx context.Context, events []erc8004.Event) (uncountable map[int]error, err error) {
	given := make(map[clientInBlock][]int) // positions of the events that need an index, and of those that have one
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
	for part := range slices.Chunk(asked, c.partSize()) {
		answers, err := c.readLastIndexes(ctx, part)
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
			delete(uncountable, at) // it tells its own
		}
	}
	return uncountable, nil
}

// lastIndex is what getLastIndex answered, or why it did not.
type lastIndex struct {
	index uint64
	err   error
}

// readLastIndexes asks for the number of feedbacks of each at the end of its block. The block is named by its hash
// (EIP-1898), so that a reorg cannot put another one's state in its place.
func (c *Client) readLastIndexes(ctx context.Context, of []clientInBlock) ([]lastIndex, error) {
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
	if err := c.sendBatch(ctx, op, elems); err != nil {
		return nil, err
	}
	answers := make([]lastIndex, len(of))
	for i, elem := range elems {
		ret, err := c.readAnswer(op, of[i].registry, *elem.Result.(*hexutil.Bytes), elem.Error)
		if err == nil {
			answers[i].index, err = erc8004.UnpackGetLastIndex(ret)
		} else if !isUncountable(err) {
			return nil, err
		}
		answers[i].err = err
	}
	return answers, nil
}

// missingState matches what nodes without an archive say of the state of an old block: go-ethereum ("missing trie node",
// "historical state … is not available", "required historical state unavailable"), Erigon and Reth ("state at block … is
// pruned"), Nethermind ("No state available for block"), Besu ("World state unavailable"), and providers that sell
// archive nodes apart ("archive").
var missingState = regexp.MustCompile(`(?i)missing trie node|state .*(not available|unavailable|pruned)|no state available|archive`)

// isUncountable tells of the error of a getLastIndex whether it will always be the answer: a revert, no contract, or a
// node without the block's state.
func isUncountable(err error) bool {
	var reverted *revert
	var none *NoContractError
	var answered *rpcError
	return errors.As(err, &reverted) || errors.As(err, &none) ||
		errors.As(err, &answered) && missingState.MatchString(answered.message)
}
