package node

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

// taggedAnswer is one node's answer about a tagged block. block and err are nil if the node names no such block.
type taggedAnswer struct {
	block *Block
	head  *Block // nil if the node returned no head
	err   error  // a typed error
}

// maxHeadAge is how much older than another node's head a node's head may be. All answers of a node that is further
// behind may be true, but it does not show new events. So it is asked after the others until its head is newer.
const maxHeadAge = time.Minute

// compareHeadsPause is the minimum time between two comparisons by CompareHeads.
const compareHeadsPause = time.Minute

// ReadTagged returns the lowest block that a node names for a tag, or nil if they name none. If none of the nodes
// that it asks first answers, it asks the others. It also compares the nodes' heads (demoteLaggards).
func (p *Pool) ReadTagged(ctx context.Context, tag string) (*Block, error) {
	op := "reading block " + tag
	nodes, err := p.awaitNodes(ctx, op)
	if err != nil {
		return nil, err
	}
	witnesses := min(len(nodes), countWitnesses(len(p.nodes)))
	first := slices.Clone(nodes[:witnesses])
	for _, n := range nodes[witnesses:] {
		if n.health.isBehind() {
			first = append(first, n) // no witness, but its head may be new again
		}
	}
	answers := p.askAllTagged(ctx, first, tag, op)
	p.demoteLaggards(first, answers)
	answers = answers[:witnesses]

	lowest, answered := findLowest(answers)
	for _, n := range nodes[witnesses:] {
		if answered || ctx.Err() != nil {
			break
		}
		answers = append(answers, p.askTagged(ctx, n, tag, op))
		lowest, answered = findLowest(answers)
	}
	if answered {
		return lowest, nil
	}
	if len(p.nodes) == 1 {
		return nil, answers[0].err
	}
	var failures []nodeFailure
	for i, s := range answers {
		failures = append(failures, nodeFailure{nodes[i].number, p.maskFailure(s.err)})
	}
	return nil, p.combineFailures(op, failures)
}

// CompareHeads compares the heads of all nodes (demoteLaggards), at most once per compareHeadsPause. It does so if
// head, which a node has just returned, is old, or if a node was behind before. A process that follows no chain and
// reads no tagged block notices only here that a node is behind.
func (p *Pool) CompareHeads(ctx context.Context, head Block) {
	isBehind := func(n *node) bool { return n.health.isBehind() }
	if len(p.nodes) == 1 || head.Age() <= maxHeadAge && !slices.ContainsFunc(p.nodes, isBehind) {
		return
	}
	p.mu.Lock()
	isDue := time.Since(p.compared) >= compareHeadsPause
	if isDue {
		p.compared = time.Now()
	}
	p.mu.Unlock()
	if !isDue {
		return
	}
	const op = "comparing the newest blocks of the nodes"
	if nodes, err := p.awaitNodes(ctx, op); err == nil {
		p.demoteLaggards(nodes, p.askAllTagged(ctx, nodes, Latest, op))
	}
}

// askAllTagged asks several nodes at the same time (askTagged).
func (p *Pool) askAllTagged(ctx context.Context, nodes []*node, tag, op string) []taggedAnswer {
	answers := make([]taggedAnswer, len(nodes))
	var asked sync.WaitGroup
	for i, n := range nodes {
		asked.Go(func() { answers[i] = p.askTagged(ctx, n, tag, op) })
	}
	asked.Wait()
	return answers
}

// demoteLaggards demotes nodes whose head is too old, or that return no head although another node does. They are asked
// after the others until their head is newer. A head in the future counts as made now. So a node that invents one
// cannot demote nodes whose head is new. A single head is not compared with anything.
func (p *Pool) demoteLaggards(nodes []*node, answers []taggedAnswer) {
	var newest Quantity
	heads := 0
	for _, s := range answers {
		if s.err == nil && s.head != nil {
			newest, heads = max(newest, s.head.Time), heads+1
		}
	}
	if heads == 0 {
		return
	}
	newest = min(newest, Quantity(max(time.Now().Unix(), 0)))
	for i, s := range answers {
		if s.err != nil || s.head != nil && heads == 1 {
			continue
		}
		behind := s.head == nil ||
			s.head.Time+Quantity(maxHeadAge.Seconds()) < newest && !isOneBehind(s.head, answers)
		switch changed := nodes[i].health.noteHead(behind); {
		case changed && s.head == nil:
			p.log.Warn("a node returns no newest block: the others of RPC_URL are asked first",
				"chain", p.chainID, "node", nodes[i].number)
		case changed && behind:
			p.log.Warn("a node's newest block is older than another one's: the others of RPC_URL are asked first",
				"chain", p.chainID, "node", nodes[i].number, "block", uint64(s.head.Number),
				"older", time.Duration(newest-s.head.Time)*time.Second)
		case changed:
			p.log.Info("a node's newest block is not old any more", "chain", p.chainID, "node", nodes[i].number,
				"block", uint64(s.head.Number))
		}
	}
}

// isOneBehind reports whether a head lacks only the newest block, which may have just appeared after a quiet time.
func isOneBehind(head *Block, answers []taggedAnswer) bool {
	return !slices.ContainsFunc(answers, func(other taggedAnswer) bool {
		return other.head != nil && other.head.Number > head.Number+1
	})
}

// askTagged asks one node. A node that has no such block answers with null or with an error.
func (p *Pool) askTagged(ctx context.Context, n *node, tag, op string) taggedAnswer {
	var b, head *Block
	elems := []rpc.BatchElem{
		TaggedCall(tag, &b),
		TaggedCall(Latest, &head),
	}
	failure, err := p.askOne(ctx, n, op, func(ctx context.Context, conn nodeConn) error {
		if err := p.callBatch(ctx, conn, elems); err != nil {
			return err
		}
		return elems[0].Error
	})
	err = p.typeFailure(op, failure, err)
	answered, ok := errors.AsType[*rpcError](err)
	if !ok || isRateLimit(err) {
		return taggedAnswer{b, head, err}
	}
	p.log.Debug("a node names no such block", "chain", p.chainID, "node", n.number, "tag", tag, "error", answered)
	return taggedAnswer{head: head}
}

// findLowest returns the lowest block that was named, and whether any node answered.
func findLowest(answers []taggedAnswer) (lowest *Block, answered bool) {
	for _, s := range answers {
		answered = answered || s.err == nil
		if s.block != nil && (lowest == nil || s.block.Number < lowest.Number) {
			lowest = s.block
		}
	}
	return lowest, answered
}
