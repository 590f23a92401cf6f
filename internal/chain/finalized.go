package chain

import (
	"context"
	"errors"
	"sync"

	"github.com/ethereum/go-ethereum/rpc"
)

// One node is not believed over the others about what is final: what is read as final is delivered for good. So
// several are asked and the lowest block that one of them names counts. A node that is behind only has it wait.

// countWitnesses is how many of so many nodes are asked for the finalized block: two thirds, but two at least, since one
// would be believed alone.
func countWitnesses(nodes int) int { return min(nodes, max(2, nodes*2/3)) }

// testimony is what one node says of the finalized block; nil and no error if it names none.
type testimony struct {
	block *block
	err   error // typed
}

// readFinalized reads the lowest finalized block that a node names; nil if they name none. Those that do not answer are
// made up for by others only if nobody answers.
func (c *Client) readFinalized(ctx context.Context) (*block, error) {
	const op = "reading block " + finalized
	nodes, err := c.awaitNodes(ctx, op)
	if err != nil {
		return nil, err
	}
	witnesses := min(len(nodes), countWitnesses(len(c.nodes)))
	said := make([]testimony, witnesses)
	var asked sync.WaitGroup
	for i, n := range nodes[:witnesses] {
		asked.Go(func() { said[i] = c.askFinalized(ctx, n, op) })
	}
	asked.Wait()

	lowest, answered := findLowest(said)
	for _, n := range nodes[witnesses:] {
		if answered || ctx.Err() != nil {
			break
		}
		said = append(said, c.askFinalized(ctx, n, op))
		lowest, answered = findLowest(said)
	}
	if answered {
		return lowest, nil
	}
	if len(c.nodes) == 1 {
		return nil, said[0].err
	}
	var failures []nodeFailure
	for i, s := range said {
		failures = append(failures, nodeFailure{nodes[i].number, c.maskFailure(s.err)})
	}
	return nil, c.combineFailures(op, failures)
}

// askFinalized asks one node. Some say with null that they name no finalized block, some with an error.
func (c *Client) askFinalized(ctx context.Context, n *node, op string) testimony {
	var b *block
	elems := []rpc.BatchElem{{Method: "eth_getBlockByNumber", Args: []any{finalized, false}, Result: &b}}
	failure, err := c.askOne(ctx, n, op, func(ctx context.Context, conn *rpc.Client) error {
		if err := c.callBatch(ctx, conn, elems); err != nil {
			return err
		}
		return elems[0].Error
	})
	err = c.typeFailure(op, failure, err)
	var answered *rpcError
	if !errors.As(err, &answered) || isRateLimit(err) {
		return testimony{b, err}
	}
	c.log.Debug("a node names no finalized block", "chain", c.chainID, "node", n.number, "error", answered)
	return testimony{}
}

// findLowest finds the lowest block that was named, and whether anybody answered.
func findLowest(said []testimony) (lowest *block, answered bool) {
	for _, s := range said {
		answered = answered || s.err == nil
		if s.block != nil && (lowest == nil || s.block.Number < lowest.Number) {
			lowest = s.block
		}
	}
	return lowest, answered
}
