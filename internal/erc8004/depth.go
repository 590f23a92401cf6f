package erc8004

import (
	"strconv"
	"time"
)

// Tags of JSON-RPC that name a block below the head.
const (
	Safe      = "safe"
	Finalized = "finalized"
)

// MaxDepth bounds a Depth that is a duration.
const MaxDepth = 7 * 24 * time.Hour

// Depth is how far below the head of a chain a block is: a duration, a number of blocks, or Tag, the block that nodes call
// by it. One of the fields is set at most. The zero Depth is the head.
type Depth struct {
	Time   time.Duration // Herald converts it to blocks, by the block time that it measures
	Blocks uint64
	Tag    string // Safe or Finalized
}

// ParseDepth reads a duration (6s), a number of blocks (12), safe or finalized. The problem continues the name of the text;
// it is empty if the text is valid.
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
