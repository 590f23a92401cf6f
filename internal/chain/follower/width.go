package follower

import (
	"context"
	"errors"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
)

// maxRange bounds the blocks per request. Some nodes silently cut the answers to wider ranges.
const maxRange = 10_000

// rangeWidth is the number of blocks per request. It narrows when a node refuses a range. It widens again only after
// many answers: a limit on the width is permanent, and a limit on results holds for a whole stretch of dense blocks.
type rangeWidth struct {
	blocks uint64
	most   uint64
	held   int // answers that must come before it widens
}

const (
	// leastStrict is the smallest number of blocks in a range whose blocks are all checked.
	leastStrict = 8
	// strictHold is as holdAfterRefusal, after such a range was not read.
	strictHold = 8
)

// holdAfterRefusal is the number of answers for which a refusal keeps the range from widening. If the limit is
// permanent, one request in this many is refused.
const holdAfterRefusal = 64

func newRangeWidth(most uint64) rangeWidth { return rangeWidth{blocks: most, most: most} }

// narrow records that the node refused asked blocks.
func (w *rangeWidth) narrow(err error, asked uint64) {
	w.blocks, w.held = node.NarrowWidth(err, asked), holdAfterRefusal
}

// noteRange records whether a range whose blocks are all checked was read. It needs many requests, and all of them are
// repeated if one fails. A node that limits the rate would fail each of the wide ranges.
func (w *rangeWidth) noteRange(err error, asked uint64) {
	switch {
	case err == nil:
		w.widen()
	case !errors.Is(err, eventlog.ErrReorganised):
		w.blocks, w.held = max(asked/2, leastStrict), strictHold
	}
}

// widen records an answer.
func (w *rangeWidth) widen() {
	if w.held > 0 {
		w.held--
		return
	}
	w.blocks = min(w.blocks*2, w.most)
}

// errNullLogs means that a node answered null for a range that is too wide to read the receipts of its blocks.
var errNullLogs = errors.New("the node answered null instead of a list of logs")

// readNullRange reads the logs of a range for which the node answered null from the blocks' receipts. That needs many
// requests, all of which are repeated if one fails. So it returns errNullLogs if the range is wider than f.strict.
func (f *Follower) readNullRange(
	ctx context.Context, filter eventlog.Filter, ends eventlog.Ends,
) ([]types.Log, error) {
	asked := uint64(filter.ToBlock-filter.FromBlock) + 1
	if asked > f.strict.blocks {
		return nil, errNullLogs
	}
	logs, err := f.reader.CompleteLogs(ctx, filter, ends, nil)
	if !f.isStrict() { // otherwise readNext notes the range
		f.strict.noteRange(err, asked)
	}
	return logs, err
}
