package decode

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/semaphore"
)

const (
	// DefaultBudget is the usual size of a Budget, in bytes: two of the largest documents. Decoding more at a time
	// would use memory without being faster, because the processor is the bottleneck.
	DefaultBudget = 4 << 20
	// freeBytes is the size below which documents are decoded without waiting and without counting. Documents of honest
	// agents are that small, so they do not wait behind large ones. Even one such document per concurrent delivery
	// needs little memory.
	freeBytes = 32 << 10
)

// Budget bounds the bytes of untrusted documents that the whole process decodes at the same time. A nil Budget has no
// bound; it is for commands that decode one document. It is safe for concurrent use.
type Budget struct {
	size int64
	free *semaphore.Weighted
}

// NewBudget returns a Budget of size bytes.
func NewBudget(size int64) *Budget {
	return &Budget{size: size, free: semaphore.NewWeighted(size)}
}

// ErrBusy reports that ctx ended while other documents were being decoded. The sender of the document is not at fault.
var ErrBusy = errors.New("waiting for other documents to be decoded")

// Acquire waits until a document of n bytes may be decoded. The caller calls release after decoding. A document larger
// than the whole budget acquires all of it. If ctx ends first, the error wraps ErrBusy and the cause of ctx.
func (b *Budget) Acquire(ctx context.Context, n int) (release func(), err error) {
	if b == nil || n < freeBytes {
		return func() {}, nil
	}
	weight := min(int64(n), b.size)
	if err := b.free.Acquire(ctx, weight); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBusy, context.Cause(ctx))
	}
	return func() { b.free.Release(weight) }, nil
}
