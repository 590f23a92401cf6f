package eventlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/chain/node"
)

// ReadLargeBlock reads the logs of one block from the receipts of its transactions, because the answer to eth_getLogs
// is too large (node.IsTooLarge). Anyone can fill a block with events, and without their receipts no later block would
// be read. Nothing proves that the node leaves out no log. A receipt that is too large itself is left out, and logged.
func (r *Reader) ReadLargeBlock(ctx context.Context, filter Filter) (logs []types.Log, ends Ends, err error) {
	number := uint64(filter.FromBlock)
	op := fmt.Sprintf("reading the receipts of block %d one by one", number)
	var block *Header
	if ends.Node, err = r.SendAll(ctx, op, node.BlockCall(number, &block)); err != nil {
		return nil, ends, err
	}
	if block == nil {
		return nil, ends, r.NewUnavailable(op, node.ErrNoBlock)
	}
	ends.First, ends.Last = block.Block, block.Block
	receipts := make([]*node.Receipt, len(block.Transactions))
	elems := make([]rpc.BatchElem, len(receipts))
	for i, hash := range block.Transactions {
		elems[i] = rpc.BatchElem{Method: "eth_getTransactionReceipt", Args: []any{hash}, Result: &receipts[i]}
	}
	for len(elems) > 0 {
		part := min(len(elems), r.PartSize())
		tooLarge, err := r.sendHalves(ctx, op, elems[:part])
		if err != nil {
			return nil, ends, err
		}
		for _, receipt := range receipts[:part] {
			switch {
			case receipt == nil && tooLarge > 0:
				tooLarge--
			case receipt == nil || receipt.BlockHash != block.Hash:
				return nil, ends, ErrReorganised
			default:
				logs = append(logs, filter.KeepMatching(receipt.Logs)...)
			}
		}
		clear(receipts[:part])
		elems, receipts = elems[part:], receipts[part:]
	}
	r.Logger().Warn("the logs of a block are too large for one answer: they are read from its receipts", "chain",
		r.ChainID(), "block", number, "logs", len(logs))
	return logs, ends, nil
}

// sendHalves sends calls in one request. If the answer is too large, it sends each half by itself. A single call whose
// answer is too large is logged and counted, and its result stays nil.
func (r *Reader) sendHalves(ctx context.Context, op string, elems []rpc.BatchElem) (tooLarge int, err error) {
	_, err = r.SendAll(ctx, op, elems...)
	isLarge := errors.Is(err, node.ErrTooLarge)
	switch {
	case !isLarge && (len(elems) == 1 || !node.IsTooLarge(err)):
		return 0, err
	case len(elems) == 1:
		r.Logger().Error("the receipt of a transaction is too large to be read: its events are left out", "chain",
			r.ChainID(), "transaction", elems[0].Args[0], "error", err)
		return 1, nil
	}
	half := len(elems) / 2
	first, err := r.sendHalves(ctx, op, elems[:half])
	if err != nil {
		return 0, err
	}
	second, err := r.sendHalves(ctx, op, elems[half:])
	return first + second, err
}
