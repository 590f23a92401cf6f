package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"
)

// The checker compares the logs that a follower handed over with those of another node. Blocks in which the two
// differ are checked by their receipts.

// nextComparison returns the next range to compare with another node. ok is false if no range is left.
func (f *Follower) nextComparison() (r handedRange, ok bool) {
	k := f.checks
	if len(f.client.nodes) < 2 || time.Now().Before(k.compareAfter) {
		return r, false
	}
	for _, r := range k.readers {
		if r.to < k.compareFrom {
			continue
		}
		r.from = max(r.from, k.compareFrom)
		if to := r.from + k.compareWidth.blocks - 1; to < r.to {
			r.to, r.hash = to, common.Hash{}
		}
		return r, true
	}
	return r, false
}

// compareRange compares a range with the logs of another node. Blocks in which they differ are checked one by one.
func (f *Follower) compareRange(ctx context.Context, r handedRange) error {
	k := f.checks
	filter := f.filter
	filter.FromBlock, filter.ToBlock = hexutil.Uint64(r.from), hexutil.Uint64(r.to)
	logs, last, err := f.client.readOtherLogs(ctx, filter, r.node)
	switch {
	case err != nil && r.from < r.to && isRefusedRange(err):
		k.compareWidth.narrow(err, r.to-r.from+1)
		return nil
	case err != nil:
		k.compareAfter = time.Now().Add(compareAgain)
		return err
	case last == nil, r.hash != (common.Hash{}) && last.Hash != r.hash:
		if k.behindSince.IsZero() {
			k.behindSince = time.Now()
		} else if time.Since(k.behindSince) >= compareAgain {
			k.compareAfter, k.behindSince = time.Now().Add(compareAgain), time.Time{}
		}
		return nil
	}
	k.behindSince = time.Time{}
	k.compareWidth.widen()
	differing := slices.DeleteFunc(findDifferences(k.known, logs, r.span), func(n uint64) bool {
		return !k.open[n] && !k.unchecked.contains(n) // it was checked individually, and its logs are no longer stored
	})
	k.noteAgreement(r.span, differing)
	for _, n := range differing {
		if !k.open[n] {
			k.wanted = append(k.wanted, n)
		}
		k.open[n] = true
		k.unchecked.removeRange(n, n)
	}
	k.dropClosed()
	k.compareFrom = r.to + 1
	return nil
}

// noteAgreement records that two nodes returned the same logs for all blocks of a range except the differing ones.
func (k *checker) noteAgreement(r span, differing []uint64) {
	from := r.from
	for _, n := range differing {
		if n > from {
			k.noteChecked(from, n-1)
		}
		from = n + 1
	}
	if from <= r.to {
		k.noteChecked(from, r.to)
	}
}

// findDifferences returns the blocks of a range whose logs differ from the known ones, in ascending order.
func findDifferences(known map[uint64][]logPosition, logs []types.Log, r span) (blocks []uint64) {
	others := map[uint64]map[logPosition]bool{}
	for _, l := range logs {
		if l.BlockNumber < r.from || l.BlockNumber > r.to || l.Removed {
			continue
		}
		if others[l.BlockNumber] == nil {
			others[l.BlockNumber] = map[logPosition]bool{}
		}
		others[l.BlockNumber][logPosition{l.BlockHash, l.Index}] = true
	}
	for n, positions := range known {
		if n < r.from || n > r.to {
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
func (c *Client) readOtherLogs(
	ctx context.Context, filter logFilter, not int,
) (logs []types.Log, last *block, _ error) {
	op := fmt.Sprintf("comparing the logs of blocks %d to %d", uint64(filter.FromBlock), uint64(filter.ToBlock))
	nodes, err := c.awaitNodes(ctx, op)
	if err != nil {
		return nil, nil, err
	}
	at := slices.IndexFunc(nodes, func(n *node) bool { return n.number != not })
	if at < 0 {
		return nil, nil, c.newUnavailable(op, errResting)
	}
	elems := []rpc.BatchElem{
		{Method: "eth_getLogs", Args: []any{filter}, Result: (*nodeLogs)(&logs)},
		{Method: "eth_getBlockByNumber", Args: []any{filter.ToBlock, false}, Result: &last},
	}
	failure, err := c.askOne(ctx, nodes[at], op, func(ctx context.Context, conn nodeConn) error {
		if err := c.callBatch(ctx, conn, elems); err != nil {
			return err
		}
		return errors.Join(elems[0].Error, elems[1].Error)
	})
	logs = slices.DeleteFunc(logs, func(l types.Log) bool { return !filter.matchesLog(l) })
	return logs, last, c.typeFailure(op, failure, err)
}
