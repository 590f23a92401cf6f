package chain

import (
	"context"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/rpc"
)

// Lag is how far behind the node's newest block another one is.
type Lag struct {
	Head   uint64        // the newest block
	Blocks uint64        // 0 when the other one is the newest
	Time   time.Duration // between the two blocks' timestamps; of a quiet chain, the age of the first block after the other one
}

// Lag asks how far behind the newest block the given one is. It fails if that one is above the newest: the lag is not known
// then.
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
	// Hours may lie between two blocks.
	next, err := c.readBlock(ctx, formatNumber(number+1))
	if err != nil {
		return Lag{}, err
	}
	if next != nil {
		lag.Time = max(findAge(*next), time.Duration(head.Time-min(next.Time, head.Time))*time.Second)
	}
	return lag, nil
}

// BlockBefore returns a block that is older than another one by some time at least, and not much more than twice that.
// It returns 0 if the chain is younger.
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
