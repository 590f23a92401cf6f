package node

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
func (p *Pool) Lag(ctx context.Context, number uint64) (Lag, error) {
	const op = "asking how far behind a block is"
	var head, other *Block
	elems := []rpc.BatchElem{
		TaggedCall(Latest, &head),
		BlockCall(number, &other),
	}
	if _, err := p.SendBatch(ctx, op, elems); err != nil {
		return Lag{}, err
	}
	switch {
	case elems[0].Error != nil:
		return Lag{}, p.NewUnavailable(op, elems[0].Error)
	case head == nil:
		return Lag{}, p.NewUnavailable(op, ErrNoBlock)
	}
	lag := Lag{Head: uint64(head.Number)}
	if lag.Head == number {
		return lag, nil
	}
	if lag.Head < number {
		return Lag{}, p.NewUnavailable(op,
			fmt.Errorf("the node's newest block is %d, below block %d", lag.Head, number))
	}
	lag.Blocks = lag.Head - number
	switch {
	case elems[1].Error != nil:
		return Lag{}, p.NewUnavailable(op, elems[1].Error)
	case other == nil:
		return Lag{}, p.NewUnavailable(op, ErrNoBlock)
	}
	lag.Time = time.Duration(max(int64(head.Time)-int64(other.Time), 0)) * time.Second
	if !p.known.Quiet {
		return lag, nil
	}
	// Hours may lie between two successive blocks.
	next, err := p.ReadBlock(ctx, number+1)
	if err != nil {
		return Lag{}, err
	}
	if next != nil {
		lag.Time = max(next.Age(), time.Duration(head.Time-min(next.Time, head.Time))*time.Second)
	}
	return lag, nil
}
