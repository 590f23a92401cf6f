package decode

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/semaphore"
)

const (
	// DefaultBudget is two of the largest documents. More at a time would cost memory and bring nothing: decoding is
	// bounded by the processor.
	DefaultBudget = 4 << 20
	// freeBytes are decoded without asking. The documents of honest agents are of that size, so that they do not
	// queue behind large ones; as many as there are deliveries at a time need little memory.
	freeBytes = 32 << 10
)

// Budget is how many bytes of strangers' documents are decoded at a time, in the whole process. The nil Budget bounds
// nothing: a command that looks at one document needs none. It is safe for concurrent use.
type Budget struct {
	size int64
	free *semaphore.Weighted
}

// NewBudget makes a Budget of so many bytes.
func NewBudget(size int64) *Budget {
	return &Budget{size: size, free: semaphore.NewWeighted(size)}
}

// ErrBusy: other documents were being decoded for as long as the context let this one wait. Whoever sent the document
// is not to blame.
var ErrBusy = errors.New("waiting for other documents to be decoded")

// Acquire waits until n bytes may be decoded; release gives them back. A document larger than the whole budget takes
// all of it. The error is ErrBusy, with the end of ctx.
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
