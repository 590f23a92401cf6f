// Package memory bounds the memory for the arguments of calls in flight, because an agent decides how long its call
// lasts. It counts bytes, and does not measure them.
//
// Invariant: the calls at one origin, or of all newcomers, leave memory for other calls.
package memory

import "sync"

// Small is the largest size of arguments, in bytes of JSON, for which no memory is reserved. So small calls never wait
// for memory.
const Small = 64 << 10

// Budget bounds the memory for large arguments of calls in flight. The calls of newcomers may use half of it, and the
// calls at one origin a quarter. A single call may exceed a bound if no other call counts against that bound.
type Budget struct {
	most int64 // in bytes, for all calls together

	mu   sync.Mutex
	held map[string]int64 // reserved bytes in total, for newcomers, and per origin
}

// NewBudget returns a Budget of most bytes.
func NewBudget(most int64) *Budget { return &Budget{most: most, held: map[string]int64{}} }

// Keys of Budget.held.
const (
	all       = "all"
	newcomers = "newcomers"
)

// Acquire reserves memory for arguments of size bytes of JSON for a call at origin: three times their size, for the
// arguments, the request and a temporary copy. newcomer says that the bound of newcomers applies too. release ends the
// reservation. It is nil if the size is at most Small: nothing is reserved. If a bound would be exceeded, ok is false,
// and nothing is reserved.
func (b *Budget) Acquire(size int, origin string, newcomer bool) (release func(), ok bool) {
	if size <= Small {
		return nil, true
	}
	bytes := min(3*int64(size), b.most)
	bounds := map[string]int64{all: b.most, "at " + origin: b.most / 4}
	if newcomer {
		bounds[newcomers] = b.most / 2
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	for of, most := range bounds {
		if held := b.held[of]; held > 0 && held+bytes > most {
			return nil, false
		}
	}
	for of := range bounds {
		b.held[of] += bytes
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for of := range bounds {
			if b.held[of] -= bytes; b.held[of] == 0 {
				delete(b.held, of)
			}
		}
	}, true
}

// Held returns how many bytes are reserved.
func (b *Budget) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held[all]
}
