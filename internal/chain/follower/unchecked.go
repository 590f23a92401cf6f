package follower

import (
	"crypto/rand"
	"fmt"
	"math/big"
	"slices"
)

// span is a range of blocks.
type span struct{ from, to uint64 }

// mostSpans bounds the number of spans in uncheckedBlocks. Above it, the oldest half is merged into one span: checked
// blocks between the merged spans count as unchecked again.
const mostSpans = 8192

// uncheckedBlocks is the set of blocks that were handed over and not checked, as spans in ascending order.
type uncheckedBlocks struct{ spans []span }

// addRange adds blocks, which may already be in the set.
func (u *uncheckedBlocks) addRange(from, to uint64) {
	i, _ := slices.BinarySearchFunc(u.spans, from, func(s span, n uint64) int {
		if s.to+1 < n {
			return -1
		}
		return 1
	})
	k := i
	for ; k < len(u.spans) && u.spans[k].from <= to+1; k++ {
		from, to = min(from, u.spans[k].from), max(to, u.spans[k].to)
	}
	u.spans = slices.Replace(u.spans, i, k, span{from, to})
	if len(u.spans) > mostSpans {
		half := len(u.spans) / 2
		u.spans = slices.Replace(u.spans, 0, half, span{u.spans[0].from, u.spans[half-1].to})
	}
}

// removeRange removes blocks, which may be missing from the set. It splits spans if needed.
func (u *uncheckedBlocks) removeRange(from, to uint64) {
	i, _ := slices.BinarySearchFunc(u.spans, from, func(s span, n uint64) int {
		if s.to < n {
			return -1
		}
		return 1
	})
	k := i
	var left []span
	for ; k < len(u.spans) && u.spans[k].from <= to; k++ {
		if s := u.spans[k]; s.from < from {
			left = append(left, span{s.from, from - 1})
		}
		if s := u.spans[k]; s.to > to {
			left = append(left, span{to + 1, s.to})
		}
	}
	u.spans = slices.Replace(u.spans, i, k, left...)
}

// contains reports whether a block is in the set.
func (u *uncheckedBlocks) contains(n uint64) bool {
	return slices.ContainsFunc(u.spans, func(s span) bool { return s.from <= n && n <= s.to })
}

// countBlocks returns the number of blocks in the set.
func (u *uncheckedBlocks) countBlocks() (n uint64) {
	for _, s := range u.spans {
		n += s.to - s.from + 1
	}
	return n
}

// drawWindow is the number of unchecked blocks among which a draw chooses. A random choice keeps nodes from
// predicting which blocks are checked if the budget does not cover all of them.
const drawWindow = 1000

// drawBlocks removes at most n blocks from the set and returns them. It chooses at random among the newest drawWindow
// blocks between from and to.
func (u *uncheckedBlocks) drawBlocks(n int, from, to uint64) ([]uint64, error) {
	var window []uint64
	for _, s := range slices.Backward(u.spans) {
		low, high := max(s.from, from), min(s.to, to)
		for b := high; low <= high && b >= low && len(window) < drawWindow; b-- {
			window = append(window, b)
			if b == 0 {
				break
			}
		}
		if len(window) == drawWindow || s.from < from {
			break
		}
	}
	for i := range min(n, len(window)) {
		at, err := rand.Int(rand.Reader, big.NewInt(int64(len(window)-i)))
		if err != nil {
			return nil, fmt.Errorf("draw blocks to check: %w", err)
		}
		k := i + int(at.Int64())
		window[i], window[k] = window[k], window[i]
	}
	drawn := window[:min(n, len(window))]
	for _, b := range drawn {
		u.removeRange(b, b)
	}
	return drawn, nil
}
