package erc8004

import (
	"strconv"
	"time"
)

// Block tags of the JSON-RPC API. Nodes return a block below the head for them.
const (
	Safe      = "safe"
	Finalized = "finalized"
)

// MaxDepth is the largest duration that ParseDepth accepts.
const MaxDepth = 7 * 24 * time.Hour

// Depth is a distance from the head of a chain down to an older block: a duration, a number of blocks, or the distance
// of the block that nodes return for a tag. At most one field is set. The zero Depth is the head itself.
type Depth struct {
	Time   time.Duration // converted to blocks with the measured time between blocks
	Blocks uint64
	Tag    string // Safe or Finalized
}

// ParseDepth parses a duration (6s), a number of blocks (12), safe or finalized. problem is empty if s is valid.
// Otherwise it is a predicate about s, such as "is longer than 168h0m0s".
func ParseDepth(s string) (_ Depth, problem string) {
	if s == Safe || s == Finalized {
		return Depth{Tag: s}, ""
	}
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return Depth{Blocks: n}, ""
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil || d < 0:
		return Depth{}, "is no duration (6s), number of blocks (12), safe or finalized"
	case d > MaxDepth:
		return Depth{}, "is longer than " + MaxDepth.String()
	}
	return Depth{Time: d}, ""
}

// IsZero reports whether the depth is zero, so that it means the head.
func (d Depth) IsZero() bool { return d == Depth{} }

func (d Depth) String() string {
	switch {
	case d.Tag != "":
		return d.Tag
	case d.Time > 0:
		return d.Time.String()
	}
	return strconv.FormatUint(d.Blocks, 10)
}
