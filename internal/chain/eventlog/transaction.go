package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// ReadTransaction returns the events that the registries emitted in a transaction, as a follower would hand them
// over, and the number of the transaction's block.
func (r *Reader) ReadTransaction(ctx context.Context, hash common.Hash, d erc8004.Deployment,
	limits job.Limits) (events []Entry, number uint64, err error) {
	if len(d.Contracts()) == 0 {
		return nil, 0, fmt.Errorf("no registry of chain %d is known: set IDENTITY_REGISTRY_%[1]d and "+
			"REPUTATION_REGISTRY_%[1]d", r.ChainID())
	}
	var mined *node.Receipt
	if err := r.SendCall(ctx, "reading the receipt of transaction "+hash.Hex(), &mined, "eth_getTransactionReceipt",
		hash); err != nil {
		return nil, 0, err
	}
	switch {
	case mined == nil:
		return nil, 0, fmt.Errorf("transaction %s on chain %d: the chain has no such transaction, or it "+
			"waits to be mined: try again later", hash, r.ChainID())
	case mined.IsFailed():
		return nil, 0, fmt.Errorf("transaction %s on chain %d: the transaction was reverted: it has no events",
			hash, r.ChainID())
	}
	filter := NewFilter(d.Contracts())
	logs := filter.KeepMatching(mined.Logs)
	if slices.ContainsFunc(logs, lacksIndex) { // indexes are counted over the whole block
		op := "reading the block of transaction " + hash.Hex()
		if logs, err = r.readMinedBlock(ctx, op, filter, mined); err != nil {
			return nil, 0, err
		}
	}
	events, err = r.MakeEntries(ctx, logs, d, limits)
	events = slices.DeleteFunc(events, func(e Entry) bool { return e.Log.TxHash != hash })
	return events, uint64(mined.BlockNumber), err
}

// readMinedBlock reads the logs of the block of a receipt, and checks that no log is missing.
func (r *Reader) readMinedBlock(
	ctx context.Context, op string, filter Filter, mined *node.Receipt,
) ([]types.Log, error) {
	filter.FromBlock, filter.ToBlock = hexutil.Uint64(mined.BlockNumber), hexutil.Uint64(mined.BlockNumber)
	logs, ends, err := r.ReadLogs(ctx, filter)
	if err == nil && ends.Last.Hash != mined.BlockHash {
		err = ErrReorganised
	}
	if err == nil {
		logs, err = r.VerifyLogs(ctx, filter, ends, logs, false)
	}
	if errors.Is(err, ErrReorganised) {
		err = r.NewUnavailable(op, err)
	}
	return logs, err
}

// lacksIndex reports whether a log is a NewFeedback event of 2025, whose index must be counted.
func lacksIndex(l types.Log) bool {
	e, err := erc8004.Decode(l)
	return err == nil && e.Kind == erc8004.NewFeedback && !e.HasIndex
}
