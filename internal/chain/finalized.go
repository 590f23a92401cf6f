package chain

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/rpc"
)

// A single node must not decide which blocks are final, because events in final blocks are delivered for good. So
// several nodes are asked, and the lowest block that one of them names counts. A node that is behind only delays
// deliveries.

// countWitnesses returns how many nodes are asked for the finalized block: two thirds of them, rounded down, but at
// least two, since the answer of a single one could not be checked.
func countWitnesses(nodes int) int { return min(nodes, max(2, nodes*2/3)) }

// testimony is one node's answer about a tagged block. block and err are nil if the node names no such block.
type testimony struct {
	block *block
	head  *block // nil if the node did not return its head
	err   error  // a typed error
}

// maxHeadAge is how much older than another node's head a node's head may be. All answers of a node that is further
// behind may be true, but it does not show new events. So it is asked after the others for a while.
const maxHeadAge = time.Minute

// readFinalized returns the lowest finalized block that a node names, or nil if they name none.
func (c *Client) readFinalized(ctx context.Context) (*block, error) {
	return c.readTagged(ctx, finalized)
}

// readTagged returns the lowest block that a node names for a tag, or nil if they name none. If none of the nodes
// that it asks first answers, it asks the others.
func (c *Client) readTagged(ctx context.Context, tag string) (*block, error) {
	op := "reading block " + tag
	nodes, err := c.awaitNodes(ctx, op)
	if err != nil {
		return nil, err
	}
	witnesses := min(len(nodes), countWitnesses(len(c.nodes)))
	said := make([]testimony, witnesses)
	var asked sync.WaitGroup
	for i, n := range nodes[:witnesses] {
		asked.Go(func() { said[i] = c.askTagged(ctx, n, tag, op) })
	}
	asked.Wait()
	c.demoteLaggards(nodes, said)

	lowest, answered := findLowest(said)
	for _, n := range nodes[witnesses:] {
		if answered || ctx.Err() != nil {
			break
		}
		said = append(said, c.askTagged(ctx, n, tag, op))
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

// demoteLaggards demotes nodes whose head is too old, so that they are asked after the others.
func (c *Client) demoteLaggards(nodes []*node, said []testimony) {
	var newest quantity
	for _, s := range said {
		if s.err == nil && s.head != nil {
			newest = max(newest, s.head.Time)
		}
	}
	for i, s := range said {
		if s.err != nil || s.head == nil || newest-s.head.Time <= quantity(maxHeadAge.Seconds()) {
			continue
		}
		if isOneBehind(s.head, said) {
			continue
		}
		nodes[i].health.noteFault(time.Now(), maxDemotion)
		c.log.Warn("a node's newest block is older than another one's: the others of RPC_URL are asked first", "chain", c.chainID,
			"node", nodes[i].number, "block", uint64(s.head.Number), "older", time.Duration(newest-s.head.Time)*time.Second)
	}
}

// isOneBehind reports whether a head lacks only the newest block, which may have just appeared after a quiet time.
func isOneBehind(head *block, said []testimony) bool {
	return !slices.ContainsFunc(said, func(other testimony) bool {
		return other.head != nil && other.head.Number > head.Number+1
	})
}

// askTagged asks one node. A node that has no such block answers with null or with an error.
func (c *Client) askTagged(ctx context.Context, n *node, tag, op string) testimony {
	var b, head *block
	elems := []rpc.BatchElem{
		{Method: "eth_getBlockByNumber", Args: []any{tag, false}, Result: &b},
		{Method: "eth_getBlockByNumber", Args: []any{latest, false}, Result: &head},
	}
	failure, err := c.askOne(ctx, n, op, func(ctx context.Context, conn nodeConn) error {
		if err := c.callBatch(ctx, conn, elems); err != nil {
			return err
		}
		return elems[0].Error
	})
	err = c.typeFailure(op, failure, err)
	var answered *rpcError
	if !errors.As(err, &answered) || isRateLimit(err) {
		return testimony{b, head, err}
	}
	c.log.Debug("a node names no such block", "chain", c.chainID, "node", n.number, "tag", tag, "error", answered)
	return testimony{head: head}
}

// findLowest returns the lowest block that was named, and whether any node answered.
func findLowest(said []testimony) (lowest *block, answered bool) {
	for _, s := range said {
		answered = answered || s.err == nil
		if s.block != nil && (lowest == nil || s.block.Number < lowest.Number) {
			lowest = s.block
		}
	}
	return lowest, answered
}
