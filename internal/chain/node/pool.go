package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
)

// Config configures a Pool.
type Config struct {
	// ChainID is the id of the chain that the nodes must serve.
	ChainID uint64
	// URLs are the nodes' addresses, in order of preference. The schemes are http, https, ws and wss. If a node does
	// not answer, the next one is asked.
	URLs []secret.Secret
	// Timeout bounds one question, including dialling. The default is 10 s.
	Timeout time.Duration
	// Decoding bounds the bytes of answers that the whole process decodes at a time. The default is no bound.
	Decoding *decode.Budget
	// Transport answers HTTP requests instead of the network, for tests without one. It is optional.
	Transport http.RoundTripper
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Pool asks the nodes of one chain. It is safe for concurrent use.
type Pool struct {
	*link
	nodes      []*node // in the order of RPC_URL_<chain>
	log        *slog.Logger
	known      erc8004.Chain // what this program knows about the chain without asking a node
	blockTimes *blockTimer

	mu       sync.Mutex
	compared time.Time // when CompareHeads last compared the nodes' heads
}

// New creates a pool. It makes no request: the nodes may be unreachable at first and answer later.
func New(cfg Config) (*Pool, error) {
	if cfg.ChainID == 0 {
		return nil, errors.New("chain: the chain id is 0")
	}
	if len(cfg.URLs) == 0 {
		return nil, fmt.Errorf("RPC_URL_%d names no node", cfg.ChainID)
	}
	var keys []string
	for i, address := range cfg.URLs {
		u, err := url.Parse(address.Reveal())
		if err != nil || !isNodeURL(u) {
			return nil, fmt.Errorf("address %d of RPC_URL_%d is no http, https, ws or wss address", i+1, cfg.ChainID)
		}
		keys = append(keys, listKeys(u)...)
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("chain %d: the timeout %s is negative", cfg.ChainID, cfg.Timeout)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	known, _ := erc8004.FindChain(cfg.ChainID)
	l := &link{chainID: cfg.ChainID, timeout: cfg.Timeout, mask: secret.NewMasker(keys), decoding: cfg.Decoding}
	p := &Pool{link: l, log: cfg.Logger, known: known, blockTimes: newBlockTimer()}
	for i, address := range cfg.URLs {
		p.nodes = append(p.nodes, newNode(l, i+1, address, cfg.Transport))
	}
	return p, nil
}

// ChainID returns the id of the chain.
func (p *Pool) ChainID() uint64 { return p.chainID }

// Timeout returns the time limit of one question to one node.
func (p *Pool) Timeout() time.Duration { return p.timeout }

// Logger returns the logger of the pool and of the packages that read through it.
func (p *Pool) Logger() *slog.Logger { return p.log }

// NoteFalseHead makes a node whose newest block no node returns rank after the others, until the heads are compared.
func (p *Pool) NoteFalseHead(number int) {
	if len(p.nodes) > 1 && p.nodes[number-1].health.noteHead(true) {
		p.log.Warn("no node returns the blocks up to a node's newest block: the others of RPC_URL are asked first",
			"chain", p.chainID, "node", number)
	}
}

// CountNodes returns the number of nodes.
func (p *Pool) CountNodes() int { return len(p.nodes) }

// NodeStatus is the result of asking one node for its chain id.
type NodeStatus struct {
	Number int   // its position in RPC_URL_<chain>, from 1
	Err    error // nil, an *UnavailableError or a *WrongChainError
}

// PingNodes asks every node for its chain id. If no node serves the chain, it returns an *UnavailableError or a
// *WrongChainError.
func (p *Pool) PingNodes(ctx context.Context) ([]NodeStatus, error) {
	nodes := make([]NodeStatus, len(p.nodes))
	var asked sync.WaitGroup
	for i, n := range p.nodes {
		asked.Go(func() { nodes[i] = NodeStatus{n.number, n.ping(ctx)} })
	}
	asked.Wait()

	var failures []nodeFailure
	for _, n := range nodes {
		if n.Err == nil {
			return nodes, nil
		}
		failures = append(failures, nodeFailure{n.Number, p.maskFailure(n.Err)})
	}
	if len(nodes) == 1 {
		return nodes, nodes[0].Err
	}
	return nodes, p.combineFailures("asking for the chain id", failures)
}

// Ping asks every node for its chain id. It returns the same errors as PingNodes.
func (p *Pool) Ping(ctx context.Context) error {
	_, err := p.PingNodes(ctx)
	return err
}

// Close closes the connections. Later calls fail.
func (p *Pool) Close() {
	for _, n := range p.nodes {
		n.close()
	}
}

// SendBatch sends several calls to one node, and returns the number of this node. If it cannot answer one of them,
// SendBatch sends all of them to the next node. It also does so if the node does not have one of the blocks. If no
// other node has them all, it uses the first such node's answers. Other errors of single calls are stored in their
// elements, as are all errors of the last node.
func (p *Pool) SendBatch(ctx context.Context, op string, elems []rpc.BatchElem) (node int, _ error) {
	asked := 0
	node, failure, err := p.findBlocks(ctx, op, elems, func(err error) error {
		if err != nil {
			return err
		}
		if asked++; asked >= len(p.nodes) {
			return nil
		}
		return p.findInability(elems)
	})
	return node, p.typeFailure(op, failure, err)
}

// SendAll is SendBatch, but fails if one call fails.
func (p *Pool) SendAll(ctx context.Context, op string, elems ...rpc.BatchElem) (node int, _ error) {
	node, err := p.SendBatch(ctx, op, elems)
	return node, p.typeFailure(op, findError(elems), err)
}

// SendToAny sends several calls to one node, and to the next node if one of them fails, or if the node does not have
// one of the blocks. It returns the number of the node that answered all of them.
func (p *Pool) SendToAny(ctx context.Context, op string, elems ...rpc.BatchElem) (node int, _ error) {
	node, failure, err := p.findBlocks(ctx, op, elems, func(err error) error {
		shown := p.maskFailure(err)
		status, _ := errors.AsType[*statusError](shown)
		if status != nil && status.code == http.StatusBadRequest && !IsTooLarge(shown) {
			return errors.New(shown.Error()) // a *statusError would ask for a narrower range, and no other node
		}
		return cmp.Or(err, findError(elems))
	})
	return node, p.typeFailure(op, failure, err)
}

// findBlocks sends calls to one node after the other until accept returns no error for the answers and no block is
// missing. accept gets the error of the request. If no node has all blocks, findBlocks sends the calls again to the
// first node that lacked only blocks.
func (p *Pool) findBlocks(
	ctx context.Context, op string, elems []rpc.BatchElem, accept func(error) error,
) (number int, failure, err error) {
	var lacking *node
	ask := func(ctx context.Context, conn nodeConn) error {
		number = conn.node.number
		return accept(p.callBatch(ctx, conn, elems))
	}
	failure, err = p.askNode(ctx, op, func(ctx context.Context, conn nodeConn) error {
		if err := ask(ctx, conn); err != nil || len(p.nodes) == 1 || !lacksBlock(elems) {
			return err
		}
		lacking = cmp.Or(lacking, conn.node)
		return ErrNoBlock
	})
	if lacking != nil && err != nil && ctx.Err() == nil {
		failure, err = p.askOne(ctx, lacking, op, ask)
	}
	return number, failure, err
}

// SendParts sends calls in several requests. It fails if one call fails.
func (p *Pool) SendParts(ctx context.Context, op string, elems []rpc.BatchElem) error {
	for part := range slices.Chunk(elems, p.PartSize()) {
		if _, err := p.SendAll(ctx, op, part...); err != nil {
			return err
		}
	}
	return nil
}

// SendUntil sends a batch to one node after the other until accept returns no error for the answers, which are in
// elems. It returns the number of nodes that were asked, which accept gets too.
func (p *Pool) SendUntil(
	ctx context.Context, op string, elems []rpc.BatchElem, accept func(asked int) error,
) (asked int, _ error) {
	failure, err := p.askNode(ctx, op, func(ctx context.Context, conn nodeConn) error {
		asked++
		if err := p.callBatch(ctx, conn, elems); err != nil {
			return err
		}
		return accept(asked)
	})
	return asked, p.typeFailure(op, failure, err)
}

// SendToOther sends a batch to the healthiest node other than the node number not. It fails if one call fails.
func (p *Pool) SendToOther(ctx context.Context, op string, not int, elems ...rpc.BatchElem) error {
	nodes, err := p.awaitNodes(ctx, op)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(nodes, func(n *node) bool { return n.number != not })
	if at < 0 {
		return p.NewUnavailable(op, ErrResting)
	}
	return p.sendTo(ctx, nodes[at], op, elems...)
}

// sendTo sends a batch to one node. It fails if one call fails.
func (p *Pool) sendTo(ctx context.Context, n *node, op string, elems ...rpc.BatchElem) error {
	failure, err := p.askOne(ctx, n, op, func(ctx context.Context, conn nodeConn) error {
		return cmp.Or(p.callBatch(ctx, conn, elems), findError(elems))
	})
	return p.typeFailure(op, failure, err)
}

// findError returns the first error of a call.
func findError(elems []rpc.BatchElem) error {
	for _, e := range elems {
		if e.Error != nil {
			return e.Error
		}
	}
	return nil
}

// findInability returns the error of a call that this node can never answer but another node may. It also returns an
// error if a result cannot be decoded, or if the node does not return its newest block, since every node has one. Both
// count as faults of the node.
func (p *Pool) findInability(elems []rpc.BatchElem) error {
	for _, e := range elems {
		if b, ok := e.Result.(**Block); ok && e.Args[0] == Latest && (e.Error != nil || *b == nil) {
			// Without %w: an answered error would be no fault.
			return fmt.Errorf("reading its newest block: %v", p.maskFailure(cmp.Or(e.Error, ErrNoBlock)))
		}
		_, answered := errors.AsType[rpc.Error](e.Error)
		_, reverted := FindRevert(e.Error)
		if e.Error != nil && (!answered || !reverted && isInability(p.maskFailure(e.Error))) {
			return e.Error
		}
	}
	return nil
}

// typeFailure turns the two results of askNode into one typed error.
func (p *Pool) typeFailure(op string, failure, err error) error {
	var wrong *WrongChainError
	switch {
	case err != nil:
		return err
	case errors.As(failure, &wrong):
		return wrong
	case failure != nil:
		return p.NewUnavailable(op, failure)
	}
	return nil
}

// SendCall sends one call.
func (p *Pool) SendCall(ctx context.Context, op string, result any, method string, args ...any) error {
	failure, err := p.askNode(ctx, op, func(ctx context.Context, conn nodeConn) error {
		return conn.CallContext(ctx, result, method, args...)
	})
	return p.typeFailure(op, failure, err)
}

// CallArgs returns the parameters of eth_call. Every node accepts the name `data`.
func CallArgs(to common.Address, data []byte, block string) []any {
	return []any{map[string]any{"to": to, "data": hexutil.Bytes(data)}, block}
}

// Revert is the error that a contract returned instead of a result.
type Revert struct{ Data []byte }

func (r *Revert) Error() string {
	return fmt.Sprintf("the contract reverted with %d bytes", len(r.Data))
}

// ErrOutdated means that a node has not reached a block that was read before. Several nodes may answer at one address.
var ErrOutdated = errors.New("the node has not reached a block that was read before")

// CallView calls a view function of a contract, in the state of the newest block of a node that has reached the block
// since. It returns *Revert, *UnavailableError (which wraps *NoContractError if the address has no code), or
// *WrongChainError.
func (p *Pool) CallView(
	ctx context.Context, op string, to common.Address, data []byte, since uint64,
) ([]byte, error) {
	var ret hexutil.Bytes
	var head *Block
	var elems []rpc.BatchElem
	if since > 0 { // before the call, because the node may reach a block in between
		elems = append(elems, TaggedCall(Latest, &head))
	}
	elems = append(elems, rpc.BatchElem{Method: "eth_call", Args: CallArgs(to, data, Latest), Result: &ret})
	failure, err := p.askNode(ctx, op, func(ctx context.Context, conn nodeConn) error {
		ret, head = nil, nil
		if err := p.callBatch(ctx, conn, elems); err != nil {
			return err
		}
		if since > 0 && (head == nil || uint64(head.Number) < since) {
			return ErrOutdated
		}
		return elems[len(elems)-1].Error
	})
	if err != nil {
		return nil, err
	}
	return p.ReadAnswer(op, to, ret, failure)
}

// ReadAnswer turns the outcome of an eth_call into its result or a typed error.
func (p *Pool) ReadAnswer(op string, to common.Address, ret hexutil.Bytes, err error) ([]byte, error) {
	if err != nil {
		if data, ok := FindRevert(err); ok {
			return nil, &Revert{data}
		}
		return nil, p.NewUnavailable(op, err)
	}
	if len(ret) == 0 {
		return nil, p.NewUnavailable(op, &NoContractError{ChainID: p.chainID, Address: to})
	}
	return ret, nil
}
