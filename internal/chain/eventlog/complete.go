package eventlog

import (
	"context"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/chain/node"
)

// A node may answer a range with fewer logs than exist, without an error: its index of logs is behind, or nodes with
// different heads answer at one address. The blocks themselves reveal the omission. Each block has a bloom filter of
// the addresses and topics of its logs. If the filter does not rule out the requested logs, the block's receipts are
// read by its hash and compared with the root in its header (receipts.go). A node that does not have exactly that
// block returns an error.

// Header is a block with the bloom filter of its logs.
type Header struct {
	node.Block
	Bloom        *types.Bloom  `json:"logsBloom"` // nil if the chain has none; then the block's receipts are read
	ReceiptsRoot common.Hash   `json:"receiptsRoot"`
	Transactions []common.Hash `json:"transactions"`
}

// VerifyLogs returns the logs of a range, in the chain's order, with those that the node left out. strict means that
// each block is checked; otherwise an answer of another node is enough.
func (r *Reader) VerifyLogs(
	ctx context.Context, filter Filter, ends Ends, logs []types.Log, strict bool,
) ([]types.Log, error) {
	switch {
	case r.Trusted:
		return Sort(filter.KeepMatching(logs)), nil
	case strict || r.CountNodes() == 1:
		return r.CompleteLogs(ctx, filter, ends, logs)
	}
	return r.compareLogs(ctx, filter, ends, logs)
}

// CompleteLogs adds the logs that the node left out to the logs of a range, in the chain's order. If the receipts of
// a block are proven, their logs replace the node's.
func (r *Reader) CompleteLogs(
	ctx context.Context, filter Filter, ends Ends, logs []types.Log,
) ([]types.Log, error) {
	var numbers []uint64
	for n := filter.FromBlock; n <= filter.ToBlock; n++ {
		numbers = append(numbers, uint64(n))
	}
	blocks, err := r.readBlooms(ctx, numbers)
	if err != nil {
		return nil, err
	}
	if !isBranch(blocks, ends) {
		return nil, ErrReorganised
	}
	// Otherwise a log that was not asked for, or that names no block, would look like a reorg in each reading.
	logs = slices.DeleteFunc(filter.KeepMatching(logs), func(l types.Log) bool {
		number := hexutil.Uint64(l.BlockNumber)
		return number < filter.FromBlock || number > filter.ToBlock || l.BlockHash == (common.Hash{})
	})
	return r.completeBlocks(ctx, filter, blocks, logs)
}

// compareLogs compares the logs of a range with those of another node, and completes the logs of blocks in which they
// differ. If no other node answers, it completes all blocks.
func (r *Reader) compareLogs(
	ctx context.Context, filter Filter, ends Ends, logs []types.Log,
) ([]types.Log, error) {
	others, last, err := r.readOtherParts(ctx, filter, ends.Node)
	if err != nil || last == nil || last.Hash != ends.Last.Hash {
		return r.CompleteLogs(ctx, filter, ends, logs)
	}
	known := map[uint64][]Position{}
	logs = Sort(filter.KeepMatching(logs))
	for _, l := range logs {
		known[l.BlockNumber] = append(known[l.BlockNumber], PositionOf(l))
	}
	differing := FindDifferences(known, others, uint64(filter.FromBlock), uint64(filter.ToBlock))
	blocks, err := r.readBlooms(ctx, differing)
	if err != nil {
		return nil, err
	}
	isChecked := func(l types.Log) bool { return slices.Contains(differing, l.BlockNumber) }
	rest := slices.DeleteFunc(slices.Clone(logs), func(l types.Log) bool { return !isChecked(l) })
	agreed := slices.DeleteFunc(logs, isChecked)
	rest, err = r.completeBlocks(ctx, filter, blocks, rest)
	return Sort(append(agreed, rest...)), err
}

// readOtherParts is ReadOtherLogs in as many requests as the other node's limit of blocks requires. It fails if that
// limit is below MostCalls, because then reading each block takes fewer requests.
func (r *Reader) readOtherParts(
	ctx context.Context, filter Filter, not int,
) (logs []types.Log, last *node.Block, err error) {
	part, end := filter, uint64(filter.ToBlock)
	for width := end - uint64(part.FromBlock) + 1; uint64(part.FromBlock) <= end; {
		part.ToBlock = hexutil.Uint64(min(uint64(part.FromBlock)+width-1, end))
		var read []types.Log
		read, last, err = r.ReadOtherLogs(ctx, part, not)
		if err != nil && node.IsRangeLimit(err) {
			width = node.NarrowWidth(err, uint64(part.ToBlock-part.FromBlock)+1)
			if width >= node.MostCalls {
				continue
			}
		}
		if err != nil || last == nil {
			return nil, nil, err
		}
		logs, part.FromBlock = append(logs, read...), part.ToBlock+1
	}
	return logs, last, nil
}

// completeBlocks adds the logs that the node left out to the logs of blocks.
func (r *Reader) completeBlocks(
	ctx context.Context, filter Filter, blocks []*Header, logs []types.Log,
) ([]types.Log, error) {
	hashes := make(map[uint64]common.Hash, len(blocks))
	for _, b := range blocks {
		hashes[uint64(b.Number)] = b.Hash
	}
	known := make(map[Position]bool, len(logs))
	for _, l := range logs {
		if hashes[l.BlockNumber] != l.BlockHash {
			return nil, ErrReorganised
		}
		known[PositionOf(l)] = true
	}

	suspects := slices.DeleteFunc(blocks, func(b *Header) bool {
		return b.Bloom != nil && !MayHold(*b.Bloom, filter)
	})
	read, proven, err := r.readWholeLogs(ctx, suspects, filter)
	if err != nil {
		return nil, err
	}
	logs = slices.DeleteFunc(logs, func(l types.Log) bool { return proven[l.BlockHash] })
	forgotten := 0
	for _, l := range read {
		p := PositionOf(l)
		if !known[p] {
			forgotten++
		}
		if !known[p] || proven[l.BlockHash] {
			logs = append(logs, l)
		}
		known[p] = true
	}
	if forgotten > 0 {
		r.Logger().Warn("a node left out logs of a range: they were read block by block", "chain", r.ChainID(), "from",
			uint64(filter.FromBlock), "to", uint64(filter.ToBlock), "logs", forgotten)
	}
	return Sort(logs), nil
}

// isBranch reports whether blocks are all blocks between the ends of a range: each is the child of the previous one.
func isBranch(blocks []*Header, ends Ends) bool {
	for i, b := range blocks {
		if i > 0 && !b.IsChildOf(blocks[i-1].Hash) {
			return false
		}
	}
	return blocks[0].Hash == ends.First.Hash && blocks[len(blocks)-1].Hash == ends.Last.Hash
}

// readBlooms reads blocks by their numbers.
func (r *Reader) readBlooms(ctx context.Context, numbers []uint64) ([]*Header, error) {
	const op = "reading the blooms of blocks"
	var blocks []*Header
	var elems []rpc.BatchElem
	for _, n := range numbers {
		elems = append(elems, node.BlockCall(n, new(*Header)))
	}
	if err := r.SendParts(ctx, op, elems); err != nil {
		return nil, err
	}
	for i, e := range elems {
		b, _ := e.Result.(**Header)
		if b == nil || *b == nil || uint64((*b).Number) != numbers[i] {
			return nil, r.NewUnavailable(op, node.ErrNoBlock)
		}
		blocks = append(blocks, *b)
	}
	return blocks, nil
}

// MayHold reports whether a block may contain a log that matches the filter's addresses and topics. It may return
// true for a block without such a log, but never false for a block with one.
func MayHold(bloom types.Bloom, filter Filter) bool {
	address := slices.ContainsFunc(filter.Address, func(a common.Address) bool { return bloom.Test(a.Bytes()) })
	for _, any := range filter.Topics {
		if len(any) > 0 && !slices.ContainsFunc(any, func(t common.Hash) bool { return bloom.Test(t.Bytes()) }) {
			return false
		}
	}
	return address || len(filter.Address) == 0
}
