package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// ErrNoTransaction means that the chain has no such transaction, or has not mined it yet.
var ErrNoTransaction = errors.New("the chain has no such transaction, or it waits to be mined: try again later")

// ErrFailedTransaction means that a transaction was reverted, so that it emitted no events.
var ErrFailedTransaction = errors.New("the transaction was reverted: it has no events")

// ReadTransaction returns the events that the registries emitted in a transaction, as a follower would hand them
// over, and the number of the transaction's block.
func (c *Client) ReadTransaction(ctx context.Context, hash common.Hash, d erc8004.Deployment,
	limits job.Limits) (events []RangeEvent, number uint64, err error) {
	var r *receipt
	if err := c.sendCall(ctx, "reading the receipt of transaction "+hash.Hex(), &r, "eth_getTransactionReceipt",
		hash); err != nil {
		return nil, 0, err
	}
	switch {
	case r == nil:
		return nil, 0, fmt.Errorf("transaction %s on chain %d: %w", hash, c.chainID, ErrNoTransaction)
	case r.isFailed():
		return nil, 0, fmt.Errorf("transaction %s on chain %d: %w", hash, c.chainID, ErrFailedTransaction)
	}
	f, err := c.NewFollower(FollowConfig{Deployment: d, Limits: limits,
		Handle: func(context.Context, Range) error { return nil }})
	if err != nil {
		return nil, 0, err
	}
	logs := slices.DeleteFunc(r.Logs, func(l types.Log) bool { return !f.filter.matchesLog(l) })
	if slices.ContainsFunc(logs, lacksIndex) { // indexes are counted over the whole block
		f.next, f.checks = uint64(r.BlockNumber), nil // the block is checked before its logs are used
		logs, _, err = f.readRangeLogs(ctx, uint64(r.BlockNumber), block{Number: r.BlockNumber, Hash: r.BlockHash})
		if errors.Is(err, errReorganised) {
			err = c.newUnavailable("reading the block of transaction "+hash.Hex(), err)
		}
		if err != nil {
			return nil, 0, err
		}
	}
	events, err = f.makeEvents(ctx, logs)
	events = slices.DeleteFunc(events, func(e RangeEvent) bool { return e.Log.TxHash != hash })
	return events, uint64(r.BlockNumber), err
}

// lacksIndex reports whether a log is a NewFeedback event of 2025, whose index must be counted.
func lacksIndex(l types.Log) bool {
	e, err := erc8004.Decode(l)
	return err == nil && e.Kind == erc8004.NewFeedback && !e.HasIndex
}
