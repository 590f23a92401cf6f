package chain

import (
	"context"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

const (
	// maxAhead bounds how far above a fresh head a job's block may be. A job whose block the chain does not reach
	// within maxAhead is refuted (docs/design/chain.md).
	maxAhead = time.Hour
	// maxFreshAge is the maximum age of a fresh head, which shows how far the chain has grown.
	maxFreshAge = 2 * time.Minute
)

// checkAhead decides about a job whose block is above the node's head: either the node is behind the indexer's node,
// or there is no such block. A fresh head refutes a height that the chain does not reach within maxAhead. An old head
// refutes nothing. ahead is false if the block is not above the head.
func (c *Client) checkAhead(ctx context.Context, height uint64, head node.Block) (s Standing, ahead bool, _ error) {
	number := uint64(head.Number)
	if height <= number {
		return s, false, nil
	}
	far := height-number > c.countBlocks(ctx, maxAhead)
	age, regular := head.Age(), erc8004.MakesRegularBlocks(c.ChainID())
	switch {
	case far && age <= maxFreshAge:
		return newContradiction("blockNumber"), true, nil
	case far && regular:
		return s, true, c.NewUnavailable("looking for the event's block", fmt.Errorf(
			"the node's newest block %d is %s old, and the job's block %d is more than %s above it", number,
			age.Round(time.Second), height, maxAhead))
	}
	return Standing{Found: true, Pending: true, ConfirmedIn: addSaturated(height-number, c.countConfirmations(ctx)),
		Undated: age > maxFreshAge && (c.known.Quiet || far)}, true, nil
}

// checkStale returns an error if s, the result of looking for the event of a job that names no block, shows only that
// the event is in no block up to an old head. The event may be in a newer block, which the node does not have yet.
func (c *Client) checkStale(j job.Job, s Standing, head node.Block) error {
	age := head.Age()
	if j.BlockNumber > 0 || !s.Unseen && s.SearchedTo == 0 || age <= maxFreshAge ||
		!erc8004.MakesRegularBlocks(c.ChainID()) {
		return nil
	}
	return c.NewUnavailable("looking for the event", fmt.Errorf(
		"the node's newest block %d is %s old, and a newer one may have the event", uint64(head.Number),
		age.Round(time.Second)))
}

// findReceipt asks the nodes for a receipt that one of several nodes did not return, until one returns it. A node that
// drops old receipts, or that lags, returns none. So r is nil only if all nodes answered.
func (c *Client) findReceipt(ctx context.Context, op string, hash common.Hash) (r *node.Receipt, _ error) {
	if c.CountNodes() == 1 {
		return nil, nil
	}
	lacking := 0 // nodes that answered; a node that failed may have the receipt
	elems := []rpc.BatchElem{{Method: "eth_getTransactionReceipt", Args: []any{hash}, Result: &r}}
	_, err := c.SendUntil(ctx, op, elems, func(int) error {
		if elems[0].Error != nil || r != nil {
			return elems[0].Error
		}
		if lacking++; lacking < c.CountNodes() {
			return node.ErrNoReceipt
		}
		return nil
	})
	return r, err
}

// checkUnmined distinguishes a transaction that may still be mined from one that does not exist. Until the job's
// block is deep enough, this node may be on the losing side of a reorg and the node of the job's sender on the other.
func (c *Client) checkUnmined(ctx context.Context, j job.Job, head uint64) (Standing, error) {
	needed := c.countConfirmations(ctx)
	if deep := addSaturated(j.BlockNumber, needed); j.BlockNumber > 0 && deep > head {
		return Standing{Found: true, Pending: true, ConfirmedIn: deep - head}, nil
	}
	var tx *struct {
		Hash common.Hash `json:"hash"`
	}
	if err := c.SendCall(ctx, "reading the event's transaction", &tx, "eth_getTransactionByHash",
		j.TransactionHash); err != nil {
		return Standing{}, err
	}
	if tx == nil {
		return Standing{Disagrees: "transactionHash", Unseen: j.BlockNumber == 0}, nil
	}
	return Standing{Found: true, Pending: true, ConfirmedIn: addSaturated(needed, 1)}, nil
}
