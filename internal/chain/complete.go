package chain

import (
	"cmp"
	"context"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"
)

// A node may answer a range with fewer logs than exist, without an error: its index of logs is behind, or nodes with
// different heads answer at one address. The blocks themselves reveal the omission. Each block has a bloom filter of
// the addresses and topics of its logs. If the filter does not rule out the requested logs, the block's receipts are
// read by its hash and compared with the root in its header (receipts.go). A node that does not have exactly that
// block returns an error.

// bloomBlock is a block with the bloom filter of its logs.
type bloomBlock struct {
	block
	Bloom        *types.Bloom  `json:"logsBloom"` // nil if the chain has none; then the block's receipts are read
	ReceiptsRoot common.Hash   `json:"receiptsRoot"`
	Transactions []common.Hash `json:"transactions"`
}

// hashFilter is the parameter of eth_getLogs for one block, with the addresses and topics of a range's filter.
type hashFilter struct {
	BlockHash common.Hash      `json:"blockHash"`
	Address   []common.Address `json:"address"`
	Topics    [][]common.Hash  `json:"topics"`
}

// completeLogs adds the logs that the node left out to the logs of a range, in the chain's order. If the receipts of
// a block are proven, their logs replace the node's.
func (c *Client) completeLogs(
	ctx context.Context, filter logFilter, ends rangeEnds, logs []types.Log,
) ([]types.Log, error) {
	var numbers []uint64
	for n := filter.FromBlock; n <= filter.ToBlock; n++ {
		numbers = append(numbers, uint64(n))
	}
	blocks, err := c.readBlooms(ctx, numbers)
	if err != nil {
		return nil, err
	}
	if !isBranch(blocks, ends) {
		return nil, errReorganised
	}
	return c.completeBlocks(ctx, filter, blocks, logs)
}

// compareLogs compares the logs of a range with those of another node, and completes the logs of blocks in which they
// differ. If no other node answers, it completes all blocks.
func (c *Client) compareLogs(
	ctx context.Context, filter logFilter, ends rangeEnds, logs []types.Log,
) ([]types.Log, error) {
	others, last, err := c.readOtherLogs(ctx, filter, ends.node)
	if err != nil || last == nil || last.Hash != ends.last.Hash {
		return c.completeLogs(ctx, filter, ends, logs)
	}
	known := map[uint64][]logPosition{}
	logs = sortLogs(slices.DeleteFunc(logs, func(l types.Log) bool { return !filter.matchesLog(l) }))
	for _, l := range logs {
		known[l.BlockNumber] = append(known[l.BlockNumber], logPosition{l.BlockHash, l.Index})
	}
	differing := findDifferences(known, others, span{uint64(filter.FromBlock), uint64(filter.ToBlock)})
	blocks, err := c.readBlooms(ctx, differing)
	if err != nil {
		return nil, err
	}
	checked := map[uint64]bool{}
	for _, n := range differing {
		checked[n] = true
	}
	agreed, rest := []types.Log{}, []types.Log{}
	for _, l := range logs {
		if checked[l.BlockNumber] {
			rest = append(rest, l)
		} else {
			agreed = append(agreed, l)
		}
	}
	rest, err = c.completeBlocks(ctx, filter, blocks, rest)
	return sortLogs(append(agreed, rest...)), err
}

// completeBlocks adds the logs that the node left out to the logs of blocks.
func (c *Client) completeBlocks(
	ctx context.Context, filter logFilter, blocks []*bloomBlock, logs []types.Log,
) ([]types.Log, error) {
	hashes := make(map[uint64]common.Hash, len(blocks))
	for _, b := range blocks {
		hashes[uint64(b.Number)] = b.Hash
	}
	known := make(map[logPosition]bool, len(logs))
	for _, l := range logs {
		if hashes[l.BlockNumber] != l.BlockHash {
			return nil, errReorganised
		}
		known[logPosition{l.BlockHash, l.Index}] = true
	}

	suspects := slices.DeleteFunc(blocks, func(b *bloomBlock) bool {
		return b.Bloom != nil && !mayHold(*b.Bloom, filter)
	})
	read, proven, err := c.readWholeLogs(ctx, suspects, filter)
	if err != nil {
		return nil, err
	}
	logs = slices.DeleteFunc(logs, func(l types.Log) bool { return proven[l.BlockHash] })
	forgotten := 0
	for _, l := range read {
		p := logPosition{l.BlockHash, l.Index}
		if !known[p] {
			forgotten++
		}
		if !known[p] || proven[l.BlockHash] {
			logs = append(logs, l)
		}
		known[p] = true
	}
	if forgotten > 0 {
		c.log.Warn("a node left out logs of a range: they were read block by block", "chain", c.chainID, "from",
			uint64(filter.FromBlock), "to", uint64(filter.ToBlock), "logs", forgotten)
	}
	return sortLogs(logs), nil
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

// isBranch reports whether blocks are all blocks between the ends of a range: each is the child of the previous one.
func isBranch(blocks []*bloomBlock, ends rangeEnds) bool {
	for i, b := range blocks {
		if i > 0 && !b.isChildOf(blocks[i-1].Hash) {
			return false
		}
	}
	return blocks[0].Hash == ends.first.Hash && blocks[len(blocks)-1].Hash == ends.last.Hash
}

// readBlooms reads blocks by their numbers.
func (c *Client) readBlooms(ctx context.Context, numbers []uint64) ([]*bloomBlock, error) {
	const op = "reading the blooms of blocks"
	var blocks []*bloomBlock
	var elems []rpc.BatchElem
	for _, n := range numbers {
		elems = append(elems, rpc.BatchElem{Method: "eth_getBlockByNumber", Args: []any{formatNumber(n), false},
			Result: new(*bloomBlock)})
	}
	if err := c.sendParts(ctx, op, elems); err != nil {
		return nil, err
	}
	for i, e := range elems {
		b, _ := e.Result.(**bloomBlock)
		if b == nil || *b == nil || uint64((*b).Number) != numbers[i] {
			return nil, c.newUnavailable(op, errNoBlock)
		}
		blocks = append(blocks, *b)
	}
	return blocks, nil
}

// readBlockLogs reads the logs of blocks by the blocks' hashes.
func (c *Client) readBlockLogs(
	ctx context.Context, blocks []*bloomBlock, filter logFilter,
) (logs []types.Log, _ error) {
	var elems []rpc.BatchElem
	for _, b := range blocks {
		elems = append(elems, rpc.BatchElem{Method: "eth_getLogs", Result: new(nodeLogs),
			Args: []any{hashFilter{b.Hash, filter.Address, filter.Topics}}})
	}
	if err := c.sendParts(ctx, "reading the logs of blocks by hash", elems); err != nil {
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

// sendParts sends calls in several requests. It fails if one call fails.
func (c *Client) sendParts(ctx context.Context, op string, elems []rpc.BatchElem) error {
	for part := range slices.Chunk(elems, c.partSize()) {
		if err := c.sendBatch(ctx, op, part); err != nil {
			return err
		}
		for _, e := range part {
			if e.Error != nil {
				return c.newUnavailable(op, e.Error)
			}
		}
	}
	return nil
}

// mayHold reports whether a block may contain a log that matches the filter's addresses and topics. It may return
// true for a block without such a log, but never false for a block with one.
func mayHold(bloom types.Bloom, filter logFilter) bool {
	address := slices.ContainsFunc(filter.Address, func(a common.Address) bool { return bloom.Test(a.Bytes()) })
	for _, any := range filter.Topics {
		if len(any) > 0 && !slices.ContainsFunc(any, func(t common.Hash) bool { return bloom.Test(t.Bytes()) }) {
			return false
		}
	}
	return address || len(filter.Address) == 0
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
