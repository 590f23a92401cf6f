package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/erc8004"
)

// maxStartAge is the maximum difference between the timestamp of a start head and the local clock.
const maxStartAge = 10 * time.Minute

// StartHead returns the block to begin with when a chain is read for the first time: the lowest head that a node
// names and can return. The node must return the block and its parent, and the block's timestamp must be within 10
// minutes of the local clock. The timestamp is not checked on chains that make blocks only with transactions.
// StartHead fails if no node names such a head.
func (p *Pool) StartHead(ctx context.Context) (uint64, error) {
	heads := make([]*Block, len(p.nodes))
	failures := make([]nodeFailure, len(p.nodes))
	var asked sync.WaitGroup
	for i, n := range p.nodes {
		asked.Go(func() {
			head, err := p.readStartHead(ctx, n)
			heads[i], failures[i] = head, nodeFailure{n.number, p.maskFailure(err)}
		})
	}
	asked.Wait()
	var lowest *Block
	for _, head := range heads {
		if head != nil && (lowest == nil || head.Number < lowest.Number) {
			lowest = head
		}
	}
	if lowest == nil {
		return 0, p.combineFailures("looking for a head to begin with", failures)
	}
	return uint64(lowest.Number), nil
}

// readStartHead reads a node's head, then the same block by its number and the parent by its hash.
func (p *Pool) readStartHead(ctx context.Context, n *node) (*Block, error) {
	const op = "reading the head to begin with"
	var head, same, parent *Block
	if err := p.sendTo(ctx, n, op, TaggedCall(Latest, &head)); err != nil {
		return nil, err
	}
	if head == nil {
		return nil, p.NewUnavailable(op, ErrNoBlock)
	}
	elems := []rpc.BatchElem{BlockCall(uint64(head.Number), &same)}
	if head.Number > 0 {
		elems = append(elems,
			rpc.BatchElem{Method: "eth_getBlockByHash", Args: []any{head.ParentHash, false}, Result: &parent})
	}
	if err := p.sendTo(ctx, n, op, elems...); err != nil {
		return nil, err
	}
	age := head.Age()
	switch {
	case same == nil || same.Hash != head.Hash, head.Number > 0 && (parent == nil || parent.Number+1 != head.Number):
		return nil, p.NewUnavailable(op,
			fmt.Errorf("the node names block %d as its head and does not return it and its parent",
				uint64(head.Number)))
	case age.Abs() > maxStartAge && erc8004.MakesRegularBlocks(p.chainID):
		return nil, p.NewUnavailable(op, fmt.Errorf("the time of block %d, the node's head, is %s from this machine's",
			uint64(head.Number), age.Abs().Round(time.Second)))
	}
	return same, nil
}
