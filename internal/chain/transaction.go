package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
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
func (r *Reader) ReadTransaction(ctx context.Context, hash common.Hash, d erc8004.Deployment,
	limits job.Limits) (events []RangeEvent, number uint64, err error) {
	var mined *receipt
	if err := r.sendCall(ctx, "reading the receipt of transaction "+hash.Hex(), &mined, "eth_getTransactionReceipt",
		hash); err != nil {
		return nil, 0, err
	}
	switch {
	case mined == nil:
		return nil, 0, fmt.Errorf("transaction %s on chain %d: %w", hash, r.chainID, ErrNoTransaction)
	case mined.isFailed():
		return nil, 0, fmt.Errorf("transaction %s on chain %d: %w", hash, r.chainID, ErrFailedTransaction)
	}
	filter, err := r.newFilter(d, nil, nil)
	if err != nil {
		return nil, 0, err
	}
	logs := filter.keepMatching(mined.Logs)
	if slices.ContainsFunc(logs, lacksIndex) { // indexes are counted over the whole block
		op := "reading the block of transaction " + hash.Hex()
		if logs, err = r.readMinedBlock(ctx, op, filter, mined); err != nil {
			return nil, 0, err
		}
	}
	events, err = r.makeEvents(ctx, logs, d, limits)
	events = slices.DeleteFunc(events, func(e RangeEvent) bool { return e.Log.TxHash != hash })
	return events, uint64(mined.BlockNumber), err
}

// readMinedBlock reads the logs of the block of a receipt, and checks that no log is missing.
func (r *Reader) readMinedBlock(ctx context.Context, op string, filter logFilter, mined *receipt) ([]types.Log, error) {
	filter.FromBlock, filter.ToBlock = hexutil.Uint64(mined.BlockNumber), hexutil.Uint64(mined.BlockNumber)
	logs, ends, err := r.readLogs(ctx, filter)
	if err == nil && ends.last.Hash != mined.BlockHash {
		err = errReorganised
	}
	if err == nil {
		logs, err = r.verifyLogs(ctx, filter, ends, logs, false)
	}
	if errors.Is(err, errReorganised) {
		err = r.newUnavailable(op, err)
	}
	return logs, err
}

// lacksIndex reports whether a log is a NewFeedback event of 2025, whose index must be counted.
func lacksIndex(l types.Log) bool {
	e, err := erc8004.Decode(l)
	return err == nil && e.Kind == erc8004.NewFeedback && !e.HasIndex
}
