package chain

import (
	"context"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/rpc"
)

// Lag is the distance between a block and the node's newest block.
type Lag struct {
	Head   uint64 // the newest block
	Blocks uint64 // 0 if the block is the newest
	// Between the two blocks' timestamps; on a quiet chain, the age of the first block after the given one.
	Time time.Duration
}

// Lag returns how far the given block is behind the newest one. It fails if the given block is above the newest,
// because the lag is unknown then.
func (c *Client) Lag(ctx context.Context, number uint64) (Lag, error) {
	const op = "asking how far behind a block is"
	var head, other *block
	elems := []rpc.BatchElem{
		{Method: "eth_getBlockByNumber", Args: []any{latest, false}, Result: &head},
		{Method: "eth_getBlockByNumber", Args: []any{formatNumber(number), false}, Result: &other},
	}
	if err := c.sendBatch(ctx, op, elems); err != nil {
		return Lag{}, err
	}
	switch {
	case elems[0].Error != nil:
		return Lag{}, c.newUnavailable(op, elems[0].Error)
	case head == nil:
		return Lag{}, c.newUnavailable(op, errNoBlock)
	}
	lag := Lag{Head: uint64(head.Number)}
	if lag.Head == number {
		return lag, nil
	}
	if lag.Head < number {
		return Lag{}, c.newUnavailable(op, fmt.Errorf("the node's newest block is %d, below block %d", lag.Head, number))
	}
	lag.Blocks = lag.Head - number
	switch {
	case elems[1].Error != nil:
		return Lag{}, c.newUnavailable(op, elems[1].Error)
	case other == nil:
		return Lag{}, c.newUnavailable(op, errNoBlock)
	}
	lag.Time = time.Duration(max(int64(head.Time)-int64(other.Time), 0)) * time.Second
	if !c.known.Quiet {
		return lag, nil
	}
	// Hours may lie between two successive blocks.
	next, err := c.readBlock(ctx, formatNumber(number+1))
	if err != nil {
		return Lag{}, err
	}
	if next != nil {
		lag.Time = max(findAge(*next), time.Duration(head.Time-min(next.Time, head.Time))*time.Second)
	}
	return lag, nil
}

// BlockBefore returns a block that is older than the given block by at least the given time, but not much more than
// twice that. It returns 0 if the chain is younger. If the node dropped the older blocks, it returns the oldest block
// that it found, which may be younger than asked for.
func (c *Client) BlockBefore(ctx context.Context, number uint64, by time.Duration) (uint64, error) {
	newest, err := c.readBlock(ctx, formatNumber(number))
	for step := uint64(1); err == nil && newest != nil && step < number; step *= 2 {
		var b *block
		if b, err = c.readBlock(ctx, formatNumber(number-step)); err != nil {
			break
		}
		if b == nil {
			return number - step/2, nil // the node dropped older blocks
		}
		if uint64(b.Time)+uint64(by.Seconds()) <= uint64(newest.Time) {
			return number - step, nil
		}
	}
	return 0, err
}
