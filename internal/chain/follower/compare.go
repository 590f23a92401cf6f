package follower

import (
	"context"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
)

// The checker compares the logs that a follower handed over with those of another node. Blocks in which the two
// differ are checked by their receipts.

// nextComparison returns the next range to compare with another node. ok is false if no range is left.
func (f *Follower) nextComparison() (r handedRange, ok bool) {
	k := f.checks
	if f.reader.CountNodes() < 2 || time.Now().Before(k.compareAfter) {
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
	logs, last, err := f.reader.ReadOtherLogs(ctx, filter, r.node)
	switch {
	case err != nil && r.from < r.to && node.IsRefusedRange(err):
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
	differing := slices.DeleteFunc(eventlog.FindDifferences(k.known, logs, r.from, r.to), func(n uint64) bool {
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
