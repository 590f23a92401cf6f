package follower

import (
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

// holdAfterRefusal is the number of answers for which a refusal keeps the range from widening. If the limit is
// permanent, one request in this many is refused.
const holdAfterRefusal = 64

func newRangeWidth(most uint64) rangeWidth { return rangeWidth{blocks: most, most: most} }

// narrow records that the node refused asked blocks.
func (w *rangeWidth) narrow(err error, asked uint64) {
	w.blocks, w.held = node.NarrowWidth(err, asked), holdAfterRefusal
}

// widen records an answer.
func (w *rangeWidth) widen() {
	if w.held > 0 {
		w.held--
		return
	}
	w.blocks = min(w.blocks*2, w.most)
}
