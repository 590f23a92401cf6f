package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/url"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
)

// Config configures a Client.
type Config struct {
	// ChainID is the id of the chain that the nodes must serve.
	ChainID uint64
	// URLs are the nodes' addresses, in order of preference. The schemes are http, https, ws and wss. If a node does
	// not answer, the next one is asked.
	URLs []secret.Secret
	// Timeout bounds one question, including dialling. The default is 10 s.
	Timeout time.Duration
	// Confirmations is the depth at which an event is confirmed. Zero means that being mined is enough.
	Confirmations erc8004.Depth
	// Registries are the registries whose events Check accepts. Without registries, Check refuses every event.
	Registries erc8004.Registries
	// LogRange is how far back Check searches for the event of a job without a position: a duration or a number of
	// blocks.
	LogRange erc8004.Depth
	// Trusted means that the nodes leave out no logs of a range. Otherwise the Follower compares the logs with those
	// of another node, and with blooms and receipts.
	Trusted bool
	// Decoding bounds the bytes of answers that the whole process decodes at a time. The default is no bound.
	Decoding *decode.Budget
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Client asks the nodes of one chain. It is safe for concurrent use.
type Client struct {
	*link
	nodes         []*node // in the order of RPC_URL_<chain>
	confirmations erc8004.Depth
	registries    erc8004.Registries
	logRange      erc8004.Depth
	trusted       bool
	log           *slog.Logger
	known         erc8004.Chain // what this program knows about the chain without asking a node
	blockTimes    *blockTimer

	mu         sync.Mutex
	identities map[common.Address]common.Address // answers of getIdentityRegistry, by the registry that was asked
	proofs     proofs
}

// New creates a client. It makes no request: the nodes may be unreachable at first and answer later.
func New(cfg Config) (*Client, error) {
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
	c := &Client{link: l, confirmations: cfg.Confirmations, registries: cfg.Registries, logRange: cfg.LogRange,
		trusted: cfg.Trusted, log: cfg.Logger, known: known, blockTimes: newBlockTimer(),
		identities: make(map[common.Address]common.Address)}
	for i, address := range cfg.URLs {
		c.nodes = append(c.nodes, newNode(l, i+1, address))
	}
	return c, nil
}

// ChainID returns the id of the chain.
func (c *Client) ChainID() uint64 { return c.chainID }

// NodeStatus is the result of asking one node for its chain id.
type NodeStatus struct {
	Number int   // its position in RPC_URL_<chain>, from 1
	Err    error // nil, an *UnavailableError or a *WrongChainError
}

// PingNodes asks every node for its chain id. If no node serves the chain, it returns an *UnavailableError or a
// *WrongChainError.
func (c *Client) PingNodes(ctx context.Context) ([]NodeStatus, error) {
	nodes := make([]NodeStatus, len(c.nodes))
	var asked sync.WaitGroup
	for i, n := range c.nodes {
		asked.Go(func() { nodes[i] = NodeStatus{n.number, n.ping(ctx)} })
	}
	asked.Wait()

	var failures []nodeFailure
	for _, n := range nodes {
		if n.Err == nil {
			return nodes, nil
		}
		failures = append(failures, nodeFailure{n.Number, c.maskFailure(n.Err)})
	}
	if len(nodes) == 1 {
		return nodes, nodes[0].Err
	}
	return nodes, c.combineFailures("asking for the chain id", failures)
}

// Ping asks every node for its chain id. It returns the same errors as PingNodes.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.PingNodes(ctx)
	return err
}

// Close closes the connections. Later calls fail.
func (c *Client) Close() {
	for _, n := range c.nodes {
		n.close()
	}
}

// sendBatch sends several calls to one node. If that node cannot answer one of them, sendBatch sends all of them to
// the next node. Other errors of single calls are stored in their elements, as are all errors of the last node.
func (c *Client) sendBatch(ctx context.Context, op string, elems []rpc.BatchElem) error {
	_, err := c.sendBatchBy(ctx, op, elems)
	return err
}

// sendBatchBy is sendBatch, but also returns the number of the node that answered.
func (c *Client) sendBatchBy(ctx context.Context, op string, elems []rpc.BatchElem) (node int, _ error) {
	asked := 0
	failure, err := c.askNode(ctx, op, func(ctx context.Context, conn nodeConn) error {
		asked, node = asked+1, conn.node.number
		if err := c.callBatch(ctx, conn, elems); err != nil || asked == len(c.nodes) {
			return err
		}
		return c.findInability(elems)
	})
	return node, c.typeFailure(op, failure, err)
}

// findInability returns the error of a call that this node can never answer but another node may.
func (c *Client) findInability(elems []rpc.BatchElem) error {
	for _, e := range elems {
		if _, reverted := findRevert(e.Error); e.Error != nil && !reverted && isInability(c.maskFailure(e.Error)) {
			return e.Error
		}
	}
	return nil
}

// typeFailure turns the two results of askNode into one typed error.
func (c *Client) typeFailure(op string, failure, err error) error {
	var wrong *WrongChainError
	switch {
	case err != nil:
		return err
	case errors.As(failure, &wrong):
		return wrong
	case failure != nil:
		return c.newUnavailable(op, failure)
	}
	return nil
}

// sendCall sends one call.
func (c *Client) sendCall(ctx context.Context, op string, result any, method string, args ...any) error {
	failure, err := c.askNode(ctx, op, func(ctx context.Context, conn nodeConn) error {
		return conn.CallContext(ctx, result, method, args...)
	})
	return c.typeFailure(op, failure, err)
}

// callArgs returns the parameters of eth_call. Every node accepts the name `data`.
func callArgs(to common.Address, data []byte, block string) []any {
	return []any{map[string]any{"to": to, "data": hexutil.Bytes(data)}, block}
}

// revert is the error that a contract returned instead of a result.
type revert struct{ data []byte }

func (r *revert) Error() string {
	return fmt.Sprintf("the contract reverted with %d bytes", len(r.data))
}

// callView calls a view function of a contract. It returns *revert, *UnavailableError (which wraps *NoContractError
// if the address has no code), or *WrongChainError.
func (c *Client) callView(ctx context.Context, op string, to common.Address, data []byte) ([]byte, error) {
	var ret hexutil.Bytes
	failure, err := c.askNode(ctx, op, func(ctx context.Context, conn nodeConn) error {
		return conn.CallContext(ctx, &ret, "eth_call", callArgs(to, data, latest)...)
	})
	if err != nil {
		return nil, err
	}
	return c.readAnswer(op, to, ret, failure)
}

// readAnswer turns the outcome of an eth_call into its result or a typed error.
func (c *Client) readAnswer(op string, to common.Address, ret hexutil.Bytes, err error) ([]byte, error) {
	if err != nil {
		if data, ok := findRevert(err); ok {
			return nil, &revert{data}
		}
		return nil, c.newUnavailable(op, err)
	}
	if len(ret) == 0 {
		return nil, c.newUnavailable(op, &NoContractError{ChainID: c.chainID, Address: to})
	}
	return ret, nil
}

// TokenURI returns an agent's tokenURI, unchanged. Errors: *NoSuchAgentError, *UnavailableError, *WrongChainError.
func (c *Client) TokenURI(ctx context.Context, identity common.Address, agentID *big.Int) (string, error) {
	gone := &NoSuchAgentError{ChainID: c.chainID, Registry: identity, AgentID: agentID}
	call, err := erc8004.PackTokenURI(agentID)
	if err != nil {
		return "", gone // the id is not a uint256, so no registry contains it
	}
	const op = "reading tokenURI"
	ret, err := c.callView(ctx, op, identity, call)
	var reverted *revert
	switch {
	case errors.As(err, &reverted) && erc8004.IsNonexistentToken(reverted.data):
		return "", gone
	case errors.As(err, &reverted):
		return "", c.checkOwner(ctx, op, gone, reverted)
	case err != nil:
		return "", err
	}
	uri, err := erc8004.UnpackTokenURI(ret)
	if err != nil {
		return "", c.newUnavailable(op, err)
	}
	return uri, nil
}

// checkOwner interprets a revert without the known error: if ownerOf reverts as well, the agent does not exist.
func (c *Client) checkOwner(ctx context.Context, op string, gone *NoSuchAgentError, reverted *revert) error {
	call, err := erc8004.PackOwnerOf(gone.AgentID)
	if err != nil {
		return gone
	}
	_, err = c.callView(ctx, "reading ownerOf", gone.Registry, call)
	var also *revert
	switch {
	case errors.As(err, &also):
		return gone
	case err != nil:
		return err
	}
	return c.newUnavailable(op, reverted)
}
