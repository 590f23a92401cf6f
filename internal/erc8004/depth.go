package erc8004

import (
	"strconv"
	"time"
)

// JSON-RPC tags of blocks below the head.
const (
	Safe      = "safe"
	Finalized = "finalized"
)

// MaxDepth bounds a Depth that is a duration.
const MaxDepth = 7 * 24 * time.Hour

// Depth is a distance below the head of a chain: a duration, a number of blocks, or the distance of the block that
// nodes return for Tag. At most one field is set. The zero Depth is the head.
type Depth struct {
	Time   time.Duration // Herald converts it to blocks with the measured block time
	Blocks uint64
	Tag    string // Safe or Finalized
}

// ParseDepth parses a duration (6s), a number of blocks (12), safe or finalized. problem is empty if s is valid.
// Otherwise it completes a sentence that starts with the name of the setting.
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

// IsZero reports whether the depth is the head.
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
